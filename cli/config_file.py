"""Options from a TOML file with sections by command and method.

    tasks = 5               # every command that has the option

    [train-top]             # one command
    rank = 48

    [train-top.ewc]         # one command with one method
    lr = 8e-4

The narrower section wins, and the command line over all.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from clinit.cli.config_section import GRID, Commands, Section, Settings, kind, section_of, words
from clinit.cli.context import Context
from clinit.cli.recipes import open_text
from clinit.errors import ConfigFileError


def read_config(context: Context, path: Path | None) -> Path | None:
    """Take what the file says to the command as the defaults of its options.

    For an eager option: the values are there before the other options are read, and are
    checked like values from the command line.

    Raises:
        ConfigFileError: If the file is missing or not TOML, a section or a key is unknown or in
            the wrong place, or a value has a type that no option takes.
    """
    if path is not None and not context.resilient_parsing:  # resilient: a shell completes a word
        command, commands = str(context.command.name), commands_with_files()
        section = section_of(open_config(path), command, commands)
        context.default_map = cast(Any, Defaults(context, section, commands[command]))
    return path


ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE|RECIPE",
        is_eager=True,
        callback=read_config,
        help="TOML file of options, or a recipe of `clinit recipe list`; the command line wins.",
        show_default=False,
    ),
]


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A file as it was read."""

    name: str
    """The name that messages give it."""
    content: Mapping[str, Any]

    @classmethod
    def parse(cls, name: str, text: str) -> ConfigFile:
        """Parse TOML.

        Raises:
            ConfigFileError: If the text is not TOML, or nests too deep.
        """
        try:
            return cls(name, tomllib.loads(text))
        except tomllib.TOMLDecodeError as error:
            problem = f"is not TOML: {error}"
        except RecursionError:
            problem = "nests lists or tables too deep, expected options of one value or a list"
        except ValueError:
            problem = "holds a number of thousands of digits"
        raise ConfigFileError(
            f"{name} {problem}",
            remedy='Write one option per line, as in `iterations = 600` or `init = ["random"]`.',
        )

    @property
    def grids(self) -> list[Settings]:
        """The grids of a sweep: the tables of [[sweep.grid]], or the table [grid].

        Raises:
            ConfigFileError: If there are both, or one is empty or not a table.
        """
        given = [
            (name, where[GRID])
            for name, where in (("[grid]", self.content), ("[[sweep.grid]]", self._of("sweep")))
            if GRID in where
        ]
        if len(given) > 1:
            raise ConfigFileError(
                f"{self.name} has [grid] and [[sweep.grid]]",
                remedy="Write each grid as a table [[sweep.grid]].",
            )
        for name, value in given:
            tables: list[Settings] = value if isinstance(value, list) else [value]
            wrong = [each for each in tables if not (isinstance(each, dict) and each)]
            if wrong or not tables:
                found = f"a {kind(wrong[0])}" if wrong and wrong[0] != {} else "empty"
                raise ConfigFileError(
                    f"{self.name} has a {name} that is {found}, expected fields and their values",
                    remedy=f'Write {name} and below it lines such as lr = "1e-4..1e-2:log5".',
                )
            return tables
        return []

    def _of(self, command: str) -> Settings:
        """Return a section.

        Raises:
            ConfigFileError: If it is not a table.
        """
        section = self.content.get(command, {})
        if not isinstance(section, dict):
            raise ConfigFileError(
                f"{self.name} gives {command!r} a value, but it is the name of a section",
                remedy=f"Write [{command}] and its options below it.",
            )
        return section

    def own(self, command: str) -> Settings:
        """Return the content of the section of a command with its sub-sections, without grids."""
        section = self._of(command)
        return {k: v for k, v in section.items() if (command, k) != ("sweep", GRID)}


def open_config(path: Path) -> ConfigFile:
    """Read a file, or the recipe of that name where there is no such file.

    Raises:
        ConfigFileError: If there is neither, or it is not TOML.
    """
    name, text = open_text(path)
    return ConfigFile.parse(name, text)


@cache
def commands_with_files() -> Commands:
    """Return the options of every command that takes a file, by command and by key."""
    from clinit.cli.main import app

    root: Any = typer.main.get_command(app)
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
