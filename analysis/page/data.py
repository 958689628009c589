"""The page as plain values, a function of the report alone.

Control characters that a browser would obey (an override of the writing direction, a line
separator) become escapes, as on a terminal.

Curves are thinned so that spikes survive and the page stays small. A curve is cut at the task
switches. If a task has too many points, its steps are divided into spans of equal length. The
lowest and the highest value of each span stay at their iterations, and so do the first and the last
value of the task. Curves with equal iterations share one list of them, stored as differences.
"""

from __future__ import annotations

import base64
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import polars as pl
from jaxtyping import Float, Int
from rich.text import Text

from clinit.analysis.figures.curves import ends_of
from clinit.analysis.figures.line import spans_decades, starts_of
from clinit.analysis.figures.style import COLOURS, looks_of
from clinit.analysis.report.run import SIDES, Row, RunSummary
from clinit.analysis.report.settings import Names, by_data, common, labels, shown
from clinit.analysis.report.table import NOTHING, Cell, Column
from clinit.analysis.report.tables import collapse_table, ranking, run_table
from clinit.headtrain.protocol.record.format import finite
from clinit.words import duration, number_of, visible

NAMES = {"lam": "lambda", "lr": "learning rate"}
"""Readable names of settings whose name is not a word."""


def title(runs: Sequence[RunSummary]) -> str:
    """Return the title of the page: the data sets that the runs share, and the number of runs."""
    names = [shown(runs[0], side) for side in runs[0].record.sides]
    shared = all(len({shown(run, side) for run in runs}) == 1 for side in ("base", "new"))
    count = number_of(len(runs), "run")
    return f"{' → '.join(names)}, {count}" if shared and NOTHING not in names else count


def facts_of(runs: Sequence[RunSummary]) -> dict[str, Any]:
    """Return pairs of names and texts: the data, the varied settings, and the shared settings."""
    varying = _varying(runs)
    names = dict.fromkeys(name for run in runs for name in run.texts)
    texts = {name: [run.texts.get(name, "") for run in runs] for name in names}
    shared = {name: t for name, own in texts.items() for t in own if name not in varying and t}
    data = {
        f"{side} classes": {_described(run, side) for run in runs if side in run.record.sides}
        for side in SIDES
    }
    transforms = [run.record.info["new"]["fingerprint"].get("transform") for run in runs]
    data["images"] = {text for text in transforms if text is not None}
    told = [[name, found.pop()] for name, found in data.items() if len(found) == 1]
    return {
        "data": [*told, ["in common", common(runs, ("init", "scale", *varying))]],
        "varying": [[_name(name), ", ".join(found)] for name, found in varying.items()],
        "settings": [[_name(name), text] for name, text in shared.items()],
    }


def _described(run: RunSummary, side: Literal["base", "new"]) -> str:
    is_base = pl.col("task") == 0
    classes = run.record.classes.filter(is_base if side == "base" else ~is_base)
    words = [f"{number_of(len(classes), 'class')}"]
    if side == "new":
        words[0] += f" in {classes['task'].n_unique():,} tasks"
        words.append(f"{classes['train_rows'].sum():,} training images")
    words.append(f"{classes['val_rows'].sum():,} test images")
    path = run.record.sides[side]["path"]
    return ", ".join(words) + (f" ({path})" if path else "")


def _name(setting: str) -> str:
    return NAMES.get(setting, setting.replace("_", " "))


def page_data(runs: Sequence[RunSummary], notes: Sequence[str]) -> dict[str, Any]:
    """Return the content of the page: strings, numbers, lists and mappings by name, as in JSON.

    Runs have the order of the report, whose notes are `notes`.
    """
    counts = "A point of a curve; the point before the first step of a task counts too."
    choices, starts = switches(runs), starts_of(runs)

    def about(run: RunSummary, label: str) -> dict[str, Any]:
        texts = [(shown(run, name), values) for name, values in choices.items()]
        return {
            "label": label,
            "look": next(n for n, start in enumerate(starts) if run in start.runs),
            "choices": [values.index(text) if text in values else None for text, values in texts],
            "matrix": matrix(run.row()),
            "record": repetition(run),
        }

    looks = [
        {"label": each.name, "colour": COLOURS.index(look.colour), "dash": DASHES[look.line]}
        for each, look in zip(starts, looks_of(starts), strict=True)
    ]
    content = {
        "title": title(runs),
        "asked": facts_of(runs),
        "tables": [*tables_of(runs)],
        "terms": [["evaluation", counts]],
        "fields": [{"name": name, "values": values} for name, values in choices.items()],
        "looks": looks,
        "curves": curves(runs),
        "means": [_means(p) for p in by_data(runs).values() if len(starts_of(p)) < len(p)],
        "runs": [*map(about, runs, labels(runs))],
        "notes": list(notes),
    }
    printed: dict[str, Any] = finite(content, visible)
    return printed


def _means(runs: Sequence[RunSummary]) -> str:
    """Return the figure of means over seeds and their range, as an address of its content."""
    from clinit.analysis.figures.gallery import picture  # matplotlib, for several seeds only

    content = base64.b64encode(picture(runs, "curves", "png", dpi=150)).decode()
    return f"data:image/png;base64,{content}"


_ABOUT = {"device": "device", "started": "started", "git_commit": "commit of clinit"}


def repetition(run: RunSummary) -> dict[str, Any]:
    """Return the path, the settings, the versions and the commands of a run, as texts."""
    info: Mapping[str, Any] = run.record.info
    about = [["time", duration(info["seconds"])]] if info.get("seconds") is not None else []
    about += [[words, _json_text(info[name])] for name, words in _ABOUT.items() if info.get(name)]
    command = info.get("command")
    return {
        "path": str(run.path) if run.record.path else None,
        "about": about,
        "settings": _pairs(run.config),
        "versions": _pairs(info.get("versions") or {}),
        "command": shlex.join(command) if command else None,
    }


def _pairs(values: Mapping[str, Any]) -> list[list[str]]:
    return [[str(name), _json_text(value)] for name, value in values.items() if value is not None]


def _json_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def matrix(row: Row) -> dict[str, Any]:
    """Return the accuracy matrix of a run, and the metrics computed from it.

    `cells` has a line per task, with the accuracies after the task. `on` names its columns: the
    base classes, if they are tested, and the classes of each task.
    """
    lines, tasks = row["accuracy_matrix"], [task["task"] for task in row["tasks"]]
    on = ["base", *(f"task {task}" for task in tasks)]
    first = 0 if any(line[0] is not None for line in lines) else 1
    cells = [[None if v is None else round(v, 2) for v in line[first:]] for line in lines]
    means = row["average_incremental_accuracy"], row["forgetting"]
    incremental, forgetting = (None if mean is None else f"{mean:.2f} %" for mean in means)
    told = {"incremental": incremental, "forgetting": forgetting}
    return {"tasks": tasks, "on": on[first:], "cells": cells, **told}


def tables_of(runs: Sequence[RunSummary]) -> Iterator[dict[str, Any]]:
    """Yield the tables of each data set, from top to bottom; lines contain indices of runs."""
    places = {id(run): place for place, run in enumerate(runs)}
    for heading, part in by_data(runs).items():
        below = f". {heading}" if heading else ""
        tables = {"Runs": run_table(part)}
        if len({run.config.get("seed") for run in part}) > 1:
            tables = {"Means over seeds": ranking(part), **tables}
        if diagnosed := [run for run in part if run.is_diagnosed]:
            collapse = collapse_table(diagnosed)
            tables[collapse.title] = collapse
        for title, made in tables.items():
            pairs = zip(made.about, made.lines, strict=True)
            lines = [{"run": places[id(run)], "cells": [*map(_cell, own)]} for run, own in pairs]
            told = {"title": title + below, "of": title.lower(), "caption": made.below}
            yield {**told, "columns": [*map(_column, made.columns)], "lines": lines}


def _column(column: Column) -> dict[str, Any]:
    return {**asdict(column), "mark": column.mark, "number": column.kind == "number"}


def _cell(cell: str | Text | Cell) -> list[Any]:
    """Return the printed text of a cell, its value for sorting, and whether it is the best."""
    if isinstance(cell, Cell):
        return [cell.text(beside=True).plain, cell.value, cell.is_best]
    text = str(cell)
    try:
        return [text, float(text.replace(",", "")), False]
    except ValueError:
        return [text, None if text == NOTHING else text, False]


DASHES: Mapping[str, tuple[int, ...]] = {"-": (), "--": (7, 3), "-.": (9, 3, 2, 3), ":": (2, 3)}
"""Lengths of strokes and gaps, in pixels, of the lines of the figures."""
MOST_VALUES = 24
"""Maximum number of values of a setting with a switch: more curves would look alike."""


def switches(runs: Sequence[RunSummary]) -> dict[str, list[str]]:
    """Return the settings that differ between runs, with their values; the seed last.

    The page has switches to show and hide runs by these values.
    """
    found = sorted(_varying(runs).items(), key=lambda pair: pair[0] == "seed")
    return {name: values for name, values in found if 1 < len(values) <= MOST_VALUES}


def _varying(runs: Sequence[RunSummary]) -> dict[str, list[str]]:
    """Return the settings that differ between runs, with their values."""
    texts = {n: dict.fromkeys(shown(run, n) for run in runs) for n in Names.of(runs).settings}
    return {name: [text for text in own if text != NOTHING] for name, own in texts.items()}


ACCURACIES = ("acc_new", "acc_old", "acc_all")
POINTS_OF_PAGE = 10_000
"""Maximum number of points of all curves of one kind: some 8 bytes each, up to five kinds."""
FEWEST, MOST = 48, 1_500
"""Least and largest bound of the number of points of one curve: no screen has more columns."""

Curve = list[list[Any]]
"""One entry per task: the index of its iterations in `grids`, then its values."""


def curves(runs: Sequence[RunSummary]) -> dict[str, Any]:
    """Return the curves of the runs by name, with the iterations and tasks of their points."""
    most = max(FEWEST, min(MOST, POINTS_OF_PAGE // len(runs)))
    grids: dict[tuple[int, ...], int] = {}
    ends = [[*ends_of(run).values()] for run in runs]
    shares = [max(4, most // max(1, len(each))) for each in ends]  # points per task
    drawn = {
        name: [
            _curve(run.record.steps if name == "loss" else run.points, name, share, grids)
            for run, share in zip(runs, shares, strict=True)
        ]
        for name in ("loss", "loss_new", *ACCURACIES)
    }
    longest = [max(np.diff(each, prepend=0)) for each in ends]
    losses = {
        "loss": pl.concat(run.record.steps["loss"] for run in runs).cast(pl.Float64),
        "loss_new": pl.concat(run.points["loss_new"] for run in runs).cast(pl.Float64),
    }
    finite = {name: each.filter(each.is_finite()).to_list() for name, each in losses.items()}
    return {
        "ends": ends,
        "grids": [np.diff(grid, prepend=0).tolist() for grid in grids],
        "of": drawn,
        "log": {name: spans_decades(each) for name, each in finite.items()},  # as in figures
        "thinned": any(steps > share for steps, share in zip(longest, shares, strict=True)),
    }


def thin(values: Float[np.ndarray, " steps"], most: int) -> Int[np.ndarray, " kept"]:
    """Return the indices of about `most` values: the lowest and the highest of each span.

    The indices include the first and the last value, and the first value of a span without numbers.
    """
    if len(values) <= most:
        return np.arange(len(values))
    edges = np.linspace(0, len(values), max(1, (most - 2) // 2) + 1).astype(int)
    low, high = (np.where(np.isfinite(values), values, end) for end in (np.inf, -np.inf))
    kept = {0, len(values) - 1}
    for start, stop in pairwise(edges.tolist()):
        kept |= {start + int(low[start:stop].argmin()), start + int(high[start:stop].argmax())}
    return np.array(sorted(kept))


def _curve(table: pl.DataFrame, name: str, most: int, grids: dict[tuple[int, ...], int]) -> Curve:
    found: Curve = []
    for (_,), part in table.sort("task", "iteration").group_by("task", maintain_order=True):
        values = part[name].cast(pl.Float64).fill_null(np.nan).to_numpy()
        kept = thin(values, most)
        place = grids.setdefault(tuple(part["iteration"].to_numpy()[kept].tolist()), len(grids))
        digits = [None if not np.isfinite(v) else _rounded(name, v) for v in values[kept]]
        found.append([place, digits])
    return found


def _rounded(name: str, value: float) -> int | float:
    number = round(float(value), 2) if name in ACCURACIES else float(f"{value:.4g}")
    return int(number) if number.is_integer() and abs(number) < 1e15 else number
