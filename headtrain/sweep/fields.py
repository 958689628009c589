"""What a sweep can vary: every field of `ExperimentConfig` and `HeadConfig` that holds one value.

The fields, their types and their defaults are read from the two classes.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import types
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from clinit.errors import ExperimentError
from clinit.headtrain.config import ExperimentConfig, HeadConfig

Value = bool | int | float | str | None
OTHER_NAMES = {"lambda": "lam"}
"""Names that the command line has for fields."""
OWNERS = (ExperimentConfig, HeadConfig)
_WORDS = {bool: "true or false", int: "an integer", float: "a number", str: "a word"}
_TRUTH = {"true": True, "false": False}
_DIGITS = 18
"""Of a whole number at most: beyond them lie the 64 bits of arrays and files."""
_LETTERS = 40
"""Of a refused value that are repeated."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field: its name, what it takes and its default."""

    name: str
    types: tuple[type, ...]
    words: tuple[Any, ...]
    """Values that are taken literally, `auto` for instance."""
    default: Value

    def parse(self, text: str) -> Value:
        """Return the value that `text` stands for.

        Raises:
            ExperimentError: If it is not one that the field takes.
        """
        if text in self.words:
            return text
        if type(None) in self.types and text == "none":
            return None
        if bool in self.types and text in _TRUTH:
            return _TRUTH[text]
        for kind in (int, float):
            if kind in self.types:
                try:
                    return _bounded(kind(text))
                except ValueError:  # also of more digits than Python reads
                    continue
        if str in self.types:
            return text
        raise self._refusal(text)

    def check(self, value: object) -> Value:
        """Return a value that already has a type, as a TOML file gives it.

        Raises:
            ExperimentError: If it is not one that the field takes.
        """
        if isinstance(value, str):
            return self.parse(value)
        if isinstance(value, bool):
            if bool in self.types:
                return value
        elif isinstance(value, int | float):
            with suppress(ValueError, OverflowError):
                if isinstance(value, int) and int in self.types:
                    return _bounded(value)
                if float in self.types:
                    return float(value)
        raise self._refusal(value)

    @property
    def is_integer(self) -> bool:
        """Whether numbers of this field are whole."""
        return int in self.types and float not in self.types

    @property
    def is_number(self) -> bool:
        """Whether the field takes numbers."""
        return int in self.types or float in self.types

    def _refusal(self, found: object) -> ExperimentError:
        takes = [word for kind, word in _WORDS.items() if kind in self.types]
        takes += [repr(word) for word in self.words]
        wanted, got = " or ".join(takes), repr(found)
        if len(got) > _LETTERS:
            got = f"{got[:_LETTERS]}…"
        if isinstance(found, str) and re.fullmatch(rf"-?\d{{{_DIGITS + 1},}}", found):
            wanted, got = f"at most {_DIGITS} digits", f"{len(found.strip('-')):,}"
        return ExperimentError(
            f"{self.name} takes {wanted}, got {got}",
            remedy=f"Write for example {self.name}={_shown(self.default)}.",
        )


@cache
def fields() -> dict[str, Field]:
    """Return the fields that a sweep can vary, those of the experiment first."""
    found = {}
    for owner in OWNERS:
        hints = get_type_hints(owner)
        for field in dataclasses.fields(owner):
            kinds, words = _alternatives(hints[field.name])
            if set(kinds) - {type(None)} <= set(_WORDS):
                default: Any = field.default
                found[field.name] = Field(field.name, kinds, words, default)
    return found


def field_named(name: str) -> Field:
    """Return a field by its name; dashes are as good as underscores.

    Raises:
        ExperimentError: If there is none; the nearest name is proposed.
    """
    plain = OTHER_NAMES.get(name, name.replace("-", "_"))
    if plain in fields():
        return fields()[plain]
    if plain in {field.name for owner in OWNERS for field in dataclasses.fields(owner)}:
        raise ExperimentError(
            f"{plain} cannot be varied: each of its values is a list",
            remedy="Vary seed, which draws class orders, or use `clinit train-head`.",
        )
    raise ExperimentError(
        f"a sweep has no field {name!r}",
        remedy=nearest(name, [*fields(), *OTHER_NAMES]),
    )


def nearest(name: str, known: list[str]) -> str:
    """Propose what a mistyped name may have meant, or name all that are known."""
    close = difflib.get_close_matches(name.replace("-", "_"), known, n=1, cutoff=0.6)
    return f"Did you mean {close[0]}?" if close else f"Known are: {', '.join(known)}."


def _alternatives(hint: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Split a type into plain types and literal values."""
    if get_origin(hint) in (Union, types.UnionType):
        parts = [_alternatives(each) for each in get_args(hint)]
        return sum((kinds for kinds, _ in parts), ()), sum((words for _, words in parts), ())
    if get_origin(hint) is Literal:
        return (), get_args(hint)
    return (hint,), ()


def _bounded(number: int | float) -> int | float:
    """Return `number`.

    Raises:
        ValueError: If it is a whole one of too many digits.
    """
    if isinstance(number, int) and abs(number) >= 10**_DIGITS:
        raise ValueError(f"more than {_DIGITS} digits")
    return number


def _shown(value: Value) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "none" if value is None else str(value)
