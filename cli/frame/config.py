"""Read a TOML file of options, which become defaults of a command, and the grids of a sweep.

    tasks = 5               # for every command with this option

    [train-top]             # for one command
    rank = 48

    [train-top.ewc]         # for one command with one method
    lr = 8e-4

    [[sweep.grid]]          # the values that a sweep combines
    seed = "0:5"

A narrower section overrides a wider one, and the command line overrides the file.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from clinit.cli.frame.context import Context
from clinit.errors import ConfigFileError, ExperimentError
from clinit.files.paths import is_file
from clinit.files.text import TextFileError, read_text
from clinit.headtrain.protocol.study.parts import HEAD_METHODS, TOP_METHODS
from clinit.headtrain.protocol.study.rules import settings_of
from clinit.headtrain.top.images import ImageOptions
from clinit.setting import fields_of
from clinit.words import closest, nearest

if TYPE_CHECKING:
    from clinit.headtrain.protocol.sweep.grid import Choice, Grid

CommandOptions = Mapping[str, Mapping[str, Any]]
"""Command -> key -> parameter, for the commands with the option --config."""
GRID = "grid"
"""Key of the grids in the section of a sweep."""
RUNS, TOP_RUNS = "train-head", "train-top"
"""The commands whose sections are the defaults of a sweep's runs."""
APART = ("add", "remember")
"""Commands that change a model. They read only their own section, because options outside of all
sections, such as `iterations`, are for experiments."""
OF_IMAGES = tuple(each.key for each in fields_of(ImageOptions).values())
"""Options that a sweep reads from the section train-top, in addition to the data."""
_PLACES = ("base", "new", "head")
_METHODS = {RUNS: HEAD_METHODS, TOP_RUNS: TOP_METHODS}


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A file of options."""

    name: str
    content: Mapping[str, Any]

    def section(self, command: str) -> Mapping[str, Any]:
        """Return the section of a command, including its sub-sections."""
        section = self.content.get(command, {})
        if not isinstance(section, dict):
            raise ConfigFileError(
                f"{self.name} gives {command!r} a value, but it is the name of a section",
                remedy=f"Write [{command}] and its options below it.",
            )
        return section

    def method(self, command: str) -> str:
        """Return the method that the file sets for a command, or the default."""
        return str(self.options(command, "").get("method", "rehearsal"))

    def options(self, command: str, method: str) -> dict[str, Any]:
        """Return the options of a command with a method; narrow sections override wide sections."""
        own = self.section(command)
        return {**({} if command in APART else self.content), **own, **own.get(method, {})}

    def grids(self) -> list[Mapping[str, Any]]:
        """Return the grids of a sweep, the tables of [[sweep.grid]]."""
        given = self.section("sweep").get(GRID, [])
        tables = given if isinstance(given, list) else [given]
        if not all(isinstance(each, dict) and each for each in tables):
            raise ConfigFileError(
                f"{self.name} contains a grid that is empty or not a table",
                remedy='Write [[sweep.grid]] and below it lines such as lr = "1e-4..1e-2:log5".',
            )
        return tables


def open_config(path: Path) -> ConfigFile:
    """Read a file of options or, if no such file exists, the recipe of that name.

    Raises:
        ConfigFileError: If neither exists, or the text is not TOML.
    """
    name, is_recipe = str(path), not is_file(path) and str(path) in recipe_names()
    try:
        text = recipe(name) if is_recipe else read_text(path)
        name = f"the recipe {path}" if is_recipe else name
        return ConfigFile(name, tomllib.loads(text))
    except TextFileError as error:
        told = f"cannot read the options in {path}: {error}"
        raise ConfigFileError(told, remedy=_proposal(path.stem)) from error
    except (ValueError, RecursionError) as error:  # ValueError: TOML, or a number that is too long
        raise ConfigFileError(
            f"{name} is not TOML: {error}",
            remedy='Write one option per line, as in `iterations = 600` or `init = ["random"]`.',
        ) from error


def check(file: ConfigFile, command: str, commands: CommandOptions) -> None:
    """Check that all sections and keys are known, and that `command` has the keys of its section.

    Raises:
        ConfigFileError: If a name is unknown.
    """
    options, methods = commands[command], _METHODS.get(command, ())
    every = [*options, *(key for each in commands.values() for key in each)]
    for key, value in file.content.items():
        if isinstance(value, dict):
            _check_known(file, key, [*commands], "a section that no command reads")
        else:
            _check_known(file, key, [*every, *commands], "no option of any command")
    for key, value in file.section(command).items():
        if key in methods and isinstance(value, dict):
            for inner in value:
                known = [each for each in options if each != "method"]
                _check_known(file, inner, known, f"no option in [{command}.{key}]")
        elif (command, key) != ("sweep", GRID):
            known = [*methods] if isinstance(value, dict) and methods else [*options]
            _check_known(file, key, known, f"no option or method in [{command}]")


def _check_known(file: ConfigFile, key: str, known: list[str], what: str) -> None:
    if key not in known:
        raise ConfigFileError(
            f"{file.name} sets {key!r}, which is {what}", remedy=nearest(key, dict.fromkeys(known))
        )


def commands_with_files(root: Any) -> CommandOptions:
    """Return the options of every command of `root` that has --config, by command and key."""
    found = {}
    for group in (root, root.commands["head"]):
        for command in map(group.commands.__getitem__, group.commands):
            if any("--config" in parameter.opts for parameter in command.params):
                options = [each for each in command.params if each.opts[0].startswith("--")]
                read = [each for each in options if each.expose_value and not each.is_eager]
                found[command.name] = {each.opts[0].removeprefix("--"): each for each in read}
    return found


class Defaults:
    """Defaults by parameter name, looked up after the options on the command line are parsed.

    So the method is known at every look-up.
    """

    def __init__(self, context: Context, file: ConfigFile, options: Mapping[str, Any]) -> None:
        self._context, self._file, self.file = context, file, file.name
        self._options = {option.name: (key, option) for key, option in options.items()}

    def get(self, name: str, default: None = None) -> str | list[str] | None:
        """Return the default of an option as text; None if the file does not set it."""
        if name not in self._options:
            return default
        key, option = self._options[name]
        if (value := self._values().get(key)) is None:
            return default
        values = value if option.multiple and isinstance(value, list) else [value]
        if not all(isinstance(each, str | int | float) for each in values):
            raise ConfigFileError(
                f"{self.file} gives {key!r} {value!r}, expected one value"
                + (" or a list of values" if option.multiple else ""),
                remedy=f"Write a string, a number, true or false: `{key} = ...`.",
            )
        texts = [str(each) for each in values]  # checked like values from the command line
        return texts if option.multiple else texts[0]

    def _values(self) -> dict[str, Any]:
        command, typed = str(self._context.command.name), self._context.params
        own = self._file.options(command, str(typed.get("method") or self._file.method(command)))
        if command != "sweep":
            return own
        runs, more = (TOP_RUNS, OF_IMAGES) if typed.get("top") else (RUNS, ())
        given = self._file.options(runs, "")
        return {key: given[key] for key in given if key in (*_PLACES, *more)} | own


def read_config(context: Context, path: Path | None) -> Path | None:
    """Make the options of a file the defaults of the command.

    --config is eager, so this runs before the other options are parsed.
    """
    if path is not None and not context.resilient_parsing:  # not while a shell completes a word
        file, command = open_config(path), str(context.command.name)
        commands = commands_with_files(context.find_root().command)
        for each in (command, RUNS, TOP_RUNS) if command == "sweep" else (command,):
            check(file, each, commands)
        context.default_map = cast(Any, Defaults(context, file, commands[command]))
    return path


ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE|RECIPE",
        is_eager=True,
        callback=read_config,
        help="TOML file of options, or a recipe of `clinit recipe list`. The command line wins.",
    ),
]


def grids_of(path: Path | None, words: list[str], *, top: bool = False) -> list[dict[str, Choice]]:
    """Return the grids of a sweep, which trains their union.

    Each grid of the file has the file's settings of train-head (of train-top with `top`) as
    defaults; `words`, the fields on the command line, override both.

    Raises:
        ConfigFileError: If neither the file nor `words` contain a grid, or a grid of the file has
            a wrong value.
        ExperimentError: If `words` contain a wrong value or a field that no run reads, a grid is
            empty, or there are too many combinations.
    """
    from clinit.headtrain.protocol.sweep import grid

    typed = grid.parse_grid(words, top=top)
    file = ConfigFile("the command line", {}) if path is None else open_config(path)
    if not (tables := file.grids()) and not typed:
        raise ConfigFileError(
            f"{file.name} contains no grid",
            remedy="Give fields to vary, such as init=random,class-mean seed=0:5, or write"
            ' [[sweep.grid]] in the file of options and below it lines such as seed = "0:5".',
        )
    grids: list[dict[str, Choice]] = []
    try:
        for table in tables or [{}]:
            own = grid.grid_of(table, top=top)
            over = grid.merge(own, typed)
            laid = _over_settings(file, over, top=top)
            # Do not refuse options of a section that the method of this grid does not read.
            asked = grid.names_in(own if "method" in grid.names_in(over) else laid[0])
            grid.refuse_idle(laid, {*asked} - {*grid.names_in(typed)}, top=top)
            grids += laid
    except ExperimentError as error:
        raise ConfigFileError(f"{file.name}: {error}", remedy=error.remedy) from error
    grid.refuse_idle(grids, grid.names_in(typed), top=top)
    grid.check_size(grids)
    return grids


def _over_settings(file: ConfigFile, over: Grid, *, top: bool) -> list[dict[str, Choice]]:
    """Complete a grid with the settings of the file; make a grid per method if settings differ."""
    from clinit.headtrain.protocol.sweep import grid

    command = TOP_RUNS if top else RUNS
    methods = [str(each) for each in grid.values_in(over, "method") or (file.method(command),)]
    names = {field.key: name for name, field in settings_of(top=top).items()}
    free = {key for key, name in names.items() if name not in grid.names_in(over)}
    given = [file.options(command, method).items() for method in methods]
    under = [grid.grid_of({k: v for k, v in own if k in free}, top=top) for own in given]
    if all(each == under[0] for each in under):
        return [grid.merge(under[0], over)]
    return [
        grid.merge(each, grid.only(over, "method", method))
        for method, each in zip(methods, under, strict=True)
    ]


_FOLDER = files("clinit.cli") / "recipes"


def recipe_names() -> list[str]:
    """Return the names of the recipes in alphabetical order."""
    return sorted(path.name.removesuffix(".toml") for path in _FOLDER.iterdir())


def recipe(name: str) -> str:
    """Return the text of a recipe.

    Raises:
        ConfigFileError: If there is no recipe of that name.
    """
    if name not in recipe_names():
        raise ConfigFileError(f"there is no recipe {name!r}", remedy=_proposal(name))
    return (_FOLDER / f"{name}.toml").read_text(encoding="utf-8")


def _proposal(name: str) -> str:
    if (found := closest(name, recipe_names())) is not None:
        return f"Did you mean the recipe {found!r}?"
    return "Give a TOML file, or a recipe of `clinit recipe list`."
