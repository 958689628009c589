"""What the runs of a page were asked to do: data, stream, and the settings they share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import polars as pl

from clinit.analysis.common_settings import common
from clinit.analysis.run_summary import RunSummary
from clinit.analysis.settings import NOTHING, differences, settings, shown
from clinit.words import number_of

NAMES = {"lam": "lambda", "lr": "learning rate"}
"""Settings whose name is no word."""


def title(runs: Sequence[RunSummary]) -> str:
    """Return the name of the page: the data sets that the runs share, and how many there are."""
    names = [shown(runs[0], side) for side in ("base", "new")]
    shared = all(len({shown(run, side) for run in runs}) == 1 for side in ("base", "new"))
    count = number_of(len(runs), "run")
    return f"{' → '.join(names)}, {count}" if shared and NOTHING not in names else count


def asked(runs: Sequence[RunSummary]) -> dict[str, Any]:
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
