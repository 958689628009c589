"""A grid: the values that each field takes, written as words or in a table of TOML.

    init=random,least-square      a list
    seed=0:5                      0, 1, 2, 3, 4
    lr=1e-4..1e-2:log5            five values, evenly on a log scale, both ends included
    weight_decay=0..0.1:lin3      three values, evenly
    buffer,iterations=24000,600;192000,1200    fields that vary together: two pairs, not four

Parts of a list may be ranges: seed=0:3,7.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import product
from typing import Any

import numpy as np

from clinit.errors import ExperimentError
from clinit.headtrain.protocol.study.rules import DECIDING, refusals, settings_of
from clinit.headtrain.protocol.study.study import Study
from clinit.setting import Imported, Setting
from clinit.words import did_you_mean, nearest

Value = bool | int | float | str | None
LIMIT = 100_000
"""Maximum number of combinations, and of values per field; more are a typing error. Each
combination is a run with a folder of six files. Listing 100,000 took 24 s and 0.6 GB (2026-11-21,
one core of an AMD EPYC), before any training."""
_TRUTH = {"true": True, "false": False}
# At most the digits of 64 bits, because Python refuses to read thousands of digits.
_INTEGERS = re.compile(r"(-?\d{1,18}):(-?\d{1,18})")
_NUMBERS = re.compile(r"([^:]+?)\.\.([^:]+)(?::(lin|log)(\d{0,18}))?")
_DIGITS = 6
"""Significant digits of the values of a range, so that names of runs contain the exact value."""


Choice = tuple[Any, ...]
"""Values of a field, or rows of values of several fields that vary together."""
Grid = Mapping[str, Choice]
"""Values by the name of a field, or by the names of several fields with commas between; all other
fields have their default."""


def field_named(name: str, *, top: bool = False) -> Setting:
    """Return a setting by its name or its option, with dashes or underscores.

    Raises:
        ExperimentError: If no setting has this name; the remedy proposes the nearest name.
    """
    every = settings_of(top=top)
    by_option = {field.key.replace("-", "_"): field for field in every.values()}
    plain = name.strip().replace("-", "_")
    found = every.get(plain) or by_option.get(plain)
    if found is None:
        raise ExperimentError(
            f"a sweep of {'train-top' if top else 'train-head'} has no field {name!r}",
            remedy=nearest(name, dict.fromkeys([*every, *by_option])),
        )
    if found.items:
        raise ExperimentError(
            f"{found.name} cannot be varied: each of its values is a list",
            remedy="Vary seed, which draws class orders, or use `clinit train-head`.",
        )
    return found


def parse(field: Setting, text: str) -> Value:
    """Return the value of a field that `text` means.

    Raises:
        ExperimentError: If the field does not take this value.
    """
    if text in field.words:
        return text
    if type(None) in field.types and text == "none":
        return None
    if bool in field.types and text in _TRUTH:
        return _TRUTH[text]
    if isinstance(own := field.taken(text), Imported):
        return own
    for kind in (int, float):
        if kind in field.types:
            with suppress(ValueError):
                return kind(text)
    if str in field.types:
        return text
    raise ExperimentError(
        f"{field.name} takes {field.takes}, got {text!r}",
        remedy=did_you_mean(text, field.words)
        or f"Write {field.name}=first,second without spaces; the default is {field.default}.",
    )


def parse_grid(words: Sequence[str], *, top: bool = False) -> dict[str, Choice]:
    """Read `field=values` words.

    Raises:
        ExperimentError: If a word has another form, if a field is unknown or repeated, or if it
            does not take a value.
    """
    grid: dict[str, Choice] = {}
    for word in words:
        name, equals, values = word.partition("=")
        if not equals:
            raise ExperimentError(
                f"{word!r} is not of the form field=values",
                remedy="Write for example lr=1e-4,1e-3 or seed=0:5.",
            )
        _add(grid, name, values, top=top)
    return grid


def grid_of(table: Mapping[str, Any], *, top: bool = False) -> dict[str, Choice]:
    """Read a table of a TOML file; a value is a word as above, a number or a list.

    Raises:
        ExperimentError: If a field is unknown, or does not take a value.
    """
    grid: dict[str, Choice] = {}
    for name, content in table.items():
        _add(grid, name, content, top=top)
    return grid


def _add(grid: dict[str, Choice], names: str, content: Any, *, top: bool) -> None:
    fields = [field_named(each, top=top) for each in names.split(",")]
    key = ",".join(field.name for field in fields)
    for field in fields:
        if [*names_in(grid), *key.split(",")].count(field.name) > 1:
            raise ExperimentError(
                f"{field.name} is given twice",
                remedy=f"Give all its values at once: {field.name}=first,second.",
            )
    if len(fields) == 1:
        grid[key] = values_of(fields[0], _parts(content))
        return
    rows = [_parts(row) for row in (content if isinstance(content, list) else [content])]
    if isinstance(content, str):
        rows = [row.split(",") for row in content.split(";")]
    found = []
    for row in rows:
        if len(row) != len(fields):
            raise ExperimentError(
                f"{key} has {','.join(row)!r}, expected {len(fields)} values with commas between",
                remedy="Write for example buffer,iterations=24000,600;192000,1200.",
            )
        found.append(tuple(parse(f, part.strip()) for f, part in zip(fields, row, strict=True)))
    grid[key] = tuple(dict.fromkeys(found))


def _parts(content: Any) -> list[str]:
    """Return the words of a value: a text, a number, a truth value, or a list of these."""
    if isinstance(content, str):
        return content.split(",")
    values = content if isinstance(content, list) else [content]
    return [str(value).lower() if isinstance(value, bool) else str(value) for value in values]


def values_of(field: Setting, parts: Sequence[str]) -> tuple[Value, ...]:
    """Return the values of the parts of a word after `field=`, such as `0:3` and `7`.

    Raises:
        ExperimentError: If the field does not take a value.
    """
    values: list[Value] = []
    for part in (part.strip() for part in parts):
        if field.is_number and (found := _NUMBERS.fullmatch(part)):
            values += _spread(field, part, *found.groups(""))
        elif field.is_number and (found := _INTEGERS.fullmatch(part)):
            first, stop = int(found[1]), int(found[2])
            if not 0 < stop - first <= LIMIT:
                raise _not_a_range(field, part, f"it must contain 1 to {LIMIT:,} numbers")
            values += range(first, stop)
        else:
            values.append(parse(field, part))
    return tuple(dict.fromkeys(values)) or (parse(field, ""),)


def _spread(field: Setting, part: str, low: str, high: str, scale: str, number: str) -> list[Value]:
    ends = parse(field, low), parse(field, high)
    if not all(isinstance(end, int | float) and math.isfinite(end) for end in ends):
        raise _not_a_range(field, part, "it needs two numbers")
    first, last = float(ends[0] or 0), float(ends[1] or 0)
    if first >= last or (scale == "log" and first <= 0):
        raise _not_a_range(field, part, "it must go upwards, on a log scale from above 0")
    if not 2 <= (count := int(number or 0)) <= LIMIT:
        raise _not_a_range(field, part, f"it needs a count of 2 to {LIMIT:,}")
    values = (np.geomspace if scale == "log" else np.linspace)(first, last, count).tolist()
    if field.is_integer:
        return [round(value) for value in values]
    return [float(f"{value:.{_DIGITS}g}") for value in values]


def _not_a_range(field: Setting, part: str, why: str) -> ExperimentError:
    return ExperimentError(
        f"{field.name}={part} is not a range: {why}",
        remedy="Write a:b for whole numbers below b, or a..b:lin5 or a..b:log5 for five of them.",
    )


def names_in(grid: Grid) -> list[str]:
    """Return the fields that a grid names."""
    return [name for key in grid for name in key.split(",")]


def _rows(key: str, choice: Choice) -> list[dict[str, Value]]:
    """Return the values of a choice by the name of their field."""
    names = key.split(",")
    rows = choice if len(names) > 1 else [(value,) for value in choice]
    return [dict(zip(names, row, strict=True)) for row in rows]


def values_in(grid: Grid, name: str) -> tuple[Value, ...] | None:
    """Return the values that a field takes; None if the grid does not list them."""
    for key, choice in grid.items():
        if name in key.split(","):
            return tuple(dict.fromkeys(row[name] for row in _rows(key, choice)))
    return None


def only(grid: Grid, name: str, value: Value) -> dict[str, Choice]:
    """Return a grid in which a field has only one of its values."""
    for key, choice in grid.items():
        if name in key.split(","):
            rows = zip(choice, _rows(key, choice), strict=True)
            return {**grid, key: tuple(each for each, row in rows if row[name] == value)}
    return {**grid, name: (value,)}


def merge(under: Grid, over: Grid) -> dict[str, Choice]:
    """Return one grid with the fields of both; `over` wins.

    Raises:
        ExperimentError: If `over` has only some of the fields that vary together in `under`.
    """
    named = {*names_in(over)}
    kept = {key: choice for key, choice in under.items() if named.isdisjoint(key.split(","))}
    for key in under.keys() - kept.keys():
        together = key.split(",")
        if not named.issuperset(together):
            raise ExperimentError(
                f"{key} vary together, but only {', '.join(sorted(named & {*together}))} is given"
                " again",
                remedy=f"Give all of them: {key}=... with a value for each.",
            )
    return {**kept, **over}


def check_size(grids: Sequence[Grid]) -> None:
    """Count the combinations of all grids, without making them.

    Raises:
        ExperimentError: If there are more than `LIMIT` combinations.
    """
    count = sum(math.prod(map(len, grid.values())) for grid in grids)
    if count > LIMIT:
        raise ExperimentError(
            f"{count:,} combinations; a sweep trains at most {LIMIT:,}",
            remedy="Give fewer values, or split the grid into several sweeps.",
        )


def run_of(settings: Mapping[str, Any], *, top: bool = False) -> Study:
    """Return the run with these settings; all other and all idle settings have defaults.

    Raises:
        ExperimentError: If a setting does not take its value, or if settings exclude each other.
    """
    try:
        return Study.of(settings, top=top).reduced()
    except ValueError as error:
        command = "train-top" if top else "train-head"
        raise ExperimentError(
            str(error), remedy=f"See `clinit {command} --help` for what each option takes."
        ) from error


def runs_of(grid: Grid, *, top: bool = False) -> Iterator[Study]:
    """Yield the run of every combination of values, the last field varying fastest.

    Raises:
        ExperimentError: If a field does not take a value.
    """
    for settings in _combinations(grid):
        yield run_of(settings, top=top)


def _combinations(grid: Grid) -> Iterator[dict[str, Value]]:
    for parts in product(*(_rows(key, choice) for key, choice in grid.items())):
        yield {name: value for part in parts for name, value in part.items()}


def refuse_idle(grids: Iterable[Grid], asked: Iterable[str], *, top: bool = False) -> None:
    """Check that each field is read by at least one run of the grids.

    Args:
        grids: Grids, including the fields that decide which other fields are read.
        asked: Names of the fields to check.
        top: Whether the runs train top blocks.

    Raises:
        ExperimentError: If the methods of all runs ignore one of the fields.
    """
    studies: list[Study] = []
    for grid in grids:
        deciding = {n: values for n in DECIDING if (values := values_in(grid, n)) is not None}
        studies += [Study.of(settings, top=top) for settings in _combinations(deciding)]
    if found := refusals(asked, studies):
        raise ExperimentError(found[0], remedy="Leave it out of the grid.")


def distinct(runs: Iterable[Study]) -> list[Study]:
    """Return the runs without repetitions."""
    return list({run.identity: run for run in reversed(list(runs))}.values())[::-1]
