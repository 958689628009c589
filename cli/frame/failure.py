"""Print the error of a failing command in words, without a traceback, and choose its exit code."""

from __future__ import annotations

import errno
import os
import traceback
from typing import Any

import typer
from rich.text import Text

from clinit.cli.frame.config import Defaults
from clinit.cli.frame.console import err, out
from clinit.cli.frame.context import given
from clinit.cli.frame.process import Interruption, arrived, raise_no_more
from clinit.errors import ClinitError
from clinit.machine import error_number, out_of_memory
from clinit.words import visible

_USAGE_ERROR: Any = typer.BadParameter.__base__
"""Base class of errors in a command line; typer does not export it."""
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_LESS = (
    "Free some, or give smaller --batch-size, --bank-size or --workers, if the command has them."
)


def fail(error: BaseException) -> int:
    """Print the error that has ended a command; return the exit code."""
    raise_no_more()  # no signal must interrupt the message
    if (stopped := arrived()) is not None:
        err.print(Text(visible(str(stopped))), soft_wrap=True)
        return stopped.exit_code
    if isinstance(error, SystemExit):
        raise error
    assert not isinstance(error, Interruption)
    if isinstance(error, BrokenPipeError):
        return 1  # the reader of the output has stopped
    if isinstance(error, _USAGE_ERROR):
        return _refuse_usage(error)
    told = _told(error)
    if told is None:
        text = "".join(traceback.format_exception(error))
        err.print(Text(visible(text, lines=True)), soft_wrap=True, end="")
        return 1
    message, remedy = visible(told[0]), visible(told[1], lines=True)
    lines = f"{message}\n{remedy}" if remedy else message
    err.print(Text.assemble(("Error: ", "bold red"), lines), soft_wrap=True)
    return 1


def _refuse_usage(error: Any) -> int:
    if type(error).__name__ == "NoArgsIsHelpError":  # its message is the whole help
        out.print(Text(error.format_message()), soft_wrap=True)
        return int(error.exit_code)
    if error.ctx is not None:
        option = error.ctx.help_option_names[-1]
        err.print(Text(error.ctx.get_usage()), soft_wrap=True)
        err.print(Text(f"Try '{error.ctx.command_path} {option}' for help.", style="dim"))
    message = visible(_usage_message(error) + _origin(error), lines=True)
    err.print(Text.assemble(("Error: ", "bold red"), message), soft_wrap=True)
    return int(error.exit_code)


def _usage_message(error: Any) -> str:
    message = (
        str(error.format_message()).removeprefix("Invalid value: ").replace("Value error, ", "")
    )
    # Errors of the library that converts values.
    problems: Any = getattr(error.__cause__, "errors", list)()
    if problems and repr(value := problems[0]["input"]) not in message:
        message += f", got {value!r}"
    if getattr(error, "param", None) is not None and "Missing" in message:
        message += f"\n{error.param.help or ''}".rstrip()
    option = getattr(error, "option_name", "")
    if option and error.ctx is not None and error.ctx.command.name == "sweep":
        from clinit.headtrain.protocol.study.rules import settings_of

        fields = {field.option: name for name, field in settings_of(top=True).items()}
        if field := fields.get(option):
            message += f"\nWrite it as {field}=VALUE, or {field}=VALUE,VALUE."
    return message


def _origin(error: Any) -> str:
    """Return a line with the file of options of a refused value; empty for the command line."""
    context, parameter = error.ctx, getattr(error, "param", None)
    if context is None or parameter is None or not isinstance(context.default_map, Defaults):
        return ""
    if given(context, parameter.name) != "default_map":
        return ""
    return f"\n{context.default_map.file} gives {context.default_map.get(parameter.name)!r}."


def _told(error: BaseException) -> tuple[str, str] | None:
    """Return message and remedy of an error of the user or the machine; None for a bug."""
    if isinstance(error, ClinitError):  # its message is better than messages of its causes
        return str(error), error.remedy
    if short := _shortage(error):
        return short
    if isinstance(error, OSError):  # such as a name that is too long
        return str(error) or type(error).__name__, ""
    return None


def _shortage(error: BaseException) -> tuple[str, str] | None:
    """Return message and remedy if memory or disk space was short; else None.

    The causes of the error are searched too, because a library may have wrapped the original error.
    """
    causes = _causes(error)
    if short := [cause for cause in causes if out_of_memory(cause)]:
        told = str(short[0]).strip().splitlines()
        text = f"out of memory: {told[0]}" if told else "out of memory"
        for cause in causes:
            cause.__traceback__ = None  # free the memory that its frames refer to
        return text, _LESS
    for cause in causes:
        if (number := error_number(cause)) in _NO_SPACE:
            file = getattr(cause, "filename", None)
            what = f"cannot write {file}" if file else "cannot write"
            first = "Raise `ulimit -f`" if number == errno.EFBIG else "Free space"
            return (
                f"{what}: {os.strerror(number)}",
                f"{first} or choose another folder, then run the same command again.",
            )
    return None


def _causes(error: BaseException) -> list[BaseException]:
    found: list[BaseException] = []
    following: BaseException | None = error
    while following is not None and following not in found:
        found.append(following)
        following = following.__cause__ or following.__context__
    return found
