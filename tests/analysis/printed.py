"""What a renderable prints."""

import io
from typing import Any

from rich.console import Console
from typer.testing import Result

from tests.cli import calls


def printed(what: Any, width: int = 80, *, bold: bool = False) -> str:
    """Return what a file gets, or with `bold` a terminal."""
    system: Any = "standard" if bold else None
    console = Console(file=io.StringIO(), width=width, force_terminal=bold, color_system=system)
    console.print(what)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def unbroken(what: Any, width: int = 80) -> str:
    """Return the same with all lines in one."""
    return " ".join(printed(what, width).split())


def call(*words: object) -> Result:
    """Call `clinit report`."""
    return calls.call("report", *words)


def shown(*words: object) -> str:
    """Return what `clinit report` prints on standard output."""
    result = call(*words)
    calls.checked(result)
    return result.stdout
