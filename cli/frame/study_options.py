"""Make command-line options from the settings of a study.

    @takes_studies(top=False)
    def train_head(context: Context, base: Path, studies: list[Study], ...) -> None:

Typer sees an option for each setting instead of the parameter `studies`; the function receives the
resolved studies that the options describe.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import typer

from clinit.cli.frame.config import Defaults
from clinit.cli.frame.console import note
from clinit.cli.frame.context import Context, given
from clinit.errors import ExperimentError
from clinit.headtrain.heads.start.settings import PAPER_INITS
from clinit.headtrain.protocol.study.parts import HEAD_METHODS, TOP_METHODS
from clinit.headtrain.protocol.study.rules import DECIDING, refusals, settings_of
from clinit.headtrain.protocol.study.study import Study
from clinit.setting import Imported, Setting, fields_of

SEVERAL: Mapping[str, tuple[str, ...]] = {
    "seed": ("0",),
    "init": PAPER_INITS,
    "scale": ("calibrated",),
}
"""Settings that may have several values in one command, with their default values."""


def takes_studies(*, top: bool) -> Callable[[Command], Command]:
    """Replace the parameter `studies` of a command with an option for each setting of a study.

    Args:
        top: Whether the command also trains blocks of the backbone.
    """
    every = settings_of(top=top)

    def build(values: Mapping[str, Any]) -> list[Study]:
        return _studies(values["context"], {name: values[name] for name in every}, top=top)

    words = {"method": TOP_METHODS if top else HEAD_METHODS}
    words |= {"precision": ("float32", "bf16")} if top else {}
    options = {
        name: _option(each, words.get(name, each.words), SEVERAL.get(name, ()))
        for name, each in every.items()
    }
    return expand("studies", options, build)


def takes(
    name: str, owner: type, *, but: Sequence[str] = (), panels: Mapping[str, str] | None = None
) -> Callable[[Command], Command]:
    """Replace the parameter `name` of a command with an option for each setting of `owner`.

    Settings in `but` get no option and keep their defaults. `panels` gives other headings.
    """
    every = {
        key: replace(each, panel=(panels or {}).get(f"{each.panel}", each.panel))
        for key, each in fields_of(owner).items()
        if key not in but
    }

    def build(values: Mapping[str, Any]) -> Any:
        try:
            taken = {name: each.taken(values[name]) for name, each in every.items()}
            for name, each in every.items():
                each.check(taken[name])
            return owner(**taken)
        except ValueError as error:
            raise typer.BadParameter(_with_options(error, every)) from error

    return expand(name, {key: _option(each, each.words) for key, each in every.items()}, build)


def _option(each: Setting, words: Sequence[str], several: tuple[str, ...] = ()) -> tuple[Any, Any]:
    """Return the annotation of an option, and its default value.

    Args:
        each: The setting.
        words: The words that the command allows as values.
        several: Default values of an option that takes several values, one run for each.
    """
    metavar, listed, is_open = each.metavar, "", Imported in each.types
    kinds: list[Any] = [kind for kind in each.types if kind is not type(None)]
    kind = Literal[tuple(words)] if words else kinds[0]
    if each.joined:
        kind, metavar = str, "<str>"
    elif each.file:
        kind, metavar = Path, "FILE"
    elif _is_mixed(each):
        kind = str
        metavar = "|".join(("NUMBER" if float in each.types else "INTEGER", *words))
    elif is_open and not several:
        kind, metavar = str, "|".join((*words, "MODULE:FUNCTION"))
    elif several:
        # Typer supports no lists of literals. `_listed` reads numbers, including ranges.
        closed = words and not is_open
        kind = list[StrEnum(each.name, {word: word for word in words}) if closed else str]  # type: ignore[misc]
        metavar = "START|MODULE:FUNCTION" if is_open else None if words else "NUMBER|RANGE"
        listed = " Repeatable, for one run each."
        listed = f" START: {', '.join(words)}.{listed}" if is_open else listed
        listed = listed if words else f" Several as 0:3 (0, 1 and 2) or 0,3,7.{listed}"
    elif each.items:
        kind, listed = list[each.items], " Repeatable."  # type: ignore[name-defined]
    shown: Any = ", ".join(several) or each.otherwise
    if shown is None:
        shown = each.default is not None and each.default is not False
    bounded = each.is_number and metavar is None
    on_and_off = each.types == (bool,) and each.default
    names = [f"{each.option}/--no-{each.key}" if on_and_off else each.option]
    names += [each.short] if each.short else []
    told: dict[str, Any] = {"metavar": metavar, "show_default": shown, "help": each.help + listed}
    told |= {"min": each.least, "max": each.most} if bounded else {}
    option = typer.Option(*names, rich_help_panel=each.panel, **told)
    default = str(each.default) if _is_mixed(each) and each.default is not None else each.default
    default = inspect.Parameter.empty if each.default is MISSING else default
    kind = kind | None if several or type(None) in each.types else kind
    return Annotated[kind, option], None if several else default


def _is_mixed(each: Setting) -> bool:
    """Return whether a setting takes words and numbers, so that its option is read as text."""
    return bool(each.words) and each.is_number


def _studies(context: Context, values: dict[str, Any], *, top: bool) -> list[Study]:
    """Return the distinct studies of all combinations of the values in `SEVERAL`."""
    every = settings_of(top=top)
    if values["class_order"] is not None:
        from clinit.headtrain.protocol.stream.scenario import read_class_order

        values["class_order"] = read_class_order(values["class_order"])
    for name in filter(lambda name: _is_mixed(every[name]) and values[name] is not None, every):
        with suppress(ValueError):
            values[name] = int(values[name]) if every[name].is_integer else float(values[name])
    several = {
        name: _listed(every[name], [str(word) for word in values.pop(name) or default])
        for name, default in SEVERAL.items()
    }
    try:
        asked = [
            Study.of({**values, **dict(zip(several, each, strict=True))}, top=top)
            for each in itertools.product(*several.values())
        ]
        _refuse_idle(context, asked, every)
        # Resolved studies may repeat: random rows have no scale, solved heads have no start.
        return list(dict.fromkeys(study.resolved() for study in asked))
    except ValueError as error:
        raise typer.BadParameter(_with_options(error, every)) from error


def _listed(each: Setting, words: list[str]) -> list[Any]:
    """Return the values of a repeatable option; numbers are written as in the grid of a sweep."""
    if each.words:
        return words
    from clinit.headtrain.protocol.sweep.grid import values_of

    try:
        return [value for word in words for value in values_of(each, word.split(","))]
    except ExperimentError as error:
        told = str(error).replace(f"{each.name}=", f"{each.option} ", 1)
        raise typer.BadParameter(
            f"{_with_options(told, {each.name: each})}. Write one ({each.option} 3), a range"
            f" ({each.option} 0:3 is 0, 1 and 2) or a list ({each.option} 0,3,7)"
        ) from error


def _with_options(message: object, every: Mapping[str, Setting]) -> str:
    def named(found: re.Match[str]) -> str:
        return every[found[0]].option if found[0] in every else found[0]

    return re.sub(r"^\w+|\b[a-z]+_\w+", named, str(message))


def _refuse_idle(context: Context, studies: list[Study], every: Mapping[str, Setting]) -> None:
    """Refuse settings that no study reads; if `DECIDING` is typed, only note settings of a file."""
    typed = [name for name in every if given(context, name) == "commandline"]
    in_file = [name for name in every if given(context, name) == "default_map"]
    leading = [every[name].option for name in DECIDING if name in typed]
    asked = typed if leading else [name for name in every if name in (*typed, *in_file)]
    for text in refusals(asked, studies):
        raise typer.BadParameter(text)
    unused = [every[name].key for name in in_file if refusals([name], studies)]
    if unused and isinstance(context.default_map, Defaults):
        note(f"unused with {', '.join(leading)}: {', '.join(unused)} of {context.default_map.file}")


Command = TypeVar("Command", bound=Callable[..., Any])


def expand(
    name: str, options: Mapping[str, tuple[Any, Any]], build: Callable[[Mapping[str, Any]], Any]
) -> Callable[[Command], Command]:
    """Replace the parameter `name` of a command with options; `build` makes its value from all."""

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)

        @functools.wraps(command)
        def wrapper(**values: Any) -> Any:
            built = build(values)
            own = {key: value for key, value in values.items() if key not in options}
            return command(**own, **{name: built})

        parameters, kind = list[inspect.Parameter](), inspect.Parameter.KEYWORD_ONLY
        for parameter in signature.parameters.values():
            if parameter.name == name:
                parameters += [
                    inspect.Parameter(key, kind, default=default, annotation=annotation)
                    for key, (annotation, default) in options.items()
                ]
            else:
                parameters.append(parameter.replace(kind=kind))
        wrapper.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {each.name: each.annotation for each in parameters}
        del wrapper.__wrapped__  # else Typer reads the signature of `command` through it
        return wrapper  # type: ignore[return-value]

    return decorate
