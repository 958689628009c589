"""The two consoles of the command line, and its notes and warnings.

Text, not markup: a path may contain [brackets], and a long one must not be wrapped.
"""

from rich.console import Console
from rich.text import Text

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


def note(message: str) -> None:
    """Say something that the user may want to know."""
    err.print(Text.assemble(("Note: ", "bold cyan"), message), soft_wrap=True)


def warn(message: str) -> None:
    """Say something that is probably not what the user wanted."""
    err.print(Text.assemble(("Warning: ", "bold yellow"), message), soft_wrap=True)


def say(message: str = "") -> None:
    """Print a line as it is."""
    out.print(Text(message), soft_wrap=True)
