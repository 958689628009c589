"""A grid: the values that each field takes, written as words or in a table of TOML.

    init=random,least-square      a list
    seed=0:5                      0, 1, 2, 3, 4
    lr=1e-4..1e-2:log5            five values, evenly on a log scale, both ends included
    weight_decay=0..0.1:lin3      three values, evenly
    lr=1e-4..1e-2:log             any value between: for a search only
    buffer,iterations=24000,600;192000,1200    fields that vary together: two pairs, not four

Parts of a list may be ranges: seed=0:3,7.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, get_origin

import numpy as np

from clinit.errors import ExperimentError
from clinit.headtrain.setting import Field
from clinit.headtrain.study import RIVALS, settings_of
from clinit.words import did_you_mean, nearest

Value = bool | int | float | str | None
_TRUTH = {"true": True, "false": False}
_MOST_DIGITS = 18
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


def _is_list(field: Field) -> bool:
    return any(get_origin(kind) is tuple for kind in field.types)


def _refusal(field: Field, found: object) -> ExperimentError:
    wanted, got = field.takes, repr(found)
    if len(got) > _LETTERS:
        got = f"{got[:_LETTERS]}…"
    if isinstance(found, str) and re.fullmatch(rf"-?\d{{{_MOST_DIGITS + 1},}}", found):
        wanted, got = f"at most {_MOST_DIGITS} digits", f"{len(found.strip('-')):,}"
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
    if isinstance(number, int) and abs(number) >= 10**_MOST_DIGITS:
        raise ValueError(f"more than {_MOST_DIGITS} digits")
    return number


def example(field: Field) -> str:
    """Return a value that the field takes, as a word."""
    if field.default is None and field.setting.otherwise is not None:
        return re.split("[,;]", field.setting.otherwise)[0]
    if isinstance(field.default, bool):
        return str(field.default).lower()
    return "none" if field.default is None else str(field.default)


# No more digits than 64 bits hold: Python refuses to read thousands of them.
_INTEGERS = re.compile(r"(-?\d{1,18}):(-?\d{1,18})")
_NUMBERS = re.compile(r"([^:]+?)\.\.([^:]+):(lin|log)(\d{0,18})")
LIMIT = 100_000
"""Most combinations, and most values per field: more is a typing error. Each is a run of its
own with a folder of six files; to list so many took 24 s and 0.6 GB (2026-11-21, one core of an
AMD EPYC), before the first of them was trained."""
_DIGITS = 6
"""Significant digits of the values of a range: a run's name then holds the exact value."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Every value between two numbers, the ends included; on a log scale or not."""

    low: float
    high: float
    log: bool

    def __str__(self) -> str:
        return f"{self.low:g}..{self.high:g}:{'log' if self.log else 'lin'}"


@dataclass(frozen=True, slots=True)
class Together:
    """Values of several fields that vary together."""

    names: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]

    def __len__(self) -> int:
        return len(self.rows)


Choice = Interval | tuple[Value, ...] | Together
Grid = Mapping[str, Choice]
"""What each field takes, by its name, or by the names of several with commas between; fields that
are not named keep their default."""


def names_in(grid: Grid) -> list[str]:
    """Return the fields that a grid names."""
    return [name for key in grid for name in key.split(",")]


def values_in(grid: Grid, name: str) -> tuple[Value, ...] | None:
    """Return the values that a field takes; None where the grid does not list them."""
    for key, choice in grid.items():
        if isinstance(choice, Together) and name in choice.names:
            place = choice.names.index(name)
            return tuple(dict.fromkeys(row[place] for row in choice.rows))
        if key == name and isinstance(choice, tuple):
            return choice
    return None


def only(grid: Grid, name: str, value: Value) -> dict[str, Choice]:
    """Return a grid with one of the values that a field takes."""
    found = dict(grid)
    for key, choice in grid.items():
        if isinstance(choice, Together) and name in choice.names:
            place = choice.names.index(name)
            rows = tuple(row for row in choice.rows if row[place] == value)
            return found | {key: Together(choice.names, rows)}
    return found | {name: (value,)}


def parse_grid(words: Sequence[str], *, top: bool = False) -> dict[str, Choice]:
    """Read `field=values` words.

    Raises:
        ExperimentError: If a word has another form, a field is unknown or named twice, or a
            value is not one that its field takes.
    """
    grid: dict[str, Choice] = {}
    for word in words:
        name, equals, values = word.partition("=")
        if not equals:
            raise ExperimentError(
                f"{word!r} is not of the form field=values",
                remedy="Write for example lr=1e-4,1e-3 or seed=0:5.",
            )
        fields = [field_named(each, top=top) for each in name.split(",")]
        _check_once(grid, [field.name for field in fields])
        key = ",".join(field.name for field in fields)
        grid[key] = (
            _together(fields, values.split(";"))
            if len(fields) > 1
            else _choice(fields[0], values.split(","))
        )
    return grid


def values_of(field: Field, text: str) -> tuple[Value, ...]:
    """Return the values that the part of a word behind `field=` lists, such as `0:3,7`.

    Raises:
        ExperimentError: If it does not list values that the field takes.
    """
    choice = _choice(field, text.split(","))
    if isinstance(choice, tuple):
        return choice
    raise _not_a_range(field, text, "does not say how many values")


def grid_of(table: Mapping[str, Any], *, top: bool = False) -> dict[str, Choice]:
    """Read a table of a TOML file; a value is a word as above, a number or a list.

    Raises:
        ExperimentError: If a field is unknown, or a value is not one that its field takes.
    """
    grid: dict[str, Choice] = {}
    for name, content in table.items():
        if "," in name:
            rows = content if isinstance(content, list) else [content]
            words = ";".join(
                ",".join(map(str, row)) if isinstance(row, list) else str(row) for row in rows
            )
            (found,) = parse_grid([f"{name.replace(' ', '')}={words}"], top=top).items()
            _check_once(grid, found[0].split(","))
            grid |= dict([found])
            continue
        field = field_named(name, top=top)
        _check_once(grid, [field.name])
        if isinstance(content, str):
            grid[field.name] = _choice(field, content.split(","))
            continue
        values = content if isinstance(content, list) else [content]
        grid[field.name] = _distinct(field, [typed(field, value) for value in values])
    return grid


def merge(under: Grid, over: Grid) -> dict[str, Choice]:
    """Return one grid with the fields of both; `over` wins, and so does its kind of buffer.

    Raises:
        ExperimentError: If neither holds a field.
    """
    named = {*names_in(over)}
    taken = named | {RIVALS[name] for name in named if name in RIVALS}
    kept = {key: choice for key, choice in under.items() if taken.isdisjoint(key.split(","))}
    for key in under:
        together = key.split(",")
        if len(together) > 1 and not taken.isdisjoint(together) and not named.issuperset(together):
            raise ExperimentError(
                f"{key} vary together, but only {', '.join(sorted(named & {*together}))} is given"
                " anew",
                remedy=f"Give all of them: {key}=... with a value for each.",
            )
    if not (merged := {**kept, **over}):
        raise ExperimentError(
            "the grid is empty",
            remedy="Name what to vary: init=random,class-mean,least-square seed=0:5, or --config.",
        )
    return merged


def check_size(grids: Sequence[Grid]) -> None:
    """Count the combinations of all grids, without making them.

    Raises:
        ExperimentError: If there are more than `LIMIT`.
    """
    sizes = [
        math.prod(len(c) for c in grid.values() if not isinstance(c, Interval)) for grid in grids
    ]
    if sum(sizes) > LIMIT:
        largest = grids[sizes.index(max(sizes))]
        factors = [
            f"{len(choice):,} of {name}"
            for name, choice in largest.items()
            if not isinstance(choice, Interval) and len(choice) > 1
        ]
        where = f" in {len(grids)} grids, most of them" if len(grids) > 1 else ":"
        raise ExperimentError(
            f"{sum(sizes):,} combinations{where} {' x '.join(factors)}; a sweep trains at most"
            f" {LIMIT:,}",
            remedy="Give fewer values, split the grid into several sweeps, or let"
            " `--search optuna` choose among them.",
        )


def _check_once(grid: Grid, names: Sequence[str]) -> None:
    for name in names:
        if [*names_in(grid), *names].count(name) > 1:
            raise ExperimentError(
                f"{name} is given twice",
                remedy=f"Give all its values at once: {name}=first,second.",
            )


def _together(fields: Sequence[Field], rows: Sequence[str]) -> Together:
    """Read the values of fields that vary together, one row at a time."""
    names = tuple(field.name for field in fields)
    found = []
    for row in rows:
        parts = [part.strip() for part in row.split(",")]
        if len(parts) != len(fields) or not all(parts):
            raise ExperimentError(
                f"{','.join(names)} has {row!r}, expected {len(fields)} values with commas between",
                remedy="Write for example buffer,iterations=24000,600;192000,1200.",
            )
        found.append(tuple(parse(field, part) for field, part in zip(fields, parts, strict=True)))
    return Together(names, tuple(dict.fromkeys(found)))


def _choice(field: Field, parts: Sequence[str]) -> Interval | tuple[Value, ...]:
    values: list[Value] = []
    for part in (part.strip() for part in parts):
        if not part:
            raise _no_value(field)
        if field.is_number and (found := _NUMBERS.fullmatch(part)):
            interval = _interval(field, part, *found.groups()[:3])
            if not found[4]:
                if len(parts) > 1:
                    raise _not_a_range(field, part, "a range without a count stands alone")
                return interval
            _check_count(field, part, len(values) + int(found[4]))
            values += _spread(field, interval, part, int(found[4]))
        elif field.is_number and (found := _INTEGERS.fullmatch(part)):
            first, stop = int(found[1]), int(found[2])
            if first >= stop:
                raise _not_a_range(field, part, "it holds no number")
            _check_count(field, part, len(values) + stop - first)
            values += range(first, stop)
        else:
            values.append(parse(field, part))
    return _distinct(field, values)


def _check_count(field: Field, part: str, count: int) -> None:
    if count > LIMIT:
        raise ExperimentError(
            f"{field.name}={part} has {count:,} values; a sweep trains at most {LIMIT:,} runs",
            remedy="Give fewer values: a:b for whole numbers below b, or a..b:log5 for five.",
        )


def _distinct(field: Field, values: Sequence[Value]) -> tuple[Value, ...]:
    if not values:
        raise _no_value(field)
    return tuple(dict.fromkeys(values))


def _interval(field: Field, part: str, low: str, high: str, scale: str) -> Interval:
    ends = parse(field, low), parse(field, high)
    if not all(isinstance(end, int | float) and math.isfinite(end) for end in ends):
        raise _not_a_range(field, part, "needs two numbers")
    first, last = float(ends[0] or 0), float(ends[1] or 0)
    if first >= last:
        raise _not_a_range(field, part, "must go upwards")
    if scale == "log" and first <= 0:
        raise _not_a_range(field, part, "a log scale needs positive numbers")
    return Interval(first, last, scale == "log")


def _spread(field: Field, interval: Interval, part: str, count: int) -> list[Value]:
    if count < 2:
        raise _not_a_range(field, part, "needs a count of at least 2")
    space = np.geomspace if interval.log else np.linspace
    values = space(interval.low, interval.high, count).tolist()
    if field.is_integer:
        return [round(value) for value in values]
    return [float(f"{value:.{_DIGITS}g}") for value in values]


def _no_value(field: Field) -> ExperimentError:
    return ExperimentError(
        f"{field.name} has no value, or an empty one in its list",
        remedy=f"Write for example {field.name}={example(field)}, without spaces.",
    )


def _not_a_range(field: Field, part: str, why: str) -> ExperimentError:
    return ExperimentError(
        f"{field.name}={part} is not a range: {why}",
        remedy="Write a:b for whole numbers below b, or a..b:lin5 or a..b:log5 for five of them.",
    )
