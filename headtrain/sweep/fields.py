"""What a sweep can vary: every setting of a study that holds one value, written as a word."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from typing import get_origin

from clinit.errors import ExperimentError
from clinit.headtrain.setting import Field
from clinit.headtrain.study import settings_of
from clinit.words import did_you_mean

Value = bool | int | float | str | None
_TRUTH = {"true": True, "false": False}
_DIGITS = 18
"""Most digits of an integer: more would not fit into the 64 bits of arrays and files."""
_LETTERS = 40
"""Most characters of a refused value that a message repeats."""


def parse(field: Field, text: str) -> Value:
    """Return the value that `text` stands for.

    Raises:
        ExperimentError: If it is not one that the field takes.
    """
    if text in field.words:
        return text
    if type(None) in field.types and text == "none":
        return None
    if bool in field.types and text in _TRUTH:
        return _TRUTH[text]
    for kind in (int, float):
        if kind in field.types:
            try:
                return _bounded(kind(text))
            except ValueError:  # raised for more digits than Python reads, too
                continue
    raise _refusal(field, text)


def typed(field: Field, value: object) -> Value:
    """Return a value that already has a type, as a TOML file gives it.

    Raises:
        ExperimentError: If it is not one that the field takes.
    """
    if isinstance(value, str):
        return parse(field, value)
    if isinstance(value, bool):
        if bool in field.types:
            return value
    elif isinstance(value, int | float):
        with suppress(ValueError, OverflowError):
            if isinstance(value, int) and int in field.types:
                return _bounded(value)
            if float in field.types:
                return float(value)
    raise _refusal(field, value)


@cache
def fields(*, top: bool = False) -> Mapping[str, Field]:
    """Return the settings that a sweep can vary, by name."""
    every = settings_of(top=top)
    return {name: field for name, field in every.items() if not _is_list(field)}


def field_named(name: str, *, top: bool = False) -> Field:
    """Return a setting by its name or its option, with dashes or underscores.

    Raises:
        ExperimentError: If there is none; the nearest name is proposed.
    """
    every = settings_of(top=top)
    by_option = {field.key.replace("-", "_"): field for field in every.values()}
    plain = name.replace("-", "_")
    found = every.get(plain) or by_option.get(plain)
    if found is None:
        options = [each for each in by_option if each not in every]
        raise ExperimentError(
            f"a sweep of {'train-top' if top else 'train-head'} has no field {name!r}",
            remedy=nearest(name, [*fields(top=top), *options]),
        )
    if _is_list(found):
        raise ExperimentError(
            f"{found.name} cannot be varied: each of its values is a list",
            remedy="Vary seed, which draws class orders, or use `clinit train-head`.",
        )
    return found


def nearest(name: str, known: Iterable[str]) -> str:
    """Propose what a mistyped name may have meant, or name all that are known."""
    names = list(known)
    return did_you_mean(name, names) or f"Known are: {', '.join(names)}."


def _is_list(field: Field) -> bool:
    return any(get_origin(kind) is tuple for kind in field.types)


def _refusal(field: Field, found: object) -> ExperimentError:
    wanted, got = field.takes, repr(found)
    if len(got) > _LETTERS:
        got = f"{got[:_LETTERS]}…"
    if isinstance(found, str) and re.fullmatch(rf"-?\d{{{_DIGITS + 1},}}", found):
        wanted, got = f"at most {_DIGITS} digits", f"{len(found.strip('-')):,}"
    return ExperimentError(
        f"{field.name} takes {wanted}, got {got}",
        remedy=did_you_mean(str(found), field.words)
        or f"Write for example {field.name}={example(field)}.",
    )


def _bounded(number: int | float) -> int | float:
    """Return `number`.

    Raises:
        ValueError: If it is an integer of too many digits.
    """
    if isinstance(number, int) and abs(number) >= 10**_DIGITS:
        raise ValueError(f"more than {_DIGITS} digits")
    return number


def example(field: Field) -> str:
    """Return a value that the field takes, as a word."""
    if field.default is None and field.setting.otherwise is not None:
        return re.split("[,;]", field.setting.otherwise)[0]
    if isinstance(field.default, bool):
        return str(field.default).lower()
    return "none" if field.default is None else str(field.default)
