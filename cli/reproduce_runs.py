"""The runs of a table: its recipe, the reduced setting, what a user sets, a dry run, figures."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from clinit.cli.console import note, out, say
from clinit.cli.reproduce_steps import (
    Places,
    Step,
    digits_of,
    frozen_cost,
    frozen_images,
    recorded,
    steps,
)
from clinit.cli.typed import command_line
from clinit.errors import ExperimentError

if TYPE_CHECKING:
    from clinit.analysis.paper.tables import Table
    from clinit.analysis.report.run import RunSummary
    from clinit.cli.reproduce_steps import Places
    from clinit.headtrain.study.study import Study


_SCALED = {"tasks": "2", "batch_size": "64", "eval_every": "8"}
_BOTH = {"iterations,buffer": "12,240;24,1920"}
_SMALLER = {"iterations,buffer": "12,240"}
_TWO_SEEDS = {"seed": "0:2"}
"""For tables that have several; the others keep their one."""
_TOP = {"top_blocks": "1"}
"""Half of the time."""
_SCALED_TABLES: dict[str, dict[str, str]] = {
    "first-task": {"buffer": "240", **_TWO_SEEDS},
    "last-layer": {**_BOTH, **_TWO_SEEDS},
    "top-layers": {**_BOTH, **_TOP},
    "cl-methods": {**_SMALLER, **_TOP, "ewc_samples": "40"},
    "resnet18": {**_BOTH, **_TWO_SEEDS},
    "data-orders": {**_SMALLER, **_TOP, **_TWO_SEEDS},
    "forward-transfer": {**_BOTH, **_TOP},
    "cost": {"iterations,buffer": "24,1920", **_TOP},
    "figures": {"buffer": "240", "iterations,stop_after": "25,{tasks};60,1"},
}
"""A fiftieth of the iterations and of EWC's images, a hundredth of the buffers, by table."""
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
    words = {**_SCALED, **_SCALED_TABLES[table.name]} if scale_down else {}
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


@dataclass(frozen=True, slots=True)
class Plan:
    """What a user asks of all tables."""

    settings: tuple[str, ...]
    """Words, `field=values`."""
    seeds: int | None
    """Number of seeds; None: the recipe's."""
    scale_down: bool
    found: dict[str, list[Study]] = field(default_factory=dict)
    """The runs of a table, once they are known: a grid takes a while to be laid out."""

    def words(self, table: Table) -> list[str]:
        """Return the words that overlay the grids of a table's recipe."""
        return overlay(table, self.settings, self.seeds, scale_down=self.scale_down)

    def studies(self, table: Table) -> list[Study]:
        """Return the distinct runs of a table.

        Raises:
            ExperimentError: If a word is wrong, or the runs do not fit the places of the table.
        """
        from clinit.cli.config import grids_of
        from clinit.headtrain.sweep.grid import distinct, runs_of

        if table.runs and table.name not in self.found:
            grids = grids_of(Path(table.recipe), self.words(table), top=table.is_top)
            runs = (run for grid in grids for run in runs_of(grid, top=table.is_top))
            self.found[table.name] = distinct(runs)
            _check_places(table, self.found[table.name])
        return self.found.get(table.name, [])


def runs_of(folder: Path, studies: Sequence[Study]) -> tuple[RunSummary, ...]:
    """Return the recorded runs of studies; empty where there is none."""
    from clinit.analysis.report.report import load_report

    found = recorded(folder, studies)
    return load_report(found).runs if found else ()


def _check_places(table: Table, studies: Sequence[Study]) -> None:
    """Check that every run has a place in a table of its own.

    Raises:
        ExperimentError: If one has none, or two share one.
    """
    from clinit.analysis.paper.numbers import paper_cells

    if not (places := paper_cells(table.source)):
        return
    known = {(place.method, place.loss, place.init) for place in places}
    seen: dict[tuple[object, ...], Study] = {}
    for study in studies:
        stream = study.stream
        key = (stream.method, study.training.loss, study.start.init)
        if key not in known:
            raise ExperimentError(
                f"{table.name} has no line for {', '.join(key)}",
                remedy="Leave it out of --set; `clinit sweep` trains anything.",
            )
        other = seen.setdefault((*key, stream.iterations, stream.buffer, stream.seed), study)
        if other is not study:
            values = other.values()
            names = [name for name, value in study.values().items() if value != values[name]]
            raise ExperimentError(
                f"two runs of {table.name} have the same place: they differ in {', '.join(names)}",
                remedy="Give one value with --set.",
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


def show_commands(chosen: Sequence[Table], where: Places, plan: Plan) -> None:
    """Print the commands of tables, each once, with their time and disk."""
    told: set[tuple[str, str]] = set()
    counted: set[str] = set()
    passed: set[tuple[object, ...]] = set()
    if where.caches == digits_of(where.out):
        say(f"The digits are made in {where.out / 'digits'}: seconds.")
    for table in chosen:
        studies = plan.studies(table)
        planned = [
            step
            for step in steps(table, where, plan.words(table), studies)
            if step.target not in told
        ]
        told |= {step.target for step in planned if step.words[0] != "sweep"}
        _list_one(table, planned)
        identities = {f"{table.runs} {study.identity}" for study in studies}
        if shared := len(identities & counted):
            say(f"  {shared:,} of these runs are those of a table above")
        counted |= identities
        if table.is_top:
            parts = frozen_images(studies, where.counts)
            if images := sum(count for part, count in parts.items() if part not in passed):
                say(f"  before them, {frozen_cost(images)}")
            passed |= parts.keys()


def _list_one(table: Table, planned: Sequence[Step]) -> None:
    from rich.text import Text

    say()
    heading = f"{table.name}: {table.title}"
    out.print(Text(heading + (f" (Table {table.number})" if table.number else ""), style="bold"))
    for step in planned:
        style = "dim" if step.is_done else "green"
        out.print(Text(command_line(list(step.words)), style=style), soft_wrap=True)
        say("  " + ("done" if step.is_done else step.cost))
    if not planned:
        say("  nothing beyond the commands above")


FORMATS = ("png", "pdf", "svg")
_OF_TABLES = (
    ("2", "last-layer", "mse"),
    ("3", "last-layer", "sqen"),
    ("4", "top-layers", "ce"),
    ("5", "top-layers", "sqen"),
    ("6", "top-layers", "mse"),
)
"""Number of the figure, name of the table and loss."""
_Picture = tuple[str, str, "tuple[RunSummary, ...]"]
"""Name of the file without its ending, figure as `clinit report` calls it, and its runs."""


def draw(where: Places, runs: Sequence[RunSummary], plan: Plan) -> None:
    """Write the figures below the folder; say which lack runs.

    Args:
        where: Places of the reproduction.
        runs: The runs of figure 1.
        plan: What says which runs of tables 2 and 3 figures 2 to 6 are drawn from.
    """
    from clinit.analysis.report.report import report_of

    folder = where.out / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    say()
    for file, name, members in [*_first(runs), *_of_tables(where, plan)]:
        report = report_of([run.record for run in members])
        for ending in FORMATS:
            report.save_figure(folder / f"{file}.{ending}", name)
        note(f"{name}: {folder / file}.{{{','.join(FORMATS)}}}")


def _first(runs: Sequence[RunSummary]) -> Iterator[_Picture]:
    """Yield panels a and b, of all tasks, and c, of the first task trained longer."""
    alone = tuple(run for run in runs if run.config.get("stop_after") == 1)
    for file, name, members in (
        ("figure1ab", "curves", tuple(run for run in runs if run not in alone)),
        ("figure1c", "efficiency", alone),
    ):
        if members:
            yield file, name, members


def _of_tables(where: Places, plan: Plan) -> Iterator[_Picture]:
    """Yield figures 2 to 6, the smaller budget of each loss, as far as there are runs."""
    from clinit.analysis.paper.tables import table_named

    for number, name, loss in _OF_TABLES:
        table = table_named(name)
        studies = [each for each in plan.studies(table) if each.training.loss == loss]
        least = min((each.stream.iterations for each in studies), default=0)
        smaller = [each for each in studies if each.stream.iterations == least]
        if found := runs_of(where.runs(table), smaller):
            yield f"figure{number}", "curves", found
        else:
            note(
                f"figure {number} is drawn from the runs of table {table.number}: give {name} too,"
                f" `clinit reproduce {name} figures …`"
            )
