"""Options from a TOML file with sections by command and method.

    tasks = 5               # every command that has the option

    [train-top]             # one command
    rank = 48

    [train-top.ewc]         # one command with one method
    lr = 8e-4

The narrower section wins, and the command line over all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from clinit.cli.completion import recipes_or_files
from clinit.cli.config_section import Commands, Section, section_of
from clinit.cli.config_toml import open_config
from clinit.cli.config_value import words
from clinit.cli.context import Context


def read_config(context: Context, path: Path | None) -> Path | None:
    """Take what the file says to the command as the defaults of its options.

    For an eager option: the values are there before the other options are read, and are
    checked like values from the command line.

    Raises:
        ConfigFileError: If the file is missing or not TOML, a section or a key is unknown or in
            the wrong place, or a value has a type that no option takes.
    """
    if path is not None and not context.resilient_parsing:  # resilient: a shell completes a word
        root = context.find_root().command
        command, commands = str(context.command.name), commands_with_files(root)
        section = section_of(open_config(path), command, commands)
        context.default_map = cast(Any, Defaults(context, section, commands[command]))
    return path


ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE|RECIPE",
        autocompletion=recipes_or_files,
        is_eager=True,
        callback=read_config,
        help="TOML file of options, or a recipe of `clinit recipe list`; the command line wins.",
        show_default=False,
    ),
]


def commands_with_files(root: Any) -> Commands:
    """Return the options of every command of `root` that takes a file, by command and by key."""
    return {
        name: {
            parameter.opts[0].removeprefix("--"): parameter
            for parameter in command.params
            if parameter.opts[0].startswith("--")
            and parameter.expose_value
            and not parameter.is_eager
        }
        for name, command in root.commands.items()
        if any("--config" in parameter.opts for parameter in command.params)
    }


class Defaults(Mapping[str, Any]):
    """Defaults by parameter name, looked up one by one while a command line is read.

    Options on the command line are read before those that are not, in any order. So the
    method is known at every look-up, and an option that is on the command line has none.
    """

    def __init__(self, context: Context, section: Section, options: Mapping[str, Any]) -> None:
        self._context, self._section = context, section
        self._options = {option.name: (key, option) for key, option in options.items()}

    @property
    def file(self) -> str:
        """The file that the defaults come from."""
        return self._section.file

    def __getitem__(self, name: str) -> str | list[str]:
        key, option = self._options[name]
        method = self._context.params.get("method") or self._section.method
        value = self._section.get(key, str(method))
        if value is None:
            value = self._section.places.get(bool(self._context.params.get("top")), {}).get(key)
        if value is None:
            raise KeyError(name)
        return words(self._section.file, key, value, several=option.multiple)

    def __iter__(self) -> Iterator[str]:
        return iter(self._options)

    def __len__(self) -> int:
        return len(self._options)
