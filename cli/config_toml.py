"""A TOML file of options as it is read: its sections, and the grids of a sweep in it."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clinit.cli.recipes import open_text
from clinit.errors import ConfigFileError

Settings = Mapping[str, Any]
GRID = "grid"
"""A section of a sweep that may stand outside of [sweep]."""


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


def kind(value: object) -> str:
    """Return the type of a TOML value in words."""
    names: dict[type, str] = {
        **{dict: "table", list: "list in a list", str: "string", bool: "true or false"},
        **{int: "number", float: "number"},
    }
    return names.get(type(value), type(value).__name__)
