"""The `clinit` command and its table of sub-commands, which have a file each.

Import and build a command only when it is called, and add --quiet to every command.

Typer builds all commands from their signatures before it reads the command line. Because some
commands have an option for every setting of a run, this would be a third of the run time of
`clinit --help`. Here a command is only a line in a table until it is called; the help of the group
shows these lines.

Print the error of a failing command in words, without a traceback, and choose its exit code.
"""

import errno
import os
import sys
import traceback
from collections.abc import Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer
from rich.text import Text
from typer.core import TyperGroup

from clinit.cli.frame import console, process
from clinit.cli.frame.config import Defaults
from clinit.cli.frame.context import given
from clinit.errors import ClinitError
from clinit.machine import error_number, out_of_memory
from clinit.words import visible

_USAGE_ERROR: Any = typer.BadParameter.__base__
"""Base class of errors in a command line; typer does not export it."""
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_LESS = "Free some, or give smaller --batch-size, --bank-size or --workers, if there are these."


def fail(error: BaseException) -> int:
    """Print the error that has ended a command; return the exit code."""
    process.raise_no_more()  # no signal must interrupt the message
    if (stopped := process.arrived()) is not None:
        console.err.print(Text(visible(str(stopped))), soft_wrap=True)
        return 128 + stopped.number  # as in shells
    if isinstance(error, SystemExit):
        raise error
    assert not isinstance(error, process.Interruption)
    if isinstance(error, BrokenPipeError):
        return 1  # the reader of the output has stopped
    if isinstance(error, _USAGE_ERROR):
        return _refuse_usage(error)
    told = _told(error)
    if told is None:
        text = "".join(traceback.format_exception(error))
        console.err.print(Text(visible(text, lines=True)), soft_wrap=True, end="")
        return 1
    message, remedy = visible(told[0]), visible(told[1], lines=True)
    lines = f"{message}\n{remedy}" if remedy else message
    console.err.print(Text.assemble(("Error: ", "bold red"), lines), soft_wrap=True)
    return 1


def _refuse_usage(error: Any) -> int:
    if type(error).__name__ == "NoArgsIsHelpError":  # its message is the whole help
        console.out.print(Text(error.format_message()), soft_wrap=True)
        return int(error.exit_code)
    if error.ctx is not None:
        option = error.ctx.help_option_names[-1]
        console.err.print(Text(error.ctx.get_usage()), soft_wrap=True)
        console.err.print(Text(f"Try '{error.ctx.command_path} {option}' for help.", style="dim"))
    message = visible(_usage_message(error) + _origin(error), lines=True)
    console.err.print(Text.assemble(("Error: ", "bold red"), message), soft_wrap=True)
    return int(error.exit_code)


def _usage_message(error: Any) -> str:
    text: str = error.format_message().removeprefix("Invalid value: ").replace("Value error, ", "")
    # Errors of the library that converts values.
    problems: Any = getattr(error.__cause__, "errors", list)()
    if problems and repr(value := problems[0]["input"]) not in text:
        text += f", got {value!r}"
    if getattr(error, "param", None) is not None and "Missing" in text:
        text += f"\n{error.param.help or ''}".rstrip()
    option = getattr(error, "option_name", "")
    if option and error.ctx is not None and error.ctx.command.name == "sweep":
        from clinit.headtrain.protocol.study.rules import settings_of

        fields = {field.option: name for name, field in settings_of(top=True).items()}
        if field := fields.get(option):
            text += f"\nWrite it as {field}=VALUE, or {field}=VALUE,VALUE."
    return text


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
    if isinstance(error, FileNotFoundError) and error.errno and error.filename is None:
        return "the current folder has been removed", "Change to an existing one (`cd`)."
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


QUIET = "Print no progress and no notes; warnings, errors and results remain."


_FILES = {
    **dict.fromkeys(("add", "remember", "remove", "rename"), "classes"),
    **dict.fromkeys(("sweep", "train-top"), "train_head"),
    "demo": "reproduce",
}
"""Command -> file of `clinit.cli.commands`, if their names differ."""


class _Commands(dict[str, Any]):
    """Commands by name, built at their first use."""

    def __getitem__(self, name: str) -> Any:
        if isinstance(found := super().__getitem__(name), str):
            self[name] = found = _built(name)
        return found

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self else default  # noqa: SIM401 - it would call itself


def _built(name: str) -> Any:
    """Return a command: the Typer app in the file of its name, or else what has its name."""
    plain = name.replace("-", "_")
    file = _FILES.get(name, plain)
    module = import_module(f"clinit.cli.commands.{file}")
    target = module.app if file == plain and hasattr(module, "app") else getattr(module, plain)
    app = typer.Typer(add_completion=False)
    app.callback()(lambda: None)  # without a callback, Typer makes no group for a single command
    if isinstance(target, typer.Typer):
        app.add_typer(target, name=name)
    else:
        app.command(name)(target)
    group: Any = typer.main.get_command(app)
    _complete(group.commands[name])
    return group.commands[name]


def _complete(command: Any) -> None:
    """Add --quiet and the common style of help to a command and all of its sub-commands."""
    command.rich_markup_mode = None  # rich's boxes leave too little room at 80 columns
    command.short_help = (command.help or "").partition("\n\n")[0].replace("\n", " ")
    if (below := getattr(command, "commands", None)) is not None:
        for each in below.values():
            _complete(each)
        return
    with_quiet = typer.Typer(add_completion=False)
    with_quiet.command()(_any_command)
    command.params.append(typer.main.get_command(with_quiet).params[0])
    command.format_options = partial(_format_options, command)


def _format_options(command: Any, context: Any, formatter: Any) -> None:
    """Write the options in sections, by the panels that they are declared with."""
    panels: dict[str, list[tuple[str, str]]] = {}
    for each in command.get_params(context):
        if record := each.get_help_record(context):
            kind = "Options" if each.param_type_name == "option" else "Arguments"
            panels.setdefault(getattr(each, "rich_help_panel", None) or kind, []).append(record)
    last = {title: panels.pop(title) for title in ("Options",) if title in panels}
    for title, records in (panels | last).items():
        with formatter.section(title):
            formatter.write_dl(records)


def _heed(wanted: bool) -> bool:
    if wanted:
        console.hush(wanted=True)
    return wanted


_QUIET = typer.Option(
    "--quiet", "-q", callback=_heed, is_eager=True, expose_value=False, help=QUIET
)


def _any_command(quiet: Annotated[bool, _QUIET] = False) -> None: ...


class Commands(TyperGroup):
    """The commands in the order of the help, each built at its first use."""

    table: ClassVar[Mapping[str, str]] = {
        "add": "Add classes to a model, from a folder with a folder of images for each.",
        "predict": "Classify images with a model: the likeliest classes of each.",
        "evaluate": "Measure a model on labelled images, and compare it with another.",
        "remember": "Let a model remember its classes: no image, but their statistics.",
        "remove": "Remove classes from a model: their rows, and its memory of them.",
        "rename": "Give classes of a model other names.",
        "model": "Show a model, or merge two.",
        "export": "Write the model of a run for timm, or a model as ONNX, file or head alone.",
        "demo": "Run the whole pipeline on handwritten digits, offline, in about a minute.",
        "extract": "Compute and store the features of all images of a data set, once.",
        "train-head": "Train heads on new classes that arrive in tasks.",
        "report": "Print accuracies, loss and efficiency gain of runs, from their records.",
        "sweep": "Train every combination of a grid; resume an interrupted sweep.",
        "reproduce": "Make tables of the paper and show them next to its numbers.",
        "diagnose": "Measure how far features and heads have collapsed, and are from W_LS.",
        "head": "Fit and align heads on all rows of a cache.",
        "train-top": "Train heads and the top blocks of a backbone on new classes.",
        "cache": "Show, verify, import and group feature caches.",
        "manifest": "Build and show manifests of data sets.",
        "recipe": "Settings of the paper's tables and of the comparison of starts, for --config.",
        "doctor": "Check what clinit needs: packages, GPU, CuPy, compiler, limits.",
    }
    """Name of each command, and its line in the help."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = _Commands({**self.table, **self.commands})

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the lines of the table into the help, without building commands."""
        with formatter.section("Commands"):
            formatter.write_dl([*self.table.items()])


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _print_version(wanted: bool | None) -> None:
    if wanted:
        from clinit import __version__

        console.say(f"clinit {__version__}")
        raise typer.Exit


@app.callback()
def clinit(
    version: Annotated[
        bool | None,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help=QUIET)] = False,
) -> None:
    """Add classes to a pretrained image classifier; compare how new classes start and train.

    A model of your photographs: `clinit add`, `clinit predict`, `clinit evaluate`.
    Experiments: `clinit demo`, or `clinit extract`, `clinit train-head`, `clinit report`.
    """
    console.hush(wanted=quiet)


def main() -> None:
    """Run the command line; report errors and signals in words, without a traceback."""
    process.set_thread_defaults(os.environ)  # before anything loads PyTorch
    process.keep_freed_memory(os.environ)
    os.environ["MPLBACKEND"] = "agg"  # a notebook's backend exists only in its own process
    process.heed_signals()
    console.ignore_full_log()
    console.replace_what_cannot_be_printed()
    console.show_messages_of_libraries()
    try:
        Path.cwd()  # if it is gone, libraries end the process
        code = app(standalone_mode=False)
        if (swallowed := process.arrived()) is not None:
            raise swallowed  # raise it again, because Python ignores exceptions within `__del__`
        process.raise_no_more()
    except BaseException as error:
        code = fail(error)
    sys.exit(code)
