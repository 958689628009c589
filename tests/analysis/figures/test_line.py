import numpy as np
import polars as pl
import pytest

from clinit.analysis.figures.line import Line, lines_of, log_floor, spans_decades, starts_of
from clinit.analysis.runs import runs_of
from tests.analysis.conftest import MakeRun


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
    rng, tables = np.random.default_rng(0), []
    for _ in range(3):
        points = [(task, it, float(rng.normal())) for task in (2, 1) for it in range(0, 30, 10)]
        points[int(rng.integers(6))] = (1, 20, None)  # type: ignore[assignment]
        table = pl.DataFrame(points, schema=["task", "iteration", "value"], orient="row")
        tables.append(table.unique(["task", "iteration"], keep="last"))
    expected, found = naive_lines(tables), lines_of(tables, "value")
    assert list(found) == list(expected)
    for task, line in found.items():
        columns = (line.at, line.mean, line.low, line.high)
        assert np.column_stack(columns) == pytest.approx(np.array(expected[task]))


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


def test_a_logarithmic_scale_contains_every_start() -> None:
    for begin, wanted in ((0.3, 3e-3), (2e-4, 1.6e-4), (0.0, 3e-3), (1e-12, 3e-6)):
        both = [np.array([8.0, 1e-3]), np.array([begin, 0.3, 1e-6])]
        floor = log_floor([[Line(each, each, each, each)] for each in both])
        assert floor == pytest.approx(wanted)
