"""What the page shows, as plain values: made from the report alone, the same for the same runs.

Every text is printable: what a browser would obey (an override of the writing direction, a line
separator) is written out, as on a terminal.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import polars as pl

from clinit.analysis.figures.line import starts_of
from clinit.analysis.figures.style import COLOURS, looks_of
from clinit.analysis.metrics.efficiency import Reading
from clinit.analysis.page.curves import curves
from clinit.analysis.page.tables import setting_text, tables
from clinit.analysis.report.measures import duration
from clinit.analysis.report.notes import conclusions
from clinit.analysis.report.run import Row, RunSummary
from clinit.analysis.report.settings import NOTHING, common, differences, labels, settings, shown
from clinit.words import number_of, visible

NAMES = {"lam": "lambda", "lr": "learning rate"}
"""Settings whose name is no word."""


def title(runs: Sequence[RunSummary]) -> str:
    """Return the name of the page: the data sets that the runs share, and how many there are."""
    names = [shown(runs[0], side) for side in ("base", "new")]
    shared = all(len({shown(run, side) for run in runs}) == 1 for side in ("base", "new"))
    count = number_of(len(runs), "run")
    return f"{' → '.join(names)}, {count}" if shared and NOTHING not in names else count


def facts_of(runs: Sequence[RunSummary]) -> dict[str, Any]:
    """Return pairs of names and texts: the data, what varies, and all that is shared."""
    scales = {run.scale for run in runs if run.init != "random" and not run.is_solved}
    names = differences(runs).names
    varying = ["init", *(["scale"] if len(scales) > 1 else []), *names]
    shared = [name for name in settings(runs[0]) if name not in varying]
    texts = {name: shown(runs[0], name) for name in shared}
    if len(scales) == 1:
        texts = {"scale": scales.pop(), **texts}
    return {
        "data": [
            *_side(runs, "base"),
            *_side(runs, "new"),
            *_transform(runs),
            ["in common", common(runs, ("init", "scale", *names))],
        ],
        "varying": [[_name(name), _values(runs, name)] for name in varying if name != "run"],
        "settings": [[_name(name), text] for name, text in texts.items() if text != NOTHING],
    }


def _values(runs: Sequence[RunSummary], name: str) -> str:
    values = {
        "init": [run.init for run in runs],
        "scale": [run.scale for run in runs if run.init != "random"],
    }.get(name, [shown(run, name) for run in runs])
    return ", ".join(dict.fromkeys(value for value in values if value != NOTHING))


def _side(runs: Sequence[RunSummary], side: Literal["base", "new"]) -> list[list[str]]:
    """Return what is known about a data set that all runs share."""
    texts = {_described(run, side) for run in runs}
    return [[f"{side} classes", texts.pop()]] if len(texts) == 1 else []


def _described(run: RunSummary, side: Literal["base", "new"]) -> str:
    is_base = pl.col("task") == 0
    classes = run.record.classes.filter(is_base if side == "base" else ~is_base)
    words = [f"{number_of(len(classes), 'class')}"]
    if side == "new":
        words[0] += f" in {classes['task'].n_unique():,} tasks"
        words.append(f"{classes['train_rows'].sum():,} training images")
    words.append(f"{classes['val_rows'].sum():,} test images")
    path = run.record.info.get(side, {}).get("path")
    return ", ".join(words) + (f" ({path})" if path else "")


def _transform(runs: Sequence[RunSummary]) -> list[list[str]]:
    prints = [run.record.info.get("base", {}).get("fingerprint") or {} for run in runs]
    found = {each.get("transform") for each in prints}
    return [["images", str(found.pop())]] if len(found) == 1 and None not in found else []


def _name(setting: str) -> str:
    return NAMES.get(setting, setting.replace("_", " "))


PageData = dict[str, Any]


def page_data(
    runs: Sequence[RunSummary], notes: Sequence[str], reading: Reading = "equal-level"
) -> PageData:
    """Return what the page shows: strings, numbers, lists and mappings by name, as in JSON.

    Args:
        runs: In the order of the report.
        notes: Those of the report.
        reading: What the gain is compared by.
    """
    rows = [run.row() for run in runs]
    facts = facts_of(runs)
    facts["data"] += [["result", sentence] for sentence in conclusions(runs)]
    counts = "does not count" if runs[0].skip_start else "counts too"
    counts = f"A point of a curve; the one before the first step of a task {counts}."
    choices, look = fields(runs), groups(runs)
    content: PageData = {
        "title": title(runs),
        "asked": facts,
        "tables": tables(runs, reading),
        "terms": [["evaluation", counts]],
        "fields": [{"name": each.name, "values": each.values} for each in choices],
        "looks": [{"label": each.label, "colour": each.colour, "dash": each.dash} for each in look],
        "curves": curves(runs),
        "runs": [
            {
                "label": label,
                "look": next(n for n, group in enumerate(look) if run in group.runs),
                "choices": [field.of(run) for field in choices],
                "matrix": matrix(row),
                "record": repetition(run),
            }
            for run, row, label in zip(runs, rows, labels(runs), strict=True)
        ],
        "notes": list(notes),
    }
    printed: PageData = _printable(content)
    return printed


def _printable(value: Any) -> Any:
    """Return `value` with control characters written out, and None for what is no number."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _printable(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_printable(each) for each in value]
    return value


_ABOUT = {"device": "device", "started": "started", "git_commit": "commit of clinit"}


def repetition(run: RunSummary) -> dict[str, Any]:
    """Return the path, the settings, the versions and the commands of a run, as texts."""
    info: Mapping[str, Any] = run.record.info
    about = [[words, _json_text(info[name])] for name, words in _ABOUT.items() if info.get(name)]
    if info.get("seconds") is not None:
        about.insert(0, ["time", duration(info["seconds"])])
    command = info.get("command")
    return {
        "path": str(run.path) if run.record.path else None,
        "about": about,
        "settings": _pairs(run.config),
        "versions": _pairs(info.get("versions") or {}),
        "command": shlex.join(command) if command else None,
        "rerun": shlex.join(["clinit", "rerun", str(run.path)]) if run.record.path else None,
    }


def _pairs(values: Mapping[str, Any]) -> list[list[str]]:
    return [[str(name), _json_text(value)] for name, value in values.items() if value is not None]


def _json_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def matrix(row: Row) -> dict[str, Any]:
    """Return the matrix of a row of the report, and what is made from it.

    `cells` has a line after each task, and a column on the base classes and on those of each task.
    """
    return {
        "tasks": [task["task"] for task in row["tasks"]],
        "cells": [
            [None if value is None else round(value, 2) for value in line]
            for line in row["accuracy_matrix"]
        ],
        "incremental": _percent(row["average_incremental_accuracy"]),
        "forgetting": _percent(row["forgetting"]),
    }


def _percent(value: float | None) -> str | None:
    return None if value is None else f"{value:.2f} %"


DASHES: Mapping[str, tuple[int, ...]] = {"-": (), "--": (7, 3), "-.": (9, 3, 2, 3), ":": (2, 3)}
"""Lengths of strokes and gaps, in pixels, of the lines of the figures."""
MOST_VALUES = 24
"""A setting of more values has no switch: the curves could not be told apart either."""


@dataclass(frozen=True, slots=True)
class Group:
    """Runs that differ only in their seed."""

    label: str
    colour: int
    """Its place in the colours of the figure."""
    dash: tuple[int, ...]
    runs: tuple[RunSummary, ...]


@dataclass(frozen=True, slots=True)
class Field:
    """A setting by which runs are switched on and off."""

    name: str
    values: tuple[str, ...]

    def of(self, run: RunSummary) -> int | None:
        """Return the place of the run's value; None where the setting means nothing to it."""
        text = setting_text(run, self.name)
        return self.values.index(text) if text != NOTHING else None


def groups(runs: Sequence[RunSummary]) -> list[Group]:
    """Return the runs in groups that look alike, as in the figures, in the order of the runs."""
    starts = starts_of(runs)
    return [
        Group(start.name, COLOURS.index(look.colour), DASHES[look.line], start.runs)
        for start, look in zip(starts, looks_of(starts), strict=True)
    ]


def fields(runs: Sequence[RunSummary]) -> list[Field]:
    """Return the settings that tell runs apart: initialisation and scale, the seed last."""
    names = dict.fromkeys(name for name in differences(runs).names if name != "run")
    ordered = sorted(names, key=lambda name: name == "seed")
    found = []
    for name in ("init", "scale", *ordered):
        texts = dict.fromkeys(setting_text(run, name) for run in runs)
        values = tuple(text for text in texts if text != NOTHING)
        if 1 < len(values) <= MOST_VALUES:
            found.append(Field(name, values))
    return found
