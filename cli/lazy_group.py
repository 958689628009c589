"""A group of commands that are imported and built when they are asked for.

Typer builds every command from its signature before it reads the command line: with the options of
all studies that is a third of what `clinit --help` takes. Here a command is a line of a table until
somebody calls it; the help of the group shows these lines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

from clinit.cli.help import print_help, take_help
from clinit.cli.once import take_once
from clinit.cli.quiet import take_quiet


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
            return TyperCommand(name=cmd_name, help=self.table[cmd_name].help)
        return self.commands.get(cmd_name)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help of the group, without building what it lists."""
        self._is_listing = True
        try:
            print_help(self, ctx)
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
    take_help(group.commands[name])
    take_quiet(group.commands[name])
    take_once(group.commands[name])
    return group.commands[name]
