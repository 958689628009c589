"""The runs of a table: its recipe, the reduced setting, and what a user sets."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from clinit.cli.context import Context
from clinit.errors import ExperimentError

if TYPE_CHECKING:
    from clinit.analysis.paper.tables import Table
    from clinit.headtrain.study import Study

_SCALED = {"tasks": "3", "batch_size": "64", "eval_every": "4", "seed": "0:2"}
_BOTH = {"iterations,buffer": "12,240;24,1920"}
_SCALED_BUDGETS: dict[str, dict[str, str]] = {
    "first-task": {"buffer": "240"},
    "last-layer": _BOTH,
    "top-layers": _BOTH,
    "cl-methods": {"iterations,buffer": "12,240"},
    "resnet18": _BOTH,
    "data-orders": {"iterations,buffer": "12,240"},
    "forward-transfer": _BOTH,
    "cost": {"iterations,buffer": "24,1920"},
    "figures": {"buffer": "240", "iterations,stop_after": "25,{tasks};60,1"},
}
"""A fiftieth of the iterations and a hundredth of the buffers, by table."""
_OF_TRAINING = ("iterations", "batch_size", "eval_every")


def overlay(
    table: Table, settings: Sequence[str], seeds: int | None, *, scale_down: bool
) -> list[str]:
    """Return the words that overlay the grids of a recipe, those of the user last.

    Args:
        table: A table of the paper.
        settings: Words of the user, `field=values`.
        seeds: Number of seeds; None: the recipe's.
        scale_down: Whether the setting is reduced.
    """
    if not table.runs:
        return []
    words = {**_SCALED, **_SCALED_BUDGETS[table.name]} if scale_down else {}
    if seeds is not None:
        words["seed"] = f"0:{seeds}"
    for each in settings:
        name, _, value = each.partition("=")
        key = name.replace("-", "_")
        words = {**_without(words, key.split(",")), key: value}
    if table.name == "first-task":  # nothing is trained
        words = _without(words, _OF_TRAINING)
    tasks = words.get("tasks", "")
    return [f"{name}={value.replace('{tasks}', tasks)}" for name, value in words.items()]


def studies_of(table: Table, words: Sequence[str], context: Context) -> list[Study]:
    """Return the distinct runs of a table.

    Raises:
        ExperimentError: If a word is wrong, or there are more budgets than in the paper.
    """
    from clinit.cli.config_file import commands_with_files
    from clinit.cli.sweep_grids import grids_of
    from clinit.headtrain.sweep.run import distinct, runs_of

    if not table.runs:
        return []
    commands = commands_with_files(context.find_root().command)
    grids = grids_of(Path(table.recipe), list(words), commands, top=table.is_top)
    studies = distinct(run for grid in grids for run in runs_of(grid, top=table.is_top))
    _check_budgets(table, studies)
    return studies


def _check_budgets(table: Table, studies: Sequence[Study]) -> None:
    from clinit.analysis.paper.numbers import paper_cells

    places = paper_cells(table.source)
    for method in dict.fromkeys(place.method for place in places):
        own = [study.stream for study in studies if study.stream.method == method]
        ours = {(stream.iterations, stream.buffer) for stream in own}
        theirs = {(each.iterations, each.buffer) for each in places if each.method == method}
        if len(ours) > len(theirs):
            raise ExperimentError(
                f"{table.name} has {len(theirs)} budget{'s' if len(theirs) > 1 else ''} of"
                f" iterations and buffer, but {len(ours)} are set",
                remedy="Give the tables one by one, each with its own --set.",
            )


def _without(words: dict[str, str], fields: Collection[str]) -> dict[str, str]:
    """Return words without some fields; what varied together with them still varies."""
    left: dict[str, str] = {}
    for key, value in words.items():
        names = key.split(",")
        kept = [index for index, name in enumerate(names) if name not in fields]
        if len(kept) == len(names):
            left[key] = value
        elif kept:
            rows = [row.split(",") for row in value.split(";")]
            told = dict.fromkeys(tuple(row[index] for index in kept) for row in rows)
            joined = ";" if len(kept) > 1 else ","
            left[",".join(names[index] for index in kept)] = joined.join(map(",".join, told))
    return left
