"""A table of the paper with our numbers in its places, and whether the paper's effects hold.

An effect is the difference of two starts in a number as printed, seed by seed
(`report.compare`). It gets no verdict if there are fewer than three seeds, or if the paper's
own difference is within the deviation of the paper's numbers over class orders.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import polars as pl

from clinit.analysis.metrics.diagnosis import diagnose_splits
from clinit.analysis.paper import numbers
from clinit.analysis.paper.commands import Places, recorded
from clinit.analysis.paper.settings import PaperSetting, settings_of_heads, settings_of_runs
from clinit.analysis.paper.tables import PaperTable
from clinit.analysis.report.compare import FEWEST, Difference, adjusted_by_holm, step_of
from clinit.analysis.report.run import COLLAPSE, Row, RunSummary
from clinit.analysis.runs import load_runs
from clinit.extract.cache.head import read_head
from clinit.extract.cache.read import open_cache
from clinit.headtrain.protocol.study.study import Study
from clinit.machine import choose_device

Verdict = Literal["holds", "open", "opposite", "within noise", "too few seeds", "-"]
PAIRS = (("least-square", "random"), ("class-mean", "random"), ("least-square", "class-mean"))


LOSSES = ("ce", "sqen", "mse")
STARTS = ("", "random", "class-mean", "least-square")


@dataclass(frozen=True, slots=True)
class Effect:
    """The difference of two starts in one metric."""

    place: Row
    """Place of the start `better`."""
    metric: str
    better: str
    """The start from whose value the other value is subtracted."""
    other: str
    paper: float | None
    noise: float
    """Deviation of the paper's difference over class orders; 0 if the paper gives none."""
    ours: Difference

    @property
    def is_tested(self) -> bool:
        """Whether the effect is one of the tests of the page."""
        return bool(self.paper) and abs(self.paper or 0.0) > self.noise

    @property
    def verdict(self) -> Verdict:
        """Whether the sign matches the paper, if the adjusted test is significant."""
        if not self.paper or self.ours.mean is None:
            return "-"
        if not self.is_tested:
            return "within noise"
        if self.ours.number < FEWEST:
            return "too few seeds"
        if self.ours.result in ("-", "open"):
            return "open"
        return "holds" if self.ours.mean * self.paper > 0 else "opposite"


Collapse = Mapping[str, Mapping[str, Any]]
"""Results of `clinit diagnose` by the loss of the head."""


@dataclass(frozen=True, slots=True, eq=False)
class Reproduction:
    """A table of the paper next to our numbers."""

    table: PaperTable
    lines: pl.DataFrame
    """Place, `our_iterations`, `our_buffer`, metric, `paper`, `paper_deviation`, `ours`,
    `deviation`, `num_seeds` and `difference`, and the lists `seeds` and `values`: one row per
    metric of each place, as sorted in the paper."""
    effects: tuple[Effect, ...]
    settings: tuple[PaperSetting, ...]
    """All settings of the runs, next to the paper's."""
    runs: tuple[RunSummary, ...]

    @property
    def is_reduced(self) -> bool:
        """Whether a setting differs from the paper's, so that numbers need not agree."""
        return any(each.differs for each in self.settings)

    @property
    def groups(self) -> list[pl.DataFrame]:
        """Groups of comparable lines: same method, loss and budget."""
        return self.lines.partition_by(*numbers.GROUP, maintain_order=True)


def reproduction(
    table: PaperTable,
    runs: Sequence[RunSummary],
    collapse: Collapse | None = None,
    *,
    features: Mapping[str, str] | None = None,
) -> Reproduction:
    """Put our numbers into the places of a table.

    Args:
        table: A table of the paper.
        runs: The runs that were trained for the table; other runs are left out.
        collapse: Metrics of the pretrained heads.
        features: Fingerprint of the features on which the metrics of heads were measured.
    """
    paper = numbers.paper_numbers(table)
    used = [*numbers.places_of(runs, paper)] if table.runs else []
    members = [run for run, _ in used]
    settings = (
        settings_of_runs(table, members, paper)
        if table.runs
        else settings_of_heads(table, collapse or {}, features or {})
    )
    lines = _lines(table, paper, used, collapse or {})
    if any(each.differs for each in settings):  # of another setting, it would mean nothing
        lines = lines.with_columns(difference=pl.lit(None, pl.Float64))
    effects = _effects(table, lines, members)
    return Reproduction(table, lines, tuple(effects), tuple(settings), tuple(members))


def _lines(
    table: PaperTable, paper: pl.DataFrame, used: list[tuple[RunSummary, Row]], collapse: Collapse
) -> pl.DataFrame:
    rows: list[Row] = []
    places, on = paper.select(numbers.PLACE), [*numbers.PLACE, "metric"]
    for run, place in used:
        row = run.row()
        for metric in {*table.metrics, "minutes_total", "minutes_init"} - {*COLLAPSE, "overhead"}:
            value = numbers.value_of(row, metric, at_start=table.name == "first-task")
            rows.append({**place, "metric": metric, "seed": row["seed"], "value": value})
    schema = {**numbers.SCHEMA, "seed": pl.Int64, "value": pl.Float64}
    ours = numbers.with_overhead(
        pl.DataFrame(rows, schema=schema), "value", [*numbers.GROUP, "seed"]
    )
    budgets = {tuple(place.values()): numbers.budget_of(run) for run, place in used}
    places = pl.concat([places, ours.select(numbers.PLACE)]).unique(maintain_order=True)
    of_heads = [
        {**place, "metric": metric, "seed": 0, "value": collapse[place["loss"]].get(metric)}
        for place in places.to_dicts()
        for metric in COLLAPSE
        if place["loss"] in collapse
    ]
    ours = pl.concat([ours, pl.DataFrame(of_heads, schema=schema)]).drop_nulls("value")
    number, by_place = pl.col("value"), ours.sort("seed").group_by(on, maintain_order=True)
    means = by_place.agg(
        seeds="seed", values="value", ours=number.mean(), deviation=number.std(), num_seeds=pl.len()
    )
    own = [budgets.get(place, (None, None)) for place in places.rows()]
    places = places.with_columns(
        pl.Series("our_iterations", [each for each, _ in own], pl.Int64),
        pl.Series("our_buffer", [each for _, each in own], pl.Int64),
    )
    metrics = pl.DataFrame({"metric": table.metrics}, schema={"metric": pl.String})
    orders = {"method": [*dict.fromkeys(paper["method"])], "loss": LOSSES, "init": STARTS}
    keys = {n: pl.col(n).replace_strict([*o], [*range(len(o))]) for n, o in orders.items()}
    places = places.sort(keys["method"], keys["loss"], "iterations", keys["init"])
    found = places.join(metrics, how="cross")
    for part in (paper, means):
        found = found.join(part, on=on, how="left", nulls_equal=True, maintain_order="left")
    return found.with_columns(
        pl.col("num_seeds").fill_null(0), difference=pl.col("ours") - pl.col("paper")
    )


def _effects(table: PaperTable, lines: pl.DataFrame, runs: Sequence[RunSummary]) -> list[Effect]:
    known = {
        (tuple(row[name] for name in numbers.PLACE), row["metric"]): row for row in lines.to_dicts()
    }
    result: list[Effect] = []
    for place in lines.select(numbers.PLACE).unique(maintain_order=True).to_dicts():
        for better, other in PAIRS:
            rival = tuple({**place, "init": other}.values())
            if place["init"] != better or (rival, table.metrics[0]) not in known:
                continue
            for metric in table.effects:
                pair = [known[each, metric] for each in (tuple(place.values()), rival)]
                printed = [each["paper"] for each in pair]
                paper = None if None in printed else printed[0] - printed[1]
                noise = math.hypot(
                    *(numbers.deviation_of(init, metric) for init in (better, other))
                )
                step = step_of(runs[0], numbers.MEASURES[metric]) if runs else 0.0
                values = (dict(zip(e["seeds"] or (), e["values"] or (), strict=True)) for e in pair)
                made = Difference.of(*values, step=step)
                result.append(Effect(place, metric, better, other, paper, noise, made))
    tested = [index for index, each in enumerate(result) if each.is_tested]
    for index, made in zip(tested, adjusted_by_holm([result[i].ours for i in tested]), strict=True):
        result[index] = replace(result[index], ours=made)
    return result


def recorded_runs(
    table: PaperTable, where: Places, studies: Sequence[Study]
) -> tuple[RunSummary, ...]:
    """Return the recorded runs of studies; empty if none is recorded."""
    found = recorded(where.runs(table), studies) if table.runs else []
    return load_runs(*found).runs if found else ()


def measured(table: PaperTable, where: Places, runs: Sequence[RunSummary]) -> Reproduction:
    """Put runs into the places of a table, and measure heads if the table has their numbers."""
    base = open_cache(where.sides(table)[0])
    split, collapse = base.split("train"), None
    if set(COLLAPSE) & set(table.metrics):
        assert base.head is not None
        aligned = read_head(where.aligned)
        collapse = {
            loss: diagnose_splits([split], head, lam=0.05, device=choose_device("auto")).content()
            for loss, head in (("ce", base.head), ("mse", aligned))
        }
        collapse["mse"]["alignment"] = aligned.alignment
    return reproduction(table, runs, collapse, features=split.fingerprint.fields)
