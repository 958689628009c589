from __future__ import annotations

import statistics
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clinit.analysis.report.measures import (
    FURTHER_MEASURES,
    MEANS,
    Measure,
    number,
    ranked_measures,
)
from clinit.analysis.report.report import report_of
from clinit.analysis.report.seeds import Spread, best_of_groups, seed_groups
from clinit.headtrain.record.format import RunRecord

MakeRun = Callable[..., RunRecord]
ACCURACY, *_, LOSS, GAIN = ranked_measures("equal-level")


@settings(deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=2))
def test_a_spread_is_mean_and_sample_deviation(values: list[float]) -> None:
    spread = Spread.of(values)
    assert spread is not None
    mean = sum(values) / len(values)
    deviation = (sum((value - mean) ** 2 for value in values) / (len(values) - 1)) ** 0.5
    assert spread.count == len(values)
    assert spread.mean == pytest.approx(mean, abs=1e-6)
    assert spread.deviation == pytest.approx(deviation, rel=1e-6, abs=1e-4)


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (1.005, 1, "1.0"),
        (-0.001, 2, "0.00"),
        (999.994, 2, "999.99"),
        (1234.5678, 2, "1,235"),
        (-1234.5678, 2, "-1,235"),
        (1.5e7, 2, "1.5e+07"),
    ],
)
def test_numbers_keep_to_a_few_characters(value: float, digits: int, text: str) -> None:
    assert number(value, digits) == text


def test_every_measure_is_in_the_rows_and_averaged_over_seeds(make_run: MakeRun) -> None:
    report = report_of([make_run("least-square", seed=seed) for seed in (0, 1)])
    rows = report.rows()
    (group,) = seed_groups(report.runs)
    assert {*MEANS} <= {*rows[0]}
    for measure in (*ranked_measures("random-best"), *FURTHER_MEASURES):
        values = [row[measure.name] for row in rows if row[measure.name] is not None]
        spread = group.values[measure.name]
        assert (spread is None) == (not values)
        if spread is not None:
            assert spread.mean == pytest.approx(statistics.mean(values))


def best(records: list[RunRecord], measure: Measure) -> dict[str, bool]:
    groups = seed_groups(report_of(records).runs)
    names = [f"{group.runs[0].init} {group.runs[0].config['lr']}" for group in groups]
    return dict(zip(names, best_of_groups(groups, measure), strict=True))


def test_the_best_is_that_of_comparable_groups_whatever_their_seeds(make_run: MakeRun) -> None:
    inits = ("random", "least-square")
    records = [make_run(init, lr=0.1, seed=seed) for init in inits for seed in (0, 1)]
    records += [make_run("class-mean", lr=0.2)]  # alone: nothing to compare with
    assert best(records, ACCURACY) == {
        "least-square 0.1": True,
        "random 0.1": False,
        "class-mean 0.2": False,
    }
    assert best(records, LOSS)["least-square 0.1"]
    assert not any(best(records, FURTHER_MEASURES[-3]).values()), "a cost of 0 is no success"


def test_groups_equal_as_printed_are_equally_good(make_run: MakeRun) -> None:
    alike = [make_run(init, accuracy=lambda task, i: 0.5) for init in ("random", "least-square")]
    assert [*best(alike, ACCURACY).values()] == [True, True]


def test_a_mean_over_some_tasks_only_is_not_the_best(make_run: MakeRun) -> None:
    slow = make_run("least-square", accuracy=lambda task, i: 0.9 * (task == 2))
    groups = seed_groups(report_of([make_run("random"), slow]).runs)
    partial = [group for group in groups if group.is_partial(GAIN)]
    assert [group.runs[0].init for group in partial] == ["least-square"]
    assert best([make_run("random"), slow], GAIN) == {
        "random 0.001": True,
        "least-square 0.001": False,
    }


def test_a_value_that_no_run_has_is_nobodys_best(make_run: MakeRun) -> None:
    records = [make_run(init, iterations=0) for init in ("random", "least-square")]
    spike = next(measure for measure in FURTHER_MEASURES if measure.name == "spike_area")
    assert not any(best(records, spike).values())
