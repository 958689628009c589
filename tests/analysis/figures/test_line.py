import math
from collections.abc import Sequence

import numpy as np
import polars as pl
import pytest

from clinit.analysis.figures.line import (
    Line,
    finite_values,
    lines_of,
    round_ticks,
    spans_decades,
    starts_of,
)
from clinit.analysis.runs import runs_of
from tests.analysis.conftest import MakeRun


def line_of(at: Sequence[float], seeds: Sequence[Sequence[float]]) -> Line:
    values = np.array(seeds, dtype=np.float64)
    low, high = values.min(axis=0), values.max(axis=0)
    with np.errstate(invalid="ignore"):
        return Line(np.array(at, dtype=np.float64), values.mean(axis=0), low, high)


@pytest.mark.parametrize("columns", [1, 7, 100])
def test_thinning_keeps_the_least_and_the_greatest_point_of_each_column(columns: int) -> None:
    values = np.random.default_rng(1000).normal(2.0, 1.0, (3, 1000))
    line = line_of(range(1000), list(values))
    thin = line.thinned(0, 1000, columns)
    assert len(thin.at) <= 2 * columns + 2
    kept = set(zip(thin.at.tolist(), thin.mean.tolist(), strict=True))
    assert kept <= set(zip(line.at.tolist(), line.mean.tolist(), strict=True))
    for column in range(columns):
        inside = (line.at >= column * 1000 / columns) & (line.at < (column + 1) * 1000 / columns)
        there = (thin.at >= column * 1000 / columns) & (thin.at < (column + 1) * 1000 / columns)
        assert thin.mean[there].min() == line.mean[inside].min()
        assert thin.mean[there].max() == line.mean[inside].max()
        assert thin.low[there].min() == line.low[inside].min()
        assert thin.high[there].max() == line.high[inside].max()
    assert (thin.at[0], thin.at[-1]) == (line.at[0], line.at[-1])


def test_a_line_is_broken_where_the_value_of_a_seed_is_not_finite() -> None:
    line = line_of(range(6), [[1, 2, math.nan, 4, 5, math.inf], [1, 2, 3, 4, 5, 6]])
    assert [piece.at.tolist() for piece in line.pieces()] == [[0, 1], [3, 4]]
    assert finite_values([[line]]).count(5.0) == 2 + 1
    assert line_of([0, 1], [[math.nan, math.nan]]).pieces() == []
    assert line_of([], [[]]).pieces() == []


def naive_lines(tables: list[pl.DataFrame]) -> dict[int, list[tuple[int, float, float, float]]]:
    """The same with loops: points that every seed has, in order."""
    rows = [{(t, i): v for t, i, v in table.iter_rows() if v is not None} for table in tables]
    found: dict[int, list[tuple[int, float, float, float]]] = {}
    for task, iteration in sorted(set.intersection(*map(set, rows))):
        values = [each[(task, iteration)] for each in rows]
        point = (iteration, sum(values) / len(values), min(values), max(values))
        found.setdefault(task, []).append(point)
    return found


def test_lines_over_seeds_agree_with_loops_over_rows() -> None:
    rng = np.random.default_rng(0)
    tables = []
    for _ in range(3):
        points = [(task, it, float(rng.normal())) for task in (2, 1) for it in range(0, 30, 10)]
        points[int(rng.integers(6))] = (1, 20, None)  # type: ignore[assignment]
        table = pl.DataFrame(points, schema=["task", "iteration", "value"], orient="row")
        tables.append(table.unique(["task", "iteration"], keep="last"))
    expected = naive_lines(tables)
    found = lines_of(tables, "value")
    assert list(found) == list(expected)
    for task, line in found.items():
        columns = (line.at, line.mean, line.low, line.high)
        got = np.column_stack(columns)
        assert got == pytest.approx(np.array(expected[task]))


@pytest.mark.parametrize(
    ("low", "high", "log", "expected"),
    [
        (0.0, 100.0, False, [0, 20, 40, 60, 80, 100]),
        (0.0, 3.1, False, [0, 1, 2, 3]),
        (0.39, 9.3, True, [0.5, 1, 2, 5]),
        (1e-4, 50.0, True, [1e-4, 1e-3, 1e-2, 0.1, 1, 10]),
        (2.0, 2.0, False, [2.0]),
    ],
)
def test_ticks_are_round_numbers(low: float, high: float, log: bool, expected: list[float]) -> None:
    assert round_ticks(low, high, log=log) == pytest.approx(expected)


def test_values_span_decades_from_a_factor_of_20_on_and_only_above_0() -> None:
    assert spans_decades([1.0, 21.0])
    assert not spans_decades([1.0, 19.0])
    assert not spans_decades([0.0, 100.0])
    assert not spans_decades([])


def test_runs_that_differ_only_in_their_seed_are_one_start(make_run: MakeRun) -> None:
    runs = [make_run(init, seed=seed) for seed in range(3) for init in ("random", "least-square")]
    starts = starts_of(runs_of(runs).runs)
    assert [(start.name, len(start.runs)) for start in starts] == [
        *(("random", 3), ("least-square", 3))
    ]
    assert [run.config["seed"] for run in starts[0].runs] == [0, 1, 2]
    ridges = [make_run("least-square", lam=lam, seed=s) for lam in (0.1, 1.0) for s in (0, 1)]
    assert [start.name for start in starts_of(runs_of(ridges).runs)] == [
        *("least-square (λ 0.1)", "least-square (λ 1)")
    ]
