"""Warnings and log records of libraries go through our console: they name files and classes."""

from __future__ import annotations

import logging
import warnings

from rich.text import Text

from clinit.cli.console import err, warn
from clinit.words import visible


class _ConsoleHandler(logging.Handler):
    """Handler of records that no handler of the library takes."""

    def emit(self, record: logging.LogRecord) -> None:
        err.print(Text(visible(self.format(record))), soft_wrap=True)


def show_messages_of_libraries() -> None:
    """Print them like our own: in one line, without the line of code that caused a warning."""
    warnings.showwarning = _show
    logging.lastResort = _ConsoleHandler(logging.WARNING)


def _show(message: Warning | str, category: type[Warning], *where: object, **more: object) -> None:
    warn(f"{message} ({category.__name__})")
