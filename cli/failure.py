"""What is said when a command fails, in one message without a traceback, and its exit code."""

from __future__ import annotations

import errno
import os
import re
import sys
import traceback
from contextlib import suppress
from typing import Any

import typer
from rich.panel import Panel
from rich.text import Text

from clinit.cli.config_file import Defaults
from clinit.cli.console import err
from clinit.cli.context import given
from clinit.cli.interruption import Interruption, arrived
from clinit.errors import ClinitError
from clinit.extract.visible import visible

_USAGE_ERROR: Any = typer.BadParameter.__base__
"""Of words that cannot be a command; typer brings this class without naming it."""
_NO_MEMORY = (
    "allocate memory",  # PyTorch on the CPU and the system: "can't" and "cannot"
    "DefaultCPUAllocator",
    "out of memory",
    "std::bad_alloc",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "can't start new thread",
    "failed to map segment from shared object",  # a library that is loaded late
)
_NO_MEMORY_TYPES = ("OutOfMemoryError", "MemoryError")
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NEED_MEMORY = ("--batch-size", "--bank-size", "--workers")
"""Options of which less needs less memory."""


def fail(error: BaseException) -> int:
    """Say what has happened; return the exit code."""
    if isinstance(error, SystemExit):
        raise error
    if (stopped := arrived()) is not None:
        with suppress(OSError):  # a terminal that has gone
            err.print(Text(visible(str(stopped))), soft_wrap=True)
        return stopped.exit_code
    assert not isinstance(error, Interruption)
    if isinstance(error, BrokenPipeError):
        return 1  # whoever read the output has enough
    if isinstance(error, _USAGE_ERROR):
        return _refuse_usage(error)
    told = _shortage(error) or _plain(error)
    if told is None:
        text = "".join(traceback.format_exception(error))
        err.print(Text(visible(text, lines=True)), soft_wrap=True, end="")
        return 1
    message, remedy = visible(told[0]), visible(told[1], lines=True)
    lines = f"{message}\n{remedy}" if remedy else message
    err.print(Text.assemble(("Error: ", "bold red"), lines), soft_wrap=True)
    return 1


def _refuse_usage(error: Any) -> int:
    """Say what is wrong with the words of the command, as typer does, but on our console."""
    message = error.format_message()
    if message:  # none: the help has been printed instead
        if error.ctx is not None:
            err.print(Text(error.ctx.get_usage(), style="bold"))
            help_option = error.ctx.help_option_names[-1]
            err.print(Text(f"Try '{error.ctx.command_path} {help_option}' for help.", style="dim"))
        message += _origin(error)
        err.print(Panel(Text(message), title="Error", title_align="left", border_style="red"))
    return int(error.exit_code)


def _origin(error: Any) -> str:
    """Say which file of options a refused value is from; nothing of the command line's own."""
    context, parameter = error.ctx, getattr(error, "param", None)
    if context is None or parameter is None or not isinstance(context.default_map, Defaults):
        return ""
    if given(context, parameter.name) != "default_map":
        return ""
    return f"\n{context.default_map.file} gives {context.default_map[parameter.name]!r}."


def _plain(error: BaseException) -> tuple[str, str] | None:
    """Return message and remedy of an error that is the user's or the machine's; else None."""
    if isinstance(error, ClinitError):
        return str(error) or _type_in_words(error), error.remedy
    if isinstance(error, OSError):  # such as a name that is too long
        return str(error) or _type_in_words(error), ""
    return None


def _shortage(error: BaseException) -> tuple[str, str] | None:
    """Return message and remedy where memory or room on the disk was short; else None."""
    causes = _causes(error)
    if short := [cause for cause in causes if _is_memory(cause)]:
        told = str(short[0]).strip().splitlines()
        text = f"out of memory: {told[0]}" if told else "out of memory"
        for cause in causes:
            cause.__traceback__ = None  # lets go of what the frames hold
        return text, f"{_less()}, or free some."
    if isinstance(error, ClinitError):
        return None  # says what could not be written itself
    for cause in causes:
        if (number := _errno(cause)) in _NO_SPACE:
            file = getattr(cause, "filename", None)
            what = f"cannot write {file}" if file else "cannot write"
            first = "Raise `ulimit -f`" if number == errno.EFBIG else "Free space"
            return (
                f"{what}: {os.strerror(number)}",
                f"{first} or choose another folder, then run the same command again.",
            )
    return None


def _errno(error: BaseException) -> int:
    """Return the system's number of an error, also from the words of Rust and HDF5; 0: none."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    found = re.search(r"\(os error (\d+)\)|errno = (\d+)", str(error))
    return int(found[1] or found[2]) if found else 0


def _is_memory(error: BaseException) -> bool:
    if any(base.__name__ in _NO_MEMORY_TYPES for base in type(error).__mro__):
        return True
    if _errno(error) == errno.ENOMEM:
        return True
    if not isinstance(error, RuntimeError | OSError | ImportError):
        return False
    return any(words in str(error) for words in _NO_MEMORY)


def _causes(error: BaseException) -> list[BaseException]:
    found: list[BaseException] = []
    following: BaseException | None = error
    while following is not None and following not in found:
        found.append(following)
        following = following.__cause__ or following.__context__
    return found


def _less() -> str:
    """Return what to do, in the options of the command that was typed."""
    from clinit.cli.main import app

    options: list[str] = []
    with suppress(MemoryError):  # there may still be none
        command = typer.main.get_command(app)
        for word in sys.argv[1:]:
            if (below := getattr(command, "commands", {}).get(word)) is None:
                break
            command = below
        known = {name for parameter in command.params for name in parameter.opts}
        options = [option for option in _NEED_MEMORY if option in known]
    return f"Give a smaller {' or '.join(options)}" if options else "Use a machine with more memory"


def _type_in_words(error: BaseException) -> str:
    """Return the name of an error as words: `file not found error`."""
    name = type(error).__name__
    spaced = "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in name)
    return f"{spaced.strip()} without a message"
