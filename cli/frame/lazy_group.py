"""Import and build a command only when it is called, and add --quiet to every command.

Typer builds all commands from their signatures before it reads the command line. Because some
commands have an option for every setting of a run, this would be a third of the run time of
`clinit --help`. Here a command is only a line in a table until it is called; the help of the group
shows these lines.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from importlib import import_module
from typing import Annotated, Any, ClassVar

import typer
from typer.core import TyperGroup

from clinit.cli.frame.console import hush

QUIET = "Print no progress and no notes; warnings, errors and results remain."


_FILES = {**dict.fromkeys(("add", "remember", "remove", "rename"), "model"), "align": "head"}
"""Command -> file of `clinit.cli.commands`, if their names differ."""
_EARLIER = ("align",)
"""Commands of 0.1 that are now in a group; the help lists them there alone."""


class LazyGroup(TyperGroup):
    """A group that builds each command of `table` at its first use."""

    table: ClassVar[Mapping[str, str]] = {}
    """Name of each command, and its line in the help of the group."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        earlier = dict.fromkeys(_EARLIER, "") if self.table else {}
        self.commands = _Commands({**self.table, **earlier, **self.commands})

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the lines of the table into the help, without building commands."""
        with formatter.section("Commands"):
            formatter.write_dl([*self.table.items()])


class _Commands(dict[str, Any]):
    """Commands by name, built at their first use."""

    def __getitem__(self, name: str) -> Any:
        if isinstance(found := super().__getitem__(name), str):
            self[name] = found = _built(name)
            found.hidden = name in _EARLIER
        return found

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self else default  # noqa: SIM401 - it would call itself


def _built(name: str) -> Any:
    """Return a command: the Typer app in the file of its name, or else the function of its name."""
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
    command.params.append(_quiet_option())
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
        hush(wanted=True)
    return wanted


def _any_command(
    quiet: Annotated[
        bool,
        typer.Option(
            "--quiet", "-q", callback=_heed, is_eager=True, expose_value=False, help=QUIET
        ),
    ] = False,
) -> None: ...


def _quiet_option() -> Any:
    app = typer.Typer(add_completion=False)
    app.command()(_any_command)
    return typer.main.get_command(app).params[0]
