"""The 434 numbers of the paper, and our numbers, by table and place.

A *place* is a line of a table: method, loss, budget (iterations and buffer) and start.

Source: M. Y. Harun, C. Kanan, "A good start matters: enhancing continual learning with data-driven
weight initialization", CoLLAs 2025, tables 1 to 8 and the text on neural collapse.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from io import BytesIO
from typing import Any

import msgspec
import polars as pl

from clinit.analysis.metrics.accuracy import ACCURACIES
from clinit.analysis.paper.tables import CONTENT, PaperTable
from clinit.analysis.report import measures
from clinit.analysis.report.run import Row, RunSummary

_OWN = msgspec.convert(CONTENT["measure"], tuple[measures.Measure, ...])
_ALIASES = {"gain": "gain_equal_level", "acc_fw": "forward_transfer"}
MEASURES = {
    **measures.MEASURES,
    **{each.name: each for each in _OWN},
    **{name: measures.MEASURES[of] for name, of in _ALIASES.items()},
}
"""The measures of reports, and those that only the paper prints, by their names in its tables."""
GROUP = ("method", "loss", "iterations", "buffer")
"""The settings that lines share if they are compared."""
PLACE = (*GROUP, "init")
Budget = tuple[int, int | None]
SCHEMA = {
    **{"method": pl.String, "loss": pl.String, "iterations": pl.Int64, "buffer": pl.Int64},
    **{"init": pl.String, "metric": pl.String},
}


def paper_numbers(table: PaperTable) -> pl.DataFrame:
    """Return `paper` and `paper_deviation` (over data orders; mostly null) by place and metric.

    Numbers of a head are repeated for all starts from that head.
    """
    found = _numbers().filter(pl.col("table") == table.source).drop("table")
    if table.name == "cost":
        return with_overhead(found, "paper", [*GROUP])
    if table.name in ("first-task", "neural-collapse"):
        # Table 1 prints A_pre and D_LS of the pretrained heads for class means only.
        of_head = pl.col("metric").is_in([*({"acc_pre", "d_ls"} & {*table.metrics})])
        heads = _numbers().filter(of_head, table="first_task", init="class-mean")
        heads = heads.select("loss", "metric", "paper", "paper_deviation")
        places = found.select(PLACE).unique(maintain_order=True)
        if table.name == "neural-collapse":
            losses = heads.select("loss").unique(maintain_order=True)
            places = places.drop("loss").join(losses, how="cross").select(PLACE)
        repeated = places.join(heads, on="loss").select(found.columns)
        found = pl.concat([found.filter(~of_head), repeated])
    return found


def with_overhead(numbers: pl.DataFrame, name: str, by: Sequence[str]) -> pl.DataFrame:
    """Add the metric `overhead`: minutes of initialisation in % of the run with random rows."""
    total = numbers.filter(metric="minutes_total", init="random").select(*by, total=name)
    starts = numbers.filter(metric="minutes_init").join(total, on=by, nulls_equal=True)
    share = (100 * pl.col(name) / pl.col("total")).alias(name)
    found = starts.with_columns(share, metric=pl.lit("overhead"))
    return pl.concat([numbers, found.select(numbers.columns)])


def deviation_of(init: str, metric: str) -> float:
    """Return the paper's only deviation of a metric over class orders, of Table 6; else 0."""
    found = _numbers().filter(table="data_orders", init=init, metric=metric)
    return float(next(iter(found["paper_deviation"]), 0.0))


@cache
def _numbers() -> pl.DataFrame:
    content = (files("clinit.analysis.paper") / "numbers.csv").read_bytes()
    found = pl.read_csv(BytesIO(content), schema_overrides={"std": pl.Float64})
    texts = [pl.col(name).fill_null("") for name in ("method", "init")]
    found = found.with_columns(*texts, pl.col("iterations").fill_null(0))
    return found.select("table", *PLACE, "metric", paper="value", paper_deviation="std")


def places_of(
    runs: Sequence[RunSummary], paper: pl.DataFrame
) -> Iterator[tuple[RunSummary, dict[str, Any]]]:
    """Yield each run that belongs to a table with its place.

    A budget of our runs is matched with the equal budget of the paper. If no budget is equal, but
    we have as many budgets as the paper (a reduced setting), budgets are matched in order, smaller
    budgets first. Runs of other budgets get new places, which the paper lacks.
    """
    for (method,), theirs in paper.group_by("method", maintain_order=True):
        own = [run for run in runs if run.config["method"] == method]
        budgets = _matched(
            sorted({budget_of(run) for run in own}, key=_size),
            sorted(theirs.select("iterations", "buffer").unique().rows(), key=_size),
        )
        lines = {*theirs.select("loss", "init").rows()}
        for run in sorted(own, key=lambda run: run.config["seed"]):
            if (run.config["loss"], run.init) in lines:
                iterations, buffer = budgets[budget_of(run)]
                place = (method, run.config["loss"], iterations, buffer, run.init)
                yield run, dict(zip(PLACE, place, strict=True))


def value_of(row: Row, metric: str, *, at_start: bool) -> float | None:
    """Return a metric of the paper from the row of a run in the report.

    With `at_start`, the table is about the first task before any training.
    """
    value: float | None = None
    if at_start:
        names = {name: f"{name}_start" for name in ACCURACIES}
        value = row["tasks"][0].get((names | {"acc_pre": "acc_pre_alone_start"}).get(metric, ""))
    elif metric.startswith("probe_task"):
        before = [task for task in row["tasks"] if task["task"] == int(metric[-1]) - 1]
        value = before[0]["forward_transfer"] if before else None
    elif metric == "minutes_init":
        tasks = [(task["initialisation"] or {}).get("seconds") for task in row["tasks"]]
        known = [seconds for seconds in tasks if seconds is not None]
        value = sum(known) / 60 if known and row["init"] != "random" else None
    elif metric == "minutes_total":
        value = None if row["seconds"] is None else row["seconds"] / 60
    else:
        value = row.get(_ALIASES.get(metric, metric))
    return value


def budget_of(run: RunSummary) -> Budget:
    """Return the iterations and the buffer of a run."""
    return run.config["iterations"], run.config.get("buffer")


def _size(budget: Budget) -> tuple[int, int]:
    return budget[0], budget[1] or 0


def _matched(ours: list[Budget], theirs: list[Budget]) -> dict[Budget, Budget]:
    if len(ours) == len(theirs) and not set(ours) & set(theirs):
        return dict(zip(ours, theirs, strict=True))
    return {budget: budget for budget in ours}
