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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from clinit.cli.completion import recipes_or_files
from clinit.cli.context import Context
from clinit.cli.recipe import open_text
from clinit.errors import ConfigFileError
from clinit.headtrain.study import HEAD_METHODS, TOP_METHODS, Study, defaults, refusals, settings_of
from clinit.words import closest, listed, visible

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


_DIGITS = 18
"""Most digits of an integer."""


def words(file: str, key: str, value: object, *, several: bool) -> str | list[str]:
    """Return a value as on the command line, so that it is checked in the same way.

    Raises:
        ConfigFileError: If its type is one that no option takes, or it cannot be printed in the
            help, which shows it as a default.
    """
    values = value if isinstance(value, list) else [value]
    if not several and isinstance(value, list):
        raise ConfigFileError(
            f"{file} gives {key!r} a list, but the option takes one value",
            remedy=f"Write one value: `{key} = ...`.",
        )
    for each in values:
        if not isinstance(each, str | int | float):
            raise ConfigFileError(
                f"{file} gives {key!r} a {kind(each)}, expected a string, a number, true or false",
                remedy="Write one option per line, at the top of the file or in a section.",
            )
        if isinstance(each, int) and abs(each) >= 10**_DIGITS:
            raise ConfigFileError(
                f"{file} gives {key!r} a number of more than {_DIGITS} digits",
                remedy="Write a number that the option takes; its help names the range.",
            )
        if isinstance(each, str) and visible(each) != each:
            raise ConfigFileError(
                f"{file} gives {key!r} a string with control characters: {visible(each)}",
                remedy="Write the value without them.",
            )
    texts = [str(each) for each in values]
    return texts if several else texts[0]


Commands = Mapping[str, Mapping[str, Any]]
"""Command -> key -> parameter, of the commands that take a file."""

NOT_SHARED = frozenset({"batch-size", "head", "loss", "lr", "method", "out", "precision", "views"})
"""Options that differ between the commands that have them, in their defaults, choices or files.
They are refused outside of a section."""
APART = ("add", "remember")
"""Commands of a model in use. What a file says outside of its sections is for the study that it
describes, and never reaches them: `iterations` of a training are not those of `clinit add`."""
RIVALS = {
    "buffer": "buffer-per-class",
    "buffer-per-class": "buffer",
    "dataset": "manifest",
    "manifest": "dataset",
}
"""Options that exclude each other: the one that wins leaves the other unset."""
_METHODS = {"train-head": HEAD_METHODS, "train-top": TOP_METHODS}
RUNS, TOP_RUNS = "train-head", "train-top"
"""The commands whose sections hold the defaults of a sweep's runs."""
_PLACES = ("base", "new", "head")
"""Options that a sweep takes from such a section for itself."""
OF_IMAGES = (
    *("weights", "base-root", "new-root", "trunk-cache", "no-trunk-cache", "trunk-budget"),
    *("workers", "max-pixels", "checkpoint-every"),
)
"""What a sweep of train-top takes from its section."""


@dataclass(frozen=True, slots=True)
class Section:
    """The options that a file gives to one command."""

    file: str
    command: str
    plain: Settings
    """Options at the top level and in the section of the command."""
    by_method: Mapping[str, Settings]
    """Options in the sub-sections, by method."""
    places: Mapping[bool, Settings] = field(default_factory=dict)
    """What a sweep has from the section of its runs: of heads (False), or of top blocks (True)."""

    @property
    def method(self) -> str:
        """The method, unless the command line names another."""
        return str(self.plain.get("method", "rehearsal"))

    def get(self, key: str, method: str) -> Any:
        """Return the value of an option with this method in force; None where there is none.

        Raises:
            ConfigFileError: If the value was written for a method with another default.
        """
        own = self.by_method.get(method, {})
        if key in own or RIVALS.get(key) in own:
            return own.get(key)
        if key in self.plain:
            own_default = _default(self.command, key, method)
            if own_default != _default(self.command, key, self.method):
                raise ConfigFileError(
                    f"{self.file} sets {key!r} in [{self.command}] for {self.method}, but {method}"
                    f" has a default of its own, {own_default}",
                    remedy=f"Write it under [{self.command}.{method}], or give --{key}.",
                )
        return self.plain.get(key)

    def keys(self, method: str) -> list[str]:
        """Return the options that have a value with this method in force, or a rival with one."""
        return list(dict.fromkeys([*self.plain, *self.by_method.get(method, {})]))


def section_of(file: ConfigFile, command: str, commands: Commands) -> Section:
    """Return the options that a file gives to a command.

    Raises:
        ConfigFileError: If a section or a key is unknown or in the wrong place, or a value has
            a type that no option takes.
    """
    shared = _shared(file, command, commands)
    if command == "sweep":
        of_heads, of_tops = (section_of(file, runs, commands).plain for runs in (RUNS, TOP_RUNS))
        places = {
            False: {key: value for key, value in of_heads.items() if key in _PLACES},
            True: {k: value for k, value in of_tops.items() if k in (*_PLACES, *OF_IMAGES)},
        }
    else:
        places = {}
    plain, by_method = {}, {}
    methods = _METHODS.get(command, ())
    for key, value in file.own(command).items():
        if key in commands[command] or not methods or not isinstance(value, dict):
            plain[key] = value
        elif key in methods:
            by_method[key] = value
        else:
            raise ConfigFileError(
                f"{file.name} has a section [{command}.{key}], but {command} has no method {key!r}",
                remedy=_nearest(key, methods, f"[{command}.{{}}]"),
            )
    _check(file, f"[{command}]", plain, command, commands)
    for method, settings in by_method.items():
        _check(file, f"[{command}.{method}]", settings, command, commands)
        _check_method(file, command, method, settings, commands)
    kept = {key: value for key, value in shared.items() if RIVALS.get(key) not in plain}
    return Section(file.name, command, {**kept, **plain}, by_method, places)


def _shared(file: ConfigFile, command: str, commands: Commands) -> dict[str, Any]:
    """Return the options outside of all sections that the command takes."""
    found = {}
    of_study = {name: options for name, options in commands.items() if name not in APART}
    for key, value in file.content.items():
        if key in (*commands, GRID):
            continue
        if not any(key in options for options in commands.values()):
            raise _unknown(file, key, value, command, commands)
        if command in APART and key in commands[command] and key not in file.own(command):
            raise ConfigFileError(
                f"{file.name} sets {key!r} outside of a section, but {command} reads its own alone",
                remedy=f"Write the value for {command} under [{command}].",
            )
        readers = [name for name, options in of_study.items() if key in options]
        if key in OF_IMAGES and command != "sweep":  # a sweep has them for runs of train-top
            readers = [name for name in readers if name != "sweep"]
        if key in NOT_SHARED:
            places = [f"[{each}]" for each in ([command] if command in readers else readers)]
            raise ConfigFileError(
                f"{file.name} sets {key!r} outside of a section, but it is not the same option in"
                f" {listed(readers)}",
                remedy=f"Write it under {listed(places, 'or')}.",
            )
        if command in readers:
            words(file.name, key, value, several=commands[command][key].multiple)
            found[key] = value
        elif command == "sweep" and readers in ([RUNS], [TOP_RUNS]):
            continue  # of its runs
        elif len(readers) < 2:
            raise _of_few(file, key, readers or [name for name in APART if key in commands[name]])
    return found


def _of_few(file: ConfigFile, key: str, names: Sequence[str]) -> ConfigFileError:
    has = "has" if len(names) == 1 else "have"
    return ConfigFileError(
        f"{file.name} sets {key!r} outside of a section, but only {listed(names)} {has} it",
        remedy=f"Write it under {listed([f'[{name}]' for name in names], 'or')}.",
    )


def _unknown(
    file: ConfigFile, key: str, value: object, command: str, commands: Commands
) -> ConfigFileError:
    if isinstance(value, dict):
        return ConfigFileError(
            f"{file.name} has a section [{key}], but no command of that name reads it",
            remedy=_nearest(key, [*commands, GRID], "[{}]"),
        )
    known = [*commands[command], *(each for options in commands.values() for each in options)]
    return ConfigFileError(
        f"{file.name} sets {key!r}, which is not an option",
        remedy=_nearest(key, dict.fromkeys(known), "{!r}", shown=commands[command]),
    )


def _check(
    file: ConfigFile, where: str, settings: Settings, command: str, commands: Commands
) -> None:
    """Refuse keys that are not options of the command, and types that these do not take."""
    options = commands[command]
    for key, value in settings.items():
        if key not in options:
            others = [name for name, its in commands.items() if key in its]
            raise ConfigFileError(
                f"{file.name} sets {key!r} in {where}, which is not an option of {command}",
                remedy=f"It is one of {listed(others)}."
                if others
                else _nearest(key, [*options, GRID] if command == "sweep" else options, "{!r}"),
            )
        words(file.name, key, value, several=options[key].multiple)


def _default(command: str, key: str, method: str) -> Any:
    """Return the default of an option that depends on the method; None for others."""
    if method not in _METHODS.get(command, ()):
        return None
    study = Study.of({"method": method}, top=command == TOP_RUNS)
    found = {settings_of()[name].key: value for name, value in defaults(study).items()}
    return None if key == "buffer" else found.get(key)


def _check_method(
    file: ConfigFile, command: str, method: str, settings: Settings, commands: Commands
) -> None:
    """Refuse options of a sub-section that have no effect there."""
    if "method" in settings:
        raise ConfigFileError(
            f"{file.name} sets 'method' in [{command}.{method}], which says it already",
            remedy="Remove it.",
        )
    # A buffer for initialisation alone, and an anchor that moves on, may be asked for on the
    # command line.
    said = {"method": method, "init_rows": "buffer"}
    if method == "ewc":
        said["ewc_mode"] = "online"
    names = [str(commands[command][key].name) for key in settings]
    study = Study.of(said, top=command == TOP_RUNS)
    for text in refusals([name for name in names if name in settings_of(top=True)], [study]):
        raise ConfigFileError(
            f"{file.name} has a mistake in [{command}.{method}]: {text}",
            remedy=f"Write it under [{command}], or remove it.",
        )


def _nearest(
    key: str, known: Iterable[str], form: str, *, shown: Iterable[str] | None = None
) -> str:
    names = list(known)
    if (found := closest(key, names)) is not None:
        return f"Did you mean {form.format(found)}?"
    return f"Known are: {', '.join(names if shown is None else shown)}."


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
