"""The options that a file gives to one command."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from clinit.cli.config_toml import GRID, ConfigFile, Settings
from clinit.cli.config_value import words
from clinit.errors import ConfigFileError
from clinit.headtrain.study import (
    HEAD_METHODS,
    TOP_METHODS,
    Study,
    defaults,
    refusals,
    settings_of,
)
from clinit.words import closest, listed

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
