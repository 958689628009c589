"""Continual-learning accuracies, forgetting and transfer as queries over a run record.

The record contains the number of correct test images of each class at each evaluation. Each
accuracy is in percent of the test images of

    acc_pre         classes of the base data set
    acc_new         classes of the current task
    acc_old         base classes and classes of earlier tasks
    acc_all         all classes seen so far
    acc_pre_alone   base images, predicted among the base classes alone
    acc_in_task     images of all classes seen, each predicted within its own task

The last two are computed from `correct_in_task` of the record. `acc_pre` is measured among old and
new rows, `acc_pre_alone` only among base rows: their difference is the accuracy lost to new
classes, without the accuracy lost because old rows change. An accuracy is null if its classes have
no test image, or the record lacks the counts. Reported values are means over evaluation points
("average accuracy"), including the point before the first step.

With a(t, s) the accuracy on the classes of task s after task t, among all classes seen by then, and
T the last task, backward transfer in percentage points is

    BWT = mean over s = 1 ... T - 1 of a(T, s) - a(s, s).

Forgetting starts from the best accuracy of a task, BWT from the accuracy at the end of the task.
Both leave out tasks without a test image, and the base classes, because their accuracy before the
new classes is not comparable. In the source, the task of each test image is known. Here it is
unknown, so old classes also lose images to new classes.

Forward transfer is the best top-1 of a linear probe on the classes of the next task
(`clinit train-top --probe`), an upper estimate. `forward_transfer` assigns it to the task that was
just learnt, `forward_transfer_into` to the probed task, as in the paper's Table 7.

Sources: H. Koh, D. Kim, J.-W. Ha, J. Choi, "Online continual learning on class incremental
blurry task configuration with anytime inference", ICLR 2022 (average accuracy);
A. Chaudhry, P. Dokania, T. Ajanthan, P. Torr, "Riemannian walk for incremental learning",
ECCV 2018 (forgetting); S.-A. Rebuffi, A. Kolesnikov, G. Sperl, C. Lampert, "iCaRL", CVPR
2017 (average incremental accuracy); G. M. van de Ven, A. S. Tolias, "Three scenarios for continual
learning", 2019 (accuracy within tasks); D. Lopez-Paz, M. Ranzato, "Gradient episodic memory for
continual learning", NeurIPS 2017 (backward transfer); the paper's appendix on linear probing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import polars as pl

from clinit.errors import RecordError
from clinit.headtrain.protocol.record.format import RunRecord
from clinit.headtrain.protocol.record.info import settings_of

ACCURACIES = ("acc_pre", "acc_new", "acc_old", "acc_all")
IN_TASK = ("acc_pre_alone", "acc_in_task")
_COUNTS = "correct_in_task"


def accuracy_points(evaluations: pl.DataFrame, classes: pl.DataFrame) -> pl.DataFrame:
    """Return the six accuracies at each evaluation: task, iteration, acc_*; sorted."""
    if _COUNTS not in evaluations.columns:  # a record of an earlier version
        evaluations = evaluations.with_columns(pl.lit(None, pl.Int32).alias(_COUNTS))
    origin, task, every = pl.col("origin"), pl.col("task"), pl.lit(True)
    pooled = {"acc_pre": _pooled(origin == 0), "acc_new": _pooled(origin == task)}
    pooled |= {"acc_old": _pooled(origin < task), "acc_all": _pooled(every)}
    pooled["acc_pre_alone"] = _pooled(origin == 0, _COUNTS)
    pooled["acc_in_task"] = _pooled(every, _COUNTS)
    seen = with_origin(evaluations, classes).filter(origin <= task)
    return seen.group_by("task", "iteration").agg(**pooled).sort("task", "iteration")


def accuracy_matrix(evaluations: pl.DataFrame, classes: pl.DataFrame) -> pl.DataFrame:
    """Return the accuracy on the classes of each task at the end of each task.

    Columns: after_task, on_task (0 = base classes), accuracy; among all classes seen so far.
    """
    return (
        with_origin(at_end(evaluations), classes)
        .filter(pl.col("origin") <= pl.col("task"))
        .group_by(after_task="task", on_task="origin")
        .agg(accuracy=_pooled(pl.lit(True)))
        .sort("after_task", "on_task")
    )


def forgetting(matrix: pl.DataFrame) -> float | None:
    """Return the mean drop of earlier tasks from their best to their final accuracy.

    The mean is over the tasks before the last one, without the base classes, whose accuracy before
    the new classes is not recorded. None if there is no earlier task.
    """
    final_task = matrix["after_task"].max()
    if final_task is None:  # no test image
        return None
    earlier = matrix.filter((pl.col("on_task") > 0) & (pl.col("on_task") < final_task))
    final = pl.col("after_task") == final_task
    drops = earlier.group_by("on_task", maintain_order=True).agg(
        drop=pl.col("accuracy").filter(~final).max() - pl.col("accuracy").filter(final).first()
    )
    return mean(drops["drop"])


def at_start(points: pl.DataFrame) -> pl.DataFrame:
    """Return the evaluation before the first step of each task."""
    return points.filter(pl.col("iteration") == 0)


def at_end(points: pl.DataFrame) -> pl.DataFrame:
    """Return the last evaluation of each task."""
    return points.filter(pl.col("iteration") == pl.col("iteration").max().over("task"))


def mean(values: pl.Series) -> float | None:
    """Return the mean of all values that are not null; None without such values."""
    average = values.cast(pl.Float64).mean()
    assert average is None or isinstance(average, float)
    return average


def with_origin(evaluations: pl.DataFrame, classes: pl.DataFrame) -> pl.DataFrame:
    """Add `origin`, the task in which each class arrived.

    Raises:
        RecordError: If a row is evaluated that is not among the classes.
    """
    origins = classes.select("row", origin="task")
    joined = evaluations.join(origins, on="row", how="left", validate="m:1")
    if joined["origin"].null_count():
        unknown = joined.filter(pl.col("origin").is_null())["row"].n_unique()
        raise RecordError(
            f"the record evaluates {unknown:,} head rows that its list of classes does not hold",
            remedy="The record is damaged: run `clinit train-head` again with another --out.",
        )
    return joined


def _pooled(chosen: pl.Expr, name: str = "correct") -> pl.Expr:
    # int64: a sum of int32 stays int32 in polars.
    correct = pl.col(name).cast(pl.Int64).filter(chosen)
    total = pl.col("total").cast(pl.Int64).filter(chosen).sum()
    known = (total > 0) & (correct.null_count() == 0)
    return pl.when(known).then(100.0 * correct.sum() / total)


def backward_transfer(matrix: pl.DataFrame) -> float | None:
    """Return the backward transfer of an accuracy matrix; None if there is no earlier task."""
    after, on = pl.col("after_task"), pl.col("on_task")
    last = matrix["after_task"].max()
    if last is None:  # no test image
        return None
    own = matrix.filter((on == after) & (after < last))
    final = matrix.filter(after == last).select("on_task", final="accuracy")
    joined = own.join(final, on="on_task", how="inner")
    return mean(joined["final"] - joined["accuracy"])


def transfers(tasks: Iterable[Mapping[str, Any]]) -> dict[int, tuple[int, float]]:
    """Return the linear probes of a run: by task just learnt, the probed task and top-1 (percent).

    Empty for runs of `clinit train-head`, which do not probe.
    """
    return {
        task["task"]: (probe.get("task", task["task"] + 1), 100 * float(probe["top1"]))
        for task in tasks
        if (probe := task.get("forward_transfer")) is not None
    }


def predictions(record: RunRecord) -> pl.DataFrame:
    """Return the predicted class of each test image at the end of each task.

    With `mistakes = "all"`, at every evaluation. Columns: task, iteration, row (the head row of its
    class), image (its number within the class), predicted (a head row).

    Raises:
        RecordError: If the record does not contain the mistakes.
    """
    if record.mistakes is None:
        where = record.path or record.info["id"]
        raise RecordError(
            f"the record {where} does not list the mistaken images: it was written by"
            " an earlier version",
            remedy="Train it again with `--config` and the study.toml of the record.",
        )
    keys, numbers = ["task", "iteration", "row", "image"], pl.int_ranges("total").alias("image")
    evaluations, wrong = record.evaluations, record.mistakes.cast({"image": pl.Int64})
    if settings_of(record.info)["mistakes"] == "end":
        evaluations = at_end(evaluations)
    images = evaluations.select(*keys[:3], numbers).explode("image")
    known = images.drop_nulls("image").join(wrong, on=keys, how="left", maintain_order="left")
    return known.with_columns(pl.col("predicted").fill_null(pl.col("row")))
