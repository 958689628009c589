"""The report of runs: computed from their records alone."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from clinit.analysis.efficiency import Gain, Reading, gain
from clinit.analysis.run_summary import Row, RunSummary
from clinit.analysis.settings import labels
from clinit.analysis.time_to_accuracy import times_to_levels
from clinit.errors import RecordError
from clinit.headtrain.record.format import RunRecord, find_records, finite, read_record

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import RenderableType
    from rich.text import Text

SCALE_ORDER = ("none", "norm", "row-norm", "calibrated")


@dataclass(frozen=True, slots=True, eq=False)
class Report:
    """Runs side by side: comparable runs together, the random run of each group first."""

    runs: tuple[RunSummary, ...]
    notes: tuple[str, ...]
    """What the records and the comparison want said, each once."""

    def __repr__(self) -> str:
        return f"<Report: {len(self.runs)} runs, {len(self.notes)} notes>"

    def rows(self) -> list[Row]:
        """Return one row per run, with its tasks; plain values."""
        return [run.row() for run in self.runs]

    def json(self) -> str:
        """Return the rows as JSON."""
        return json.dumps(finite(self.rows()), indent=2, ensure_ascii=False, allow_nan=False)

    def csv(self, *, per_task: bool = False) -> str:
        """Return one line per run, or per run and task, as CSV with a header."""
        lines = []
        for row in self.rows():
            row |= {f"final_{name}": value for name, value in row["final"].items()}
            flat = {name: value for name, value in row.items() if _is_plain(value)}
            if not per_task:
                lines.append(flat)
                continue
            identity = {name: flat[name] for name in list(flat)[: list(flat).index("loss_new")]}
            for task in row["tasks"]:
                own = {name: value for name, value in task.items() if _is_plain(value)}
                for prefix, part in (("init", "initialisation"), ("diagnosis", "diagnosis")):
                    values = (task[part] or {}).items()
                    own |= {f"{prefix}_{name}": v for name, v in values if _is_plain(v)}
                lines.append(identity | own)
        # Not strict: what a record says beyond the fields that are checked may be of any type.
        return pl.DataFrame(lines, infer_schema_length=None, strict=False).write_csv()

    def means_json(self) -> str:
        """Return mean and deviation over seeds as JSON: one entry per group of runs."""
        from clinit.analysis.means import means_json

        return means_json(self.runs)

    def means_csv(self) -> str:
        """Return mean and deviation over seeds as CSV: one line per group of runs."""
        from clinit.analysis.means import means_csv

        return means_csv(self.runs)

    def markdown(self, *, reading: Reading = "equal-level", metrics: bool = False) -> str:
        """Return means over seeds, of the ranking or the further metrics, as Markdown."""
        from clinit.analysis.markdown_table import markdown
        from clinit.analysis.paper_table import PaperTable

        return markdown(PaperTable.of(self.runs, reading, metrics=metrics))

    def latex(self, *, reading: Reading = "equal-level", metrics: bool = False) -> str:
        """Return means over seeds, of the ranking or the further metrics, as LaTeX."""
        from clinit.analysis.latex_table import latex
        from clinit.analysis.paper_table import PaperTable

        return latex(PaperTable.of(self.runs, reading, metrics=metrics))

    def table(self, *, width: int = 80, reading: Reading = "equal-level") -> RenderableType:
        """Return the table of the runs, to be printed `width` columns wide."""
        from clinit.analysis.tables import run_table

        return run_table(self.runs, width, reading)

    @property
    def has_several_seeds(self) -> bool:
        """Whether there are runs of more than one seed."""
        from clinit.analysis.seeds import num_seeds

        return num_seeds(self.runs) > 1

    def ranking(self, *, width: int = 80, reading: Reading = "equal-level") -> RenderableType:
        """Return the runs ranked, those that differ only in their seed as one line."""
        from clinit.analysis.ranking import ranking

        return ranking(self.runs, width, reading)

    def metrics_table(self, *, width: int = 80) -> RenderableType:
        """Return what the field reports beside averages: forgetting, spike, time to a level."""
        from clinit.analysis.metrics_table import metrics_table

        return metrics_table(self.runs, width)

    def task_table(self, *, width: int = 80, reading: Reading = "equal-level") -> RenderableType:
        """Return the table of every task of the runs, to be printed `width` columns wide."""
        from clinit.analysis.tables import task_table

        return task_table(self.runs, width, reading)

    @property
    def is_diagnosed(self) -> bool:
        """Whether a run was measured at its task ends (`clinit train-head --diagnose`)."""
        return any("diagnosis" in task for run in self.runs for task in run.record.info["tasks"])

    def diagnosis_table(self, *, per_task: bool = False) -> RenderableType:
        """Return NC1 to NC4 and D_LS of the runs, after the last task or after every task."""
        from clinit.analysis.diagnosis_table import diagnosis_table

        return diagnosis_table(self.runs, per_task=per_task)

    def curves(self, *, width: int = 80) -> Text:
        """Return loss and accuracy on the new task over iterations, drawn in characters."""
        return self.draw("curves", width=width)

    def draw(self, name: str = "curves", *, width: int = 80) -> Text:
        """Return a figure in characters, no line wider than `width`.

        Raises:
            ValueError: If there is no figure of this name; `FigureName` lists them.
            RecordError: If the records do not hold what it shows.
        """
        from clinit.analysis.figures.gallery import drawable

        return drawable(name).draw(self.runs, width)

    def figure(self, name: str = "curves") -> Figure:
        """Return a figure for a paper; see `draw` for what is raised."""
        from clinit.analysis.figures.gallery import drawable

        return drawable(name).figure(self.runs)

    def save_figure(self, path: str | Path, name: str = "curves") -> None:
        """Write a figure to a file that ends in .png, .pdf or .svg; see `draw`."""
        from clinit.analysis.figures.save import save_figure

        save_figure(self.runs, Path(path), name)

    def save_events(self, folder: Path) -> list[Path]:
        """Write event files of TensorBoard, a sub-folder of `folder` for each run."""
        from clinit.analysis.tensorboard_events import write_events

        return write_events(self.runs, folder)

    def html(self, *, reading: Reading = "equal-level") -> str:
        """Return the report as one HTML page that loads nothing: tables, curves, settings."""
        from clinit.analysis.page.page import page

        return page(self.runs, self.notes, reading)

    def save_html(self, path: Path, *, reading: Reading = "equal-level") -> None:
        """Write the page to a file that ends in .html."""
        from clinit.analysis.page.page import check_ending, save_page

        check_ending(path)
        save_page(self.html(reading=reading), path)


def load_report(paths: Sequence[Path], *, skip_start: bool = False) -> Report:
    """Read the records at or below `paths` and compare each run with its random run.

    `skip_start` leaves the points before the first step out of the averages (not out of the
    curves, nor of the values at the start of a task).

    Raises:
        RecordError: If there is no record at one of the paths, or one that cannot be read.
    """
    folders = dict.fromkeys(folder.resolve() for path in paths for folder in _records(path))
    return report_of([read_record(folder) for folder in folders], skip_start=skip_start)


def report_of(records: Sequence[RunRecord], *, skip_start: bool = False) -> Report:
    """Compare each run with its random run; see `load_report`."""
    runs = [RunSummary.of(record, skip_start=skip_start) for record in records]
    randoms = {run.key: run for run in reversed(runs) if run.init == "random"}
    compared = [_compare(run, randoms.get(run.key)) for run in runs]
    groups = list(dict.fromkeys(run.key for run in runs))
    compared.sort(key=lambda run: (groups.index(run.key), *_order(run)))
    return Report(tuple(compared), _notes(compared))


def _records(path: Path) -> list[Path]:
    if not path.exists():
        raise RecordError(
            f"no run record at {path}: there is no such file or folder",
            remedy="Give a folder that `clinit train-head ... --out FOLDER` has written.",
        )
    if not (found := find_records(path)):
        raise RecordError(
            f"no run record at or below {path}: looked for folders that hold run.json",
            remedy=f"Train heads first: `clinit train-head --base CACHE --new CACHE --out {path}`.",
        )
    return found


def _compare(run: RunSummary, random: RunSummary | None) -> RunSummary:
    if random is None:
        return run
    return dataclasses.replace(
        run,
        gain=gain(run.points, random.points),
        times=times_to_levels(run.points, random.points),
    )


def _order(run: RunSummary) -> tuple[bool, str, int, Path]:
    scale = SCALE_ORDER.index(run.scale) if run.scale in SCALE_ORDER else len(SCALE_ORDER)
    return run.init != "random", run.init, scale, run.path


def _notes(runs: Sequence[RunSummary]) -> tuple[str, ...]:
    notes: list[str] = [note for run in runs for note in run.record.info.get("notes", [])]
    notes += [
        f"{run.path} holds files that are not of its record: {', '.join(run.record.strangers)}."
        for run in runs
        if run.record.strangers
    ]
    randoms = {run.key for run in runs if run.init == "random"}
    if any(run.key not in randoms and not run.is_solved for run in runs):
        notes.append(
            "No gain without a random run of the same stream and settings: add `--init random`"
            " to the training command, or give the record of such a run too."
        )
    for run, name in zip(runs, labels(runs), strict=True):
        if run.gain and not run.gain.complete:
            reached, tasks = run.gain.reached, len(run.gain.tasks)
            notes.append(
                f"{name} reaches 95 % of random's best new-task accuracy in"
                + (
                    f" {reached} of {tasks} tasks; its gain is the mean over those."
                    if reached
                    else f" none of {tasks} tasks: it has no gain."
                )
            )
        if run.gain and run.init == "random":
            notes += _tasks_without_level(name, run.gain)
        if run.not_finite:
            notes.append(
                f"{name}: the loss on the new task is not a finite number at {run.not_finite} of"
                f" {len(run.points)} evaluation points."
            )
    return tuple(dict.fromkeys(notes))


def _tasks_without_level(random: str, own: Gain) -> list[str]:
    """Return notes on tasks without a gain over the run `random`, whose own gain is `own`."""
    notes = []
    for reason in dict.fromkeys(reason for _, reason in own.left_out):
        tasks = [str(task) for task, other in own.left_out if other is reason]
        every = len(tasks) == len(own.tasks) + len(own.left_out)
        word = "task" if len(tasks) == 1 else "tasks"
        where = "any task" if every else f"{word} {', '.join(tasks)}"
        notes.append(f"No gain over {random} in {where}: {reason.value}.")
    return notes


def _is_plain(value: object) -> bool:
    if isinstance(value, int):
        return abs(value) < 2**63  # a column of a table holds no larger one
    return value is None or isinstance(value, str | float)
