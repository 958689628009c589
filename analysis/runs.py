"""Runs and their report, computed only from their records."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
from rich.console import Group, RenderableType
from rich.text import Text

from clinit.analysis.metrics.accuracy import predictions
from clinit.analysis.metrics.efficiency import gain
from clinit.analysis.report import ReportView
from clinit.analysis.report.compare import Comparison, chosen_runs, compare
from clinit.analysis.report.measures import measures_of, words_of
from clinit.analysis.report.notes import notes_of
from clinit.analysis.report.run import COLLAPSE, SIDES, Row, RunSummary, frame_of
from clinit.analysis.report.settings import ByData, Names, by_data, means, means_table
from clinit.analysis.report.tables import collapse_table, ranking, run_table, task_table
from clinit.headtrain.protocol.record.format import RunRecord, read_records
from clinit.words import examples, number_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCALES = {"none": 0, "norm": 1, "row-norm": 2, "calibrated": 3}
MOST_NOTES = 2
"""Number of notes in the terminal; the page contains all notes."""
MOST_NAMED = 5
"""Number of runs that are named in a command; more are named by the folder of all."""
Render = Callable[[Sequence[RunSummary]], RenderableType]
_FIRST = ("init", "acc_all", "acc_new", "acc_old", "seed", "method", "scale", "loss", "id")


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """Recorded or just trained runs, comparable runs together, random rows first."""

    runs: tuple[RunSummary, ...]
    data: ByData
    """The same runs by data set, each part with its heading."""
    notes: tuple[str, ...]
    """Notes on the records and the comparison, each once."""
    chosen: tuple[str, ...] = ()
    """Settings that `best_of` chose."""

    def __len__(self) -> int:
        return len(self.runs)

    def __getitem__(self, number: int) -> RunSummary:
        """Return a run by its number in `table()`; its `head` is the head after the last task."""
        return self.runs[number]

    def __iter__(self) -> Iterator[RunSummary]:
        return iter(self.runs)

    def __repr__(self) -> str:
        return repr(self.table())

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()

    def table(self) -> pl.DataFrame:
        """Return one row per run: settings, accuracies in percent, efficiency gains, seconds.

        The column `run` joins it with the other tables.
        """
        table = frame_of([{**run.config, **_flat(run.row())} for run in self.runs])
        first = [name for name in _FIRST if name in table.columns]
        index = pl.int_range(pl.len(), dtype=pl.Int32).alias("run")
        return table.select(index, *first, *(name for name in table.columns if name not in first))

    def means(self) -> pl.DataFrame:
        """Return one row per group of runs that differ only in their seed, the best A_all first.

        Each value is followed by its sample deviation over seeds as `NAME_deviation` (null for a
        single value) and the number of values as `NAME_count`.
        """
        return means_table(self.runs, self.data)

    def best_of(self, fields: str | Sequence[str], by: str | Sequence[str] = "init") -> Runs:
        """Return the runs with the best settings, chosen by the mean A_all over seeds.

        If there are runs on held-out training images (`clinit sweep --held-out`), these decide, and
        the runs on test images with the chosen settings are returned. Otherwise the test images
        decide, and a note states that the accuracies are therefore too high.

        Args:
            fields: The settings to choose.
            by: The settings of which each combination of values has its own choice.

        Raises:
            RecordError: If no run reads a setting, or no run on test images has the chosen values.
        """
        runs, note = chosen_runs(self.runs, fields, by)
        return dataclasses.replace(_compared(runs, [note]), chosen=tuple(words_of(fields)))

    def compare(self, field: str, baseline: str, columns: str | Sequence[str] = "") -> pl.DataFrame:
        """Return paired differences over seeds from the runs with one value of a setting.

        Args:
            field: The setting, such as `init`.
            baseline: The value of the runs to compare with, such as `random`.
            columns: Names of measures; by default `acc_all`, `acc_new`, `acc_new_start`, `acc_old`.

        Returns:
            A row per group of seeds and measure, with the columns `difference`, `half_width` (of
            the 95 % interval), `wins` of `seeds`, `p_value` (paired t-test), `p_adjusted` (Holm)
            and `result` (higher, lower, open; - for fewer than three seeds).

        Raises:
            RecordError: If no two groups of runs differ only in the setting.
        """
        return self.comparison(field, baseline, columns).frame()

    def comparison(
        self, field: str, baseline: str, columns: str | Sequence[str] = ""
    ) -> Comparison:
        """Return what `compare` returns, as a result that also makes a table."""
        return compare(self.runs, field, baseline, columns=columns, chosen=self.chosen)

    @property
    def steps(self) -> pl.DataFrame:
        """Loss before each update: run, task, iteration, loss, loss_new, loss_old."""
        return self._named([run.record.steps for run in self.runs])

    @property
    def evaluations(self) -> pl.DataFrame:
        """Correct counts: run, task, iteration, row (of the head), correct, total."""
        return self._named([run.record.evaluations for run in self.runs])

    @property
    def predictions(self) -> pl.DataFrame:
        """Each test image at the end of each task: run, task, row, image, predicted (head rows).

        Raises:
            RecordError: If a record of an earlier version does not contain them.
        """
        return self._named([predictions(run.record) for run in self.runs])

    @property
    def points(self) -> pl.DataFrame:
        """Accuracies in percent, new-task loss and seconds so far at each evaluation, by run."""
        return self._named([run.points for run in self.runs])

    def _named(self, tables: Sequence[pl.DataFrame]) -> pl.DataFrame:
        """Return the tables of all runs as one, with the index of the run in `table()`."""
        runs = (pl.lit(number, pl.Int32).alias("run") for number in range(len(tables)))
        named = [table.select(run, pl.all()) for run, table in zip(runs, tables, strict=True)]
        return pl.concat(named) if named else pl.DataFrame()

    def parts(self, view: ReportView, width: int = 80) -> Iterator[RenderableType]:
        """Yield the contents of a terminal report, from top to bottom."""
        seeds = {run.config.get("seed") for run in self.runs}
        ranked = view.means or len(seeds) > 1 or any(run.is_held_out for run in self.runs)
        if ranked:
            yield self._each(partial(ranking, columns=view.columns))
        if view.by_seed or not ranked:
            yield self._each(partial(run_table, columns=view.columns))
        if view.per_task:
            yield self._each(task_table)
        if diagnosed := [run for run in self.runs if run.is_diagnosed]:
            measured = by_data(diagnosed)
            yield from ("", self._each(collapse_table, measured))
            if view.per_task:
                yield self._each(partial(task_table, columns=COLLAPSE), measured)
        yield Text("Columns: clinit report --help", style="dim")
        if view.curves:
            from clinit.analysis.figures.curves import draw

            yield from ("", self._each(partial(draw, width=width)))

    def told(self, view: ReportView) -> Iterator[str]:
        """Yield the first notes for the terminal, and the number of the others."""
        notes = [note for note in self.notes if note not in view.said]
        yield from notes[:MOST_NOTES]
        if len(notes) > MOST_NOTES:
            how = ".save_html(FILE)"  # runs that were never written
            if all(run.record.path for run in self.runs):
                paths = [run.path.absolute() for run in self.runs]
                few = paths if len(paths) <= MOST_NAMED else [os.path.commonpath(paths)]
                how = f"clinit report {shlex.join(map(os.path.relpath, few))} --html FILE"
            yield f"{len(notes) - MOST_NOTES} more: {how}"

    def as_text(self, view: ReportView) -> str:
        """Return the runs or their means over seeds as JSON, CSV, Markdown or LaTeX."""
        if view.format == "json":
            told = [*means(self.data)] if view.means else self.rows()
            return json.dumps(told, indent=2, ensure_ascii=False, allow_nan=False)
        if view.format == "csv":
            if view.means:
                table = means_table(self.runs, self.data)
            else:
                rows = [r | {f"final_{n}": v for n, v in r["final"].items()} for r in self.rows()]
                table = frame_of([*map(_flat, rows)])
            return self._narrowed(table, view.columns).write_csv()
        tables = [ranking(part, view.columns) for part in self.data.values()]
        return "\n".join(t.latex() if view.format == "latex" else t.markdown() for t in tables)

    def _narrowed(self, table: pl.DataFrame, columns: str | Sequence[str]) -> pl.DataFrame:
        """Return the settings that distinguish runs and the chosen measures; all without choice."""
        if not columns:
            return table
        names = [each.name for each in measures_of(columns)]
        own = ["init", *Names.of(self.runs).settings, "seed", "seeds", "task"]
        names += [f"{name}_{of}" for name in names for of in ("deviation", "count")]
        return table.select([*dict.fromkeys(n for n in (*own, *names) if n in table.columns)])

    def rows(self) -> list[Row]:
        """Return one row of plain values per run, with its tasks."""
        return [run.row() for run in self.runs]

    def _each(self, render: Render, data: ByData | None = None) -> RenderableType:
        """Apply `render` to the runs of each data set, and stack the results."""
        pieces: list[RenderableType] = []
        for heading, part in (data or self.data).items():
            if heading:
                above = f"\n{heading}" if pieces else heading
                pieces.append(Text(above, style="bold underline"))
            pieces.append(render(part))
        return pieces[0] if len(pieces) == 1 else Group(*pieces)

    def figure(self, name: str = "curves") -> Figure:
        """Return a figure for a paper.

        Args:
            name: `curves`, `efficiency`, or a measure, such as `acc_old` or `forgetting`.

        Raises:
            RecordError: If there is no figure of this name, or no record contains its data.
        """
        from clinit.analysis.figures.gallery import figure_of

        return figure_of(name, self.runs)

    plot = figure

    def save_figure(self, path: str | Path, name: str = "curves") -> None:
        """Write a figure to a file that ends in .png, .pdf or .svg; see `figure`."""
        from clinit.analysis.figures.gallery import save_figure

        save_figure(self.runs, Path(path), name)

    def html(self) -> str:
        """Return the report as one HTML page that loads nothing: tables, curves, settings."""
        from clinit.analysis.page.data import page_data
        from clinit.analysis.page.page import html_of

        return html_of(page_data(self.runs, self.notes))

    def save_html(self, path: str | Path) -> None:
        """Write the page to a file that ends in .html."""
        from clinit.analysis.page.page import save_page

        save_page(Path(path), self.html)


def _flat(row: Row) -> Row:
    """Return the values that fit into columns of a table."""
    return {name: value for name, value in row.items() if not isinstance(value, dict | list)}


def load_runs(path: str | Path, *more: str | Path) -> Runs:
    """Read the records at or below folders, and compare each run with its random run.

    Args:
        path: A record, or a folder of records.
        more: Further records or folders.

    Raises:
        RecordError: If a folder contains no record, or a record that cannot be read.
    """
    return runs_of(read_records([Path(each) for each in (path, *more)]))


def runs_of(records: Sequence[RunRecord]) -> Runs:
    """Compare each run with its random run; see `load_runs`."""
    runs = [*map(RunSummary.of, records)]
    firsts = {id(run) for run in {run.facts(): run for run in reversed(runs)}.values()}
    copies = [str(run.path) for run in runs if id(run) not in firsts]
    words = f"{number_of(len(copies), 'record')} with the settings, data and seed of another"
    notes = [f"Left out: {words}: {examples(copies)}."] if copies else []
    return _compared([run for run in runs if id(run) in firsts], notes)


def _compared(runs: Sequence[RunSummary], notes: Sequence[str]) -> Runs:
    """Compare each run with its random run, if this is one of the runs."""
    randoms = {run.key: run for run in reversed(runs) if run.init == "random"}
    groups = list(dict.fromkeys(run.key for run in runs))
    joined = [(run, run.joined, randoms[run.key].joined) for run in runs if run.key in randoms]
    gains = {id(run): gain(own, random) for run, own, random in joined}
    told = (*SIDES, "measured_on", "head")
    known = {(tuple(map(run.texts.get, told)), run.facts(run.texts)) for run in runs}
    several = len({names for names, _ in known}) < len(known)
    compared = [
        dataclasses.replace(run, gain=gains.get(id(run)), by_digest=several or run.by_digest)
        for run in runs
    ]
    place = SCALES.get
    compared.sort(key=lambda run: (run.init != "random", run.init, place(run.scale, 4), run.path))
    compared.sort(key=lambda run: groups.index(run.key))
    data = by_data(compared)
    return Runs(tuple(compared), data, (*notes, *notes_of(compared, data)))
