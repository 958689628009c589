"""Settings: fields of frozen dataclasses that declare what they mean and what they take.

    tasks: Annotated[int, Setting("Number of tasks.", least=1)] = 5

Such a field gives its check, its command-line option with the help text, its values in the grid
of a sweep and its key in a file, so that each setting is described once.
"""

from __future__ import annotations

import math
import types
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

from clinit.words import did_you_mean, listed

MOST = 10**12
"""Largest integer where a field names none: more than anybody has or waits for."""
_WORDS = {bool: "true or false", int: "an integer", float: "a number", str: "a word"}


@dataclass(frozen=True, slots=True)
class Setting:
    """What a field means, and what it takes beyond its type."""

    help: str
    """Meaning and unit, as the command line prints it."""
    least: int | float | None = None
    above: int | float | None = None
    """The value must be larger than this."""
    most: int | float | None = None
    option: str | None = None
    """Name on the command line without leading dashes; default: that of the field."""
    otherwise: str | None = None
    """The default in words, where None stands for one that depends on other settings."""
    file: bool = False
    """Whether the command line takes the name of a file that holds the value."""
    top_help: str | None = None
    """The meaning where blocks of the backbone learn as well, if it is another."""
    top_otherwise: str | None = None
    """The default in words there, if it is another."""
    panel: str | None = None
    """Heading that the help puts it under, where it is not that of its part."""
    of_heads: bool = False
    """Whether it means something where the head learns alone, and there only."""

    @property
    def of_top(self) -> Setting:
        """The setting as it is where blocks of the backbone learn as well."""
        return replace(
            self,
            help=self.top_help or self.help,
            otherwise=self.top_otherwise or self.otherwise,
        )


class Part:
    """A frozen dataclass of settings, checked when it is made."""

    __slots__ = ()
    panel: ClassVar[str] = "Options"
    """Heading that the help puts its settings under."""

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            ValueError: If a field holds a value that it does not take.
        """
        for each in fields_of(type(self)).values():  # type: ignore[arg-type]  # it is hashable
            if len(each.path) == 1:  # nested parts have checked their own
                each.check(getattr(self, each.path[0]))


@dataclass(frozen=True, slots=True)
class Field:
    """One setting of a dataclass."""

    name: str
    """Unique among all settings: with the name of the part in front where it is nested."""
    path: tuple[str, ...]
    """Attributes that lead to it."""
    setting: Setting
    types: tuple[Any, ...]
    """Types that it takes, `NoneType` and lists of words included."""
    words: tuple[str, ...]
    """Values that it takes literally."""
    default: Any
    panel: str
    """Heading that the help puts it under."""

    @property
    def option(self) -> str:
        """The command-line option."""
        return f"--{self.key}"

    @property
    def key(self) -> str:
        """The key in a file: the option without leading dashes."""
        return self.setting.option or self.name.replace("_", "-")

    @property
    def is_number(self) -> bool:
        """Whether the field takes numbers."""
        return int in self.types or float in self.types

    @property
    def is_integer(self) -> bool:
        """Whether the field takes integers only."""
        return int in self.types and float not in self.types

    @property
    def takes(self) -> str:
        """The values that the field takes, in words."""
        kinds = [word for kind, word in _WORDS.items() if kind in self.types]
        several = "a list of numbers" if self.items is float else "a list of words"
        return " or ".join([*kinds, *map(repr, self.words)]) or several

    def taken(self, value: Any) -> Any:
        """Return a value as the field holds it: a list as a tuple, a whole number as a float."""
        if isinstance(value, list) and self.is_list:
            return tuple(float(each) if self.items is float else each for each in value)
        if isinstance(value, int) and not isinstance(value, bool) and self.is_float:
            return float(value)
        return value

    @property
    def is_float(self) -> bool:
        """Whether it takes numbers of which none needs to be whole."""
        return float in self.types

    @property
    def is_list(self) -> bool:
        """Whether its values are lists."""
        return self.items is not None

    @property
    def items(self) -> Any:
        """The type of what its lists hold; None where its values are no lists."""
        lists = [kind for kind in self.types if get_origin(kind) is tuple]
        return get_args(lists[0])[0] if lists else None

    def check(self, value: Any) -> None:
        """Refuse a value that the field does not take.

        Raises:
            ValueError: If its type is wrong, it is not one of the words, or it is out of range.
        """
        if value is None and type(None) in self.types:
            return
        if isinstance(value, str) and value in self.words:
            return
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if number and self.is_number and not (self.is_integer and isinstance(value, float)):
            self._check_range(value)
            return
        if isinstance(value, bool) and bool in self.types:
            return
        plain = isinstance(value, str) and str in self.types
        if plain or self._is_list(value):
            for each in value if self.items is float else ():
                self._check_range(each)
            return
        if self.words and not self.is_number:
            raise ValueError(
                f"{self.name} must be one of {listed(self.words, 'or')}, got {value!r}"
                + did_you_mean(str(value), self.words, lead=". ")
            )
        raise ValueError(f"{self.name} takes {self.takes}, got {value!r}")

    def _is_list(self, value: Any) -> bool:
        """Return whether a value is a list of what the field takes, and holds anything."""
        kinds = {str: str, float: int | float}
        return (
            isinstance(value, tuple)
            and self.is_list
            and bool(value)
            and all(isinstance(each, kinds[self.items]) for each in value)
            and not any(isinstance(each, bool) for each in value)
        )

    def _check_range(self, value: int | float) -> None:
        setting = self.setting
        if not math.isfinite(value):
            raise ValueError(f"{self.name} must be finite, got {value}")
        if setting.least is not None and value < setting.least:
            raise ValueError(f"{self.name} must be at least {setting.least:,}, got {value:,}")
        if setting.above is not None and value <= setting.above:
            what = "positive" if setting.above == 0 else f"larger than {setting.above:,}"
            raise ValueError(f"{self.name} must be {what}, got {value:,}")
        most = MOST if setting.most is None and self.is_integer else setting.most
        if most is not None and value > most:
            raise ValueError(f"{self.name} must be at most {most:,}, got {value:,}")


@cache
def fields_of(*owners: type) -> Mapping[str, Field]:
    """Return the settings of dataclasses by name, those of nested ones included, in their order."""
    found = {}
    for owner in owners:
        hints = get_type_hints(owner, include_extras=True)
        for each in fields(owner):
            hint = hints[each.name]
            if isinstance(hint, type) and is_dataclass(hint):
                for inner in fields_of(hint).values():
                    name = f"{each.name}_{inner.name}"
                    found[name] = replace(inner, name=name, path=(each.name, *inner.path))
            elif get_origin(hint) is Annotated:
                kind, setting = get_args(hint)
                kinds, words = _alternatives(kind)
                path = (each.name,)
                panel = setting.panel or getattr(owner, "panel", Part.panel)
                found[each.name] = Field(
                    each.name, path, setting, kinds, words, each.default, panel
                )
    return types.MappingProxyType(found)


def _alternatives(hint: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Split a type into plain types and literal values."""
    if get_origin(hint) in (Union, types.UnionType):
        parts = [_alternatives(each) for each in get_args(hint)]
        return sum((kinds for kinds, _ in parts), ()), sum((words for _, words in parts), ())
    if get_origin(hint) is Literal:
        return (), get_args(hint)
    return (hint,), ()
