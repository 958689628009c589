"""The help of a command on the terminal: nothing is cut at 80 columns.

Stream
  --tasks INTEGER           Number of tasks in which the new classes arrive.
                            [default: 5]
  --buffer-per-class INTEGER
                            Rows kept per earlier class, instead of a total.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from clinit.cli.console import out
from clinit.cli.help_entries import Entry, Panel, panels_of, paragraphs, usage

_INDENT = 2
_COLUMN = 26
"""Most columns of names and kinds; a longer one has a line of its own."""
_WIDTH = 100
"""Most columns of the page; longer lines are hard to read."""


def take_help(command: Any) -> None:
    """Let a command, and all below it, print this help."""
    command.format_help = partial(print_help, command)
    for each in getattr(command, "commands", {}).values():
        take_help(each)


def print_help(command: Any, context: Any, formatter: object = None) -> None:
    """Print the help of a command."""
    width = min(out.width, _WIDTH)
    out.print(Text.assemble(("Usage: ", "bold"), usage(command, context)), width=width)
    for each in paragraphs(command):
        out.print()
        out.print(Text(each), width=width)
    for panel in panels_of(command, context):
        _print_panel(panel, width)


def _print_panel(panel: Panel, width: int) -> None:
    out.print()
    out.print(Text(panel.title, style="bold"))
    fitting = [len(each.head) for each in panel.entries if len(each.head) <= _COLUMN]
    column = max(fitting, default=_COLUMN)
    for each in panel.entries:
        _print_entry(each, column, width)


def _print_entry(entry: Entry, column: int, width: int) -> None:
    head = Text.assemble((", ".join(entry.names), "bold cyan"), f" {entry.kind}".rstrip())
    beside = len(head) <= column
    if not beside:
        out.print(Padding(head, (0, 0, 0, _INDENT)), width=width)
    line = Table.grid(padding=(0, 2, 0, 0))
    line.add_column(width=column)
    line.add_column()
    line.add_row(head if beside else "", Text(entry.text))
    out.print(Padding(line, (0, 0, 0, _INDENT)), width=width)
