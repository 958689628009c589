"""Commands that are imported and built when they are asked for, and what all of them share.

Typer builds every command from its signature before it reads the command line: with the options of
all studies that is a third of what `clinit --help` takes. Here a command is a line of a table until
somebody calls it; the help of the group shows these lines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Annotated, Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

from clinit.cli.console import hush

QUIET = "Print no progress and no notes; warnings, errors and results remain."


@dataclass(frozen=True, slots=True)
class Lazy:
    """Where a command is, and what the help of its group says about it."""

    where: str
    """`module:attribute`, of a function or of a Typer application."""
    help: str
    """The first sentence of its own help."""


class LazyGroup(TyperGroup):
    """A group that builds the commands of `table` when they are asked for."""

    table: ClassVar[Mapping[str, Lazy]] = {}

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands: MutableMapping[str, Any] = _Commands(self.table, dict(self.commands))
        self._is_listing = False

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands, in the order of the table."""
        return list(self.commands)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; one that is only listed has its line of help and nothing else."""
        if self._is_listing and cmd_name in self.table:
            return TyperCommand(name=cmd_name, short_help=self.table[cmd_name].help)
        return self.commands.get(cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands, without building them."""
        self._is_listing = True
        try:
            super().format_commands(ctx, formatter)
        finally:
            self._is_listing = False


class _Commands(MutableMapping[str, Any]):
    """Commands by name, those of a table built at their first use."""

    def __init__(self, table: Mapping[str, Lazy], built: dict[str, Any]) -> None:
        self._table, self._built = table, built

    def __getitem__(self, name: str) -> Any:
        if name not in self._built:
            self._built[name] = _built(name, self._table[name])
        return self._built[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._built[name] = command

    def __delitem__(self, name: str) -> None:
        del self._built[name]

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self._table, *self._built)))

    def __len__(self) -> int:
        return len({*self._table, *self._built})


def _built(name: str, lazy: Lazy) -> Any:
    module, _, attribute = lazy.where.partition(":")
    target = getattr(import_module(module), attribute)
    app = typer.Typer(add_completion=False)
    app.callback()(lambda: None)  # with it, one command is a group of one
    if isinstance(target, typer.Typer):
        app.add_typer(target, name=name)
    else:
        app.command(name)(target)
    group: Any = typer.main.get_command(app)
    _complete(group.commands[name])
    return group.commands[name]


def _complete(command: Any) -> None:
    """Let a command, and all below it, have what every command of clinit has."""
    command.rich_markup_mode = None  # boxes leave no room for names of options at 80 columns
    command.short_help = (command.help or "").partition("\n\n")[0].replace("\n", " ")
    if (below := getattr(command, "commands", None)) is not None:
        for each in below.values():
            _complete(each)
        return
    command.params.append(_quiet_option())
    command.format_options = partial(_format_options, command)
    command.make_parser = partial(_parser, command.make_parser)


def _format_options(command: Any, context: Any, formatter: Any) -> None:
    """Write the options below the titles that they are declared with."""
    panels: dict[str, list[tuple[str, str]]] = {}
    for each in command.get_params(context):
        if record := each.get_help_record(context):
            kind = "Options" if each.param_type_name == "option" else "Arguments"
            panels.setdefault(getattr(each, "rich_help_panel", None) or kind, []).append(record)
    last = {title: panels.pop(title) for title in ("Options",) if title in panels}
    for title, records in (panels | last).items():
        with formatter.section(title):
            formatter.write_dl(records)


def _parser(make_parser: Any, context: Any) -> Any:
    """Return a parser that refuses a setting that is given twice where one value is taken.

    `clinit train-head --init random --init lda` trains two heads. Where one value is taken, Typer
    would drop the first in silence; so it does with options that mean the same everywhere, where
    the last one is to win: those of a script, with another behind them.
    """
    parser = make_parser(context)
    parse = parser.parse_args

    def parsed(args: list[str]) -> Any:
        values, rest, order = parse(args=args)
        names = Counter(each.name for each in order if not getattr(each, "multiple", True))
        repeated = [name for name, count in names.items() if count > 1]
        if repeated and not context.resilient_parsing:  # not while a shell completes the line
            from clinit.cli.study_options import SEVERAL

            for name in (each for each in repeated if each in SEVERAL):
                message = f"--{name} is given more than once; it takes one value here"
                raise typer.BadParameter(message, context)
        return values, rest, order

    parser.parse_args = parsed
    return parser


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
    """Return `-q`, `--quiet` behind the name of a command."""
    app = typer.Typer(add_completion=False)
    app.command()(_any_command)
    return typer.main.get_command(app).params[0]
