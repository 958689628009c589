"""Accuracies, losses and gain from the record of one run, as a row of the report."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import polars as pl

from clinit.analysis.metrics import accuracy
from clinit.analysis.metrics.efficiency import GAINS, initialisation_seconds, mean_gain
from clinit.analysis.report.table import NOTHING
from clinit.errors import RecordError
from clinit.extract.cache.head import Head
from clinit.headtrain.heads.start.settings import Start
from clinit.headtrain.protocol.record.format import RunRecord, final_head, finite
from clinit.headtrain.protocol.record.info import held_out_share, settings_of, study_of_run
from clinit.headtrain.protocol.study.parts import AUTO_EVERY, evaluation_points
from clinit.headtrain.protocol.study.rules import PLACES
from clinit.setting import fields_of
from clinit.words import printable

INIT_SETTINGS = frozenset(fields_of(Start)) - {"head_width"}
"""Settings of the start of new rows."""
SIDES: tuple[Literal["base", "new"], ...] = ("base", "new")
Row = dict[str, Any]
VALUES = ("loss_new", *accuracy.ACCURACIES, *accuracy.IN_TASK)
"""Values that are averaged over evaluations."""
OF_TASK = (
    *("classes", "train_rows", "val_rows", "buffer_rows", "buffer_classes"),
    *("initialisation", "lambda_curve", "diagnosis"),
)
"""Facts about a task that its row repeats from the record."""


def over_tasks(record: RunRecord, points: pl.DataFrame, joined: pl.DataFrame) -> Row:
    """Return the values at the ends of the tasks, joined with the values at their starts."""
    matrix = accuracy.accuracy_matrix(record.evaluations, record.classes)
    tasks = points["task"].unique().sort().to_list()
    cells = {(after, on): value for after, on, value in matrix.iter_rows()}
    first, last = accuracy.at_start(joined), accuracy.at_end(points)["acc_all"]
    before = accuracy.at_start(points).filter(task=1)["acc_pre_alone"]
    return {
        "acc_new_start": accuracy.mean(first["acc_new"]),
        "loss_new_start": accuracy.mean(first["loss_new"]),
        # Methods that compute the whole head change its base rows before the first evaluation.
        "acc_pre_before": before.first() if "init" in settings_of(record.info) else None,
        "last_accuracy": last.last(),  # of the last task that was learnt
        "forgetting": accuracy.forgetting(matrix),
        "backward_transfer": accuracy.backward_transfer(matrix),
        "average_incremental_accuracy": accuracy.mean(last),
        # Row: after task 1, 2, ...; column: on the base classes, on task 1, 2, ...
        "accuracy_matrix": [[cells.get((after, on)) for on in [0, *tasks]] for after in tasks],
    }


COLLAPSE = ("nc1", "nc2", "nc3", "nc2_floor", "nc4", "d_ls", "d_ls_relative", "d_ls_angle")
"""Measures of neural collapse, from left to right."""


@dataclass(frozen=True, eq=False)
class RunSummary:
    """A run, its evaluation points and its comparison with the random run."""

    record: RunRecord
    points: pl.DataFrame
    """task, iteration, loss_new, elapsed_s, acc_pre, acc_new, acc_old, acc_all, acc_pre_alone,
    acc_in_task: one row per evaluation."""
    gain: pl.DataFrame | None = None
    """Gain over the random run, which is compared with itself; None without a random run."""
    remarks: tuple[str, ...] = ()
    """Notes of the report on the choice of this run, which its row repeats."""
    by_digest: bool = False
    """Whether digests distinguish stored heads and arrays, of which the report has several."""

    def __repr__(self) -> str:
        return f"<RunSummary of {self.record}>"

    @classmethod
    def of(cls, record: RunRecord) -> RunSummary:
        """Compute the evaluation points of `record`."""
        points = record.points.select("task", "iteration", "loss_new", "elapsed_s")
        found = accuracy.accuracy_points(record.evaluations, record.classes)
        points = points.join(found, on=["task", "iteration"], how="full", coalesce=True)
        return cls(record, points.sort("task", "iteration"))

    @property
    def head(self) -> Head:
        """The head after the last task.

        Raises:
            ClinitError: If the record contains none, or if it is not linear in the features.
        """
        return self.record.head or final_head(self.record)

    @property
    def init(self) -> str:
        """The initialisation of new rows; the method, if the method computes the whole head."""
        return str(self.config.get("init") or self.config["method"])

    @property
    def is_solved(self) -> bool:
        """Whether the method computes the whole head: without initialisation, there is no gain."""
        return "init" not in self.config

    @property
    def scale(self) -> str:
        """The scale of new rows."""
        return str(self.config.get("scale", "none"))

    @cached_property
    def config(self) -> dict[str, Any]:
        """The flat configuration of the run."""
        return settings_of(self.record.info)

    @cached_property
    def idle(self) -> frozenset[str]:
        """The settings that the run does not read."""
        try:
            return frozenset(study_of_run(self.record.info, str(self.path)).idle())
        except RecordError:  # settings of another version
            return frozenset()

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The settings that can distinguish the run from other runs, including data sets."""
        left_out = {"init", "scale", *PLACES}
        config = {name: value for name, value in self.config.items() if name not in left_out}
        # Zero trained blocks distinguish runs that trained only heads from runs of train-top.
        names = {**self.data_names, "measured_on": self.measured_on, "top_blocks": 0}
        head = self.record.info.get("head") or {}
        path = head.get("path")
        digest = (head.get("digest") or "")[:6] if path or self.by_digest else ""
        file = f"{Path(path).name if path else 'stored'} {digest}".rstrip() if head else None
        backbone = self.record.info["new"]["fingerprint"].get("backbone")
        return {**names, "backbone": backbone, "head": file, **config}

    @cached_property
    def texts(self) -> dict[str, str | None]:
        """Settings, initialisation and scale as text.

        A setting that the run does not read, or that is unknown, is None.
        """
        found = self.settings
        unknown = {name for name in found if found[name] is None and name not in self.config}
        left_out = self.idle | unknown
        texts = {name: None if name in left_out else _text(found[name]) for name in found}
        scale = None if self.init == "random" or self.is_solved else self.scale
        return {**texts, "init": self.init, "scale": scale}

    @property
    def path(self) -> Path:
        """The folder of the record; empty for a record that was never written."""
        return self.record.path or Path()

    def facts(self, left_out: Collection[str] = ()) -> str:
        """Return data, base head and settings that the run reads, without some settings.

        Paths are left out: copies of caches and heads are the same.
        """
        texts = {n: t for n, t in self.texts.items() if n not in {*SIDES, "head", *left_out}}
        digest = (self.record.info.get("head") or {}).get("digest")
        return json.dumps([texts, self.data, digest], sort_keys=True)

    @cached_property
    def key(self) -> str:
        """The facts that comparable runs share: all but how new rows start."""
        return self.facts(self.of_start)

    @property
    def of_start(self) -> frozenset[str]:
        """The settings in which comparable runs may differ."""
        # Without rehearsal, only the initialisation uses the buffer.
        is_own = self.config.get("method") in ("naive", "ewc")
        return INIT_SETTINGS.union(["buffer"] if is_own else ())

    @cached_property
    def data(self) -> str:
        """The facts about base and new data, without paths, that the runs of a table share."""
        return "\n".join(_without_path(self.record.info[each]) for each in SIDES)

    @property
    def is_held_out(self) -> bool:
        """Whether accuracies are measured on held-out training images (`sweep --held-out`)."""
        return held_out_share(self.record.info) is not None

    @property
    def is_diagnosed(self) -> bool:
        """Whether neural collapse was measured at the ends of tasks (`train-head --diagnose`)."""
        return any(task.get("diagnosis") for task in self.record.info["tasks"])

    @property
    def measured_on(self) -> str:
        """The images that accuracies are measured on, in words."""
        share = held_out_share(self.record.info)
        return "test images" if share is None else f"held-out training images ({100 * share:.3g} %)"

    @property
    def diagnosed_on(self) -> str:
        """The rows, weights and groups of neural collapse, in words."""
        solved = self.is_solved
        rows = "all training images of the classes seen" if solved else "buffer and new images"
        if self.config.get("old_rows") == "statistics":
            rows = "statistics of old classes and new images"
        counts = "every image counts" if solved else "images that repeat each other count as one"
        return f"on {rows} (training), classes weigh the same, {counts}"

    def images(self, measure: str) -> int:
        """Return the number of test images that decide an accuracy, per task if it is of tasks."""
        tasks = self.record.classes.group_by("task").agg(pl.col("val_rows").sum())
        counts: dict[int, int] = dict(tasks.iter_rows())
        base = counts.pop(0, 0)
        if measure in ("acc_pre", "acc_pre_alone"):
            return base
        if measure in ("acc_old", "acc_all", "acc_in_task", "last_accuracy"):
            return base + sum(counts.values())
        return sum(counts.values()) // max(1, len(counts))

    @property
    def data_names(self) -> dict[str, str | None]:
        """The names of the folders of the base and the new cache."""
        names: dict[str, str | None] = dict.fromkeys(SIDES)
        for side, own in self.record.sides.items():
            arrays = f"arrays {_digest(_without_path(own))}" if self.by_digest else None
            names[side] = Path(own["path"]).name or arrays
        return names

    @cached_property
    def joined(self) -> pl.DataFrame:
        """The evaluation points of the tasks whose new rows were initialised.

        Without base classes, the first task is left out, because least squares computes its head.
        """
        return self.points if self.record.info["base"] else self.points.filter(pl.col("task") > 1)

    @cached_property
    def averaged(self) -> pl.DataFrame:
        """The evaluation points that reported values average over.

        The early points of the default schedule are left out. Otherwise the first updates would
        weigh as much as all later updates.
        """
        points = self.points
        if self.config.get("eval_every") == "auto":
            regular = evaluation_points(self.config["iterations"], AUTO_EVERY)
            points = points.filter(pl.col("iteration").is_in(regular))
        return points

    def row(self) -> Row:
        """Return the run as a row of the report, with plain values for JSON."""
        return dict(self._row)

    @cached_property
    def _row(self) -> Row:
        """The row of the run, computed once for all tables of a report."""
        info, told, tasks = self.record.info, self.record.info["tasks"], self._tasks()
        seconds, start = info.get("seconds"), initialisation_seconds(told)
        probes = [top1 for _, top1 in accuracy.transfers(told).values()]
        last: Mapping[str, Any] = (told[-1].get("diagnosis") if told else None) or {}
        end, sample = accuracy.at_end(self.points).tail(1), info.get("loss_sample_rows")
        share = None if start is None or not seconds else start / seconds
        row: Row = {"id": info["id"], "path": str(self.path), "init": self.init}
        row |= {"scale": self.scale}
        row |= {name: self.config.get(name) for name in ("loss", "seed", "head_width")}
        row |= {**self.data_names, "measured_on": self.measured_on}
        row |= {name: accuracy.mean(self.averaged[name]) for name in VALUES} | mean_gain(self.gain)
        row |= {"seconds": seconds, "evaluation_points": len(self.averaged)}
        row |= {"loss_sample_rows": sample, **over_tasks(self.record, self.points, self.joined)}
        row |= {"initialisation_seconds": start, "initialisation_share": share}
        row["forward_transfer"] = sum(probes) / len(probes) if probes else None
        row |= {name: last.get(name) for name in COLLAPSE}
        row["final"] = {n: end[n].first() for n in (*accuracy.ACCURACIES, *accuracy.IN_TASK)}
        row["tasks"] = [self._task_row(task) for task in tasks.to_dicts()]
        row |= {"config": self.config, "notes": [*info.get("notes", []), *self.remarks]}
        found: Row = finite(row)
        return found

    def _tasks(self) -> pl.DataFrame:
        """Return means, first and last values, spikes and gains of each task."""
        values = pl.col(*VALUES).cast(pl.Float64)
        ends = self.points.group_by("task").agg(
            values.filter(pl.col("iteration") == 0).first().name.suffix("_start"),
            values.last().name.suffix("_end"),
        )
        parts = [self.averaged.group_by("task").agg(values.mean())]
        parts += [] if self.gain is None else [self.gain.drop("reason")]
        for part in parts:
            ends = ends.join(part, on="task", how="left")
        return ends.sort("task")

    def _task_row(self, values: Row) -> Row:
        told, probes = self.record.info["tasks"], accuracy.transfers(self.record.info["tasks"])
        task = values["task"]
        about: Mapping[str, Any] = next((each for each in told if each["task"] == task), {})
        return {
            **dict.fromkeys(["target", "reached_at", "random_reached_at", *GAINS]),
            **values,
            "forward_transfer": probes[task][1] if task in probes else None,
            "forward_transfer_into": next((p for to, p in probes.values() if to == task), None),
            **{name: about.get(name) for name in OF_TASK},
        }


def frame_of(rows: Sequence[Row]) -> pl.DataFrame:
    """Return rows of plain values as a table, with the columns of all rows.

    Polars refuses text with bytes that are not UTF-8, which names of folders may contain, so these
    bytes are escaped.
    """
    shown = [
        {name: printable(each) if isinstance(each, str) else each for name, each in row.items()}
        for row in rows
    ]
    names = list(dict.fromkeys(name for row in rows for name in row))
    # Not strict: fields of a record that are not checked may be of any type.
    return pl.DataFrame(shown, schema=names, infer_schema_length=None, strict=False)


def _text(value: object) -> str:
    if value is None:
        return NOTHING
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, int) and not isinstance(value, bool) and value >= 10_000:
        return f"{value:,}"
    if isinstance(value, list | tuple):  # a class order: too long to print, but not to compare
        text = "\n".join(map(str, value))
        return f"given ({_digest(text)})"
    return str(value)


def _without_path(side: Mapping[str, Any] | None) -> str:
    """Return the facts about base or new data, of which copies have the same."""
    own = {name: value for name, value in (side or {}).items() if name != "path"}
    return json.dumps(own, sort_keys=True, default=str)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:6]
