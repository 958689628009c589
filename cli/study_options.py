"""Options of the command line, made from the settings of a study.

    @takes_studies(top=False)
    def train_head(context: Context, base: Path, studies: list[Study], ...) -> None:

Typer sees an option for each setting instead of the parameter `studies`; the function receives
the studies that they describe, resolved.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import re
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import typer

from clinit.cli.config import Defaults
from clinit.cli.console import note
from clinit.cli.context import Context, given, overridden
from clinit.errors import ExperimentError
from clinit.headtrain.setting import Field
from clinit.headtrain.study import (
    HEAD_METHODS,
    PAPER_INITS,
    RIVALS,
    TOP_METHODS,
    Study,
    refusals,
    settings_of,
)

SEVERAL: Mapping[str, tuple[str, ...]] = {
    "seed": ("0",),
    "init": PAPER_INITS,
    "scale": ("calibrated",),
}
"""Settings of which one command takes several values, one run for each; and their defaults."""
_GIVES_WAY_TO = ("method", "full_rank", "init_rows", "ewc_mode")
"""Settings that, given on the command line, may make settings of a file idle."""
_TOP_PRECISIONS = ("float32", "bf16")


def takes_studies(*, top: bool) -> Callable[[Command], Command]:
    """Let a command take the settings of a study, and receive the studies in `studies`.

    Args:
        top: Whether blocks of the backbone learn as well.
    """
    every = settings_of(top=top)

    def build(values: Mapping[str, Any]) -> list[Study]:
        return _studies(values["context"], {name: values[name] for name in every}, top=top)

    options = {name: _annotation(field, top=top) for name, field in every.items()}
    defaults = {
        name: None if name in SEVERAL else _typed_default(field) for name, field in every.items()
    }
    return expand("studies", options, defaults, build)


def takes(name: str, owner: type) -> Callable[[Command], Command]:
    """Let a command take the settings of a dataclass, and receive its value in `name`."""
    from clinit.headtrain.setting import fields_of

    every = fields_of(owner)

    def build(values: Mapping[str, Any]) -> Any:
        try:
            return owner(**{name: each.taken(values[name]) for name, each in every.items()})
        except ValueError as error:
            raise typer.BadParameter(_with_option(str(error), every)) from error

    options = {each: _option(field, _type(field, field.words)) for each, field in every.items()}
    return expand(name, options, {each: every[each].default for each in every}, build)


def _annotation(field: Field, *, top: bool) -> Any:
    words = field.words
    if field.name == "method":
        words = TOP_METHODS if top else HEAD_METHODS
    elif field.name == "precision" and top:
        words = _TOP_PRECISIONS
    kind = _type(field, words)
    if field.name in SEVERAL:
        # Typer takes no lists of literals. Numbers are read by `_listed`, ranges included.
        one = StrEnum(field.name, {word: word for word in words}) if words else str
        kind = list[one] | None  # type: ignore[valid-type]
    return _option(field, kind, SEVERAL.get(field.name, ()))


def _type(field: Field, words: Iterable[str]) -> Any:
    """Return the type that Typer reads; a mixture of words and numbers is read as text."""
    if field.setting.file:
        return Path | None
    if field.words and field.is_number:
        return str
    kinds = [kind for kind in field.types if kind is not type(None)]
    kind = Literal[tuple(words)] if field.words else kinds[0]
    if field.items is float:
        kind = list[float]
    return kind | None if type(None) in field.types else kind


def _typed_default(field: Field) -> Any:
    return str(field.default) if field.words and field.is_number else field.default


def _option(field: Field, kind: Any, several: tuple[str, ...] = ()) -> Any:
    """Return the annotation of an option; `several`: the defaults where it takes several values."""
    setting = field.setting
    shown: Any = ", ".join(several) if several else setting.otherwise
    if shown is None:
        shown = field.default is not None and field.default is not False
    bounded = field.is_number and not field.words and not several
    names = [field.option]
    if field.types == (bool,) and field.default:
        names = [f"{field.option}/--no-{field.key}"]
    return Annotated[
        kind,
        typer.Option(
            *names,
            help=setting.help + _repeated(field, several=bool(several)),
            min=setting.least if bounded else None,
            max=setting.most if bounded else None,
            metavar=_metavar(field, several=bool(several)),
            show_default=shown,
            rich_help_panel=field.panel,
        ),
    ]


def _metavar(field: Field, *, several: bool) -> str | None:
    """Return what the option takes, where its type does not say it."""
    if field.setting.file:
        return "FILE"
    if several and not field.words:
        return "NUMBER|RANGE"
    number = "NUMBER" if float in field.types else "INTEGER"
    return "|".join((number, *field.words)) if field.words and field.is_number else None


def _repeated(field: Field, *, several: bool) -> str:
    """Return what the help says of an option that can be given more than once."""
    if field.items is float:
        return " Repeatable."
    if not several:
        return ""
    listed = "" if field.words else " Several as 0:3 (0, 1 and 2) or 0,3,7."
    return f"{listed} Repeatable, one run each."


def _studies(context: Context, values: dict[str, Any], *, top: bool) -> list[Study]:
    """Return the distinct studies of all combinations of starts."""
    from clinit.headtrain.stream.scenario import read_class_order

    for name, rival in RIVALS.items():
        if overridden(context, name, rival):
            values[name] = None
    if values["class_order"] is not None:
        values["class_order"] = read_class_order(values["class_order"])
    for name, field in settings_of(top=top).items():
        if field.words and field.is_number:
            values[name] = _number_or_word(field, values[name])
    several = {
        name: _listed(
            settings_of(top=top)[name], [str(word) for word in values.pop(name) or default]
        )
        for name, default in SEVERAL.items()
    }
    try:
        asked = [
            Study.of({**values, **dict(zip(several, each, strict=True))}, top=top)
            for each in itertools.product(*several.values())
        ]
        _refuse_idle(context, asked, settings_of(top=top))
        # Random rows have no scale, solved heads no start: once is enough.
        return list(dict.fromkeys(study.resolved() for study in asked))
    except ValueError as error:
        raise typer.BadParameter(_with_option(str(error), settings_of(top=top))) from error


def _listed(field: Field, words: list[str]) -> list[Any]:
    """Return what the words of an option list, those of numbers in the language of a sweep."""
    if field.words:
        return words
    from clinit.headtrain.sweep.grid import values_of

    try:
        return [value for word in words for value in values_of(field, word)]
    except ExperimentError as error:
        told = str(error).replace(f"{field.name}=", f"{field.option} ", 1)
        raise typer.BadParameter(
            f"{_with_option(told, {field.name: field})}. Write one ({field.option} 3), a range"
            f" ({field.option} 0:3 is 0, 1 and 2) or a list ({field.option} 0,3,7)"
        ) from error


def _with_option(message: str, every: Mapping[str, Field]) -> str:
    """Return a message that begins with the name of a setting with its option instead."""
    name, space, rest = message.partition(" ")
    if name not in every:
        return message
    for other in (each for each in every if "_" in each):
        rest = re.sub(rf"\b{other}\b", every[other].option, rest)
    return f"{every[name].option}{space}{rest}"


def _refuse_idle(context: Context, studies: list[Study], every: Mapping[str, Field]) -> None:
    """Refuse settings that no study reads; those of a file give way to the command line."""
    typed = [name for name in every if given(context, name) == "commandline"]
    in_file = [name for name in every if given(context, name) == "default_map"]
    leading = any(name in typed for name in _GIVES_WAY_TO)
    asked = typed if leading else [name for name in every if name in (*typed, *in_file)]
    for text in refusals(asked, studies):
        raise typer.BadParameter(text)
    if leading and isinstance(context.default_map, Defaults):
        unused = [every[name] for name in in_file if refusals([name], studies)]
        _note_unused(unused, studies[0], context.default_map.file)


def _note_unused(settings: list[Field], study: Study, file: str) -> None:
    """Name the settings of a file that gave way, in one line for each option that won."""
    keys: dict[str, list[str]] = {}
    for each in settings:
        option = study.idle("method")[each.name].partition(":")[0]
        keys.setdefault(option, []).append(each.key)
    for option, names in keys.items():
        verb = "is" if len(names) == 1 else "are"
        note(f"{option}: {', '.join(names)} of {file} {verb} not used")


def _number_or_word(field: Field, text: str) -> int | float | str:
    try:
        return int(text) if field.is_integer else float(text)
    except ValueError:
        return text


Command = TypeVar("Command", bound=Callable[..., Any])


def expand(
    name: str,
    options: Mapping[str, Any],
    defaults: Mapping[str, Any],
    build: Callable[[Mapping[str, Any]], Any],
) -> Callable[[Command], Command]:
    """Replace a parameter with options; `build` makes its value from all that was given."""

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)

        @functools.wraps(command)
        def wrapper(**values: Any) -> Any:
            built = build(values)
            own = {key: value for key, value in values.items() if key not in options}
            return command(**own, **{name: built})

        parameters: list[inspect.Parameter] = []
        for parameter in signature.parameters.values():
            if parameter.name == name:
                parameters += [
                    inspect.Parameter(
                        key,
                        inspect.Parameter.KEYWORD_ONLY,
                        default=defaults[key],
                        annotation=options[key],
                    )
                    for key in options
                ]
            else:
                parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
        wrapper.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {each.name: each.annotation for each in parameters}
        del wrapper.__wrapped__  # Typer would look through it
        return wrapper  # type: ignore[return-value]

    return decorate
