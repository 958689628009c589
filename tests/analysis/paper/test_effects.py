from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy.stats import ttest_rel

from clinit.analysis.paper.numbers import Place
from clinit.analysis.paper.reproduction import Effect, adjusted_by_holm, over_images, over_seeds
from clinit.analysis.report.run import RunSummary

Make = Callable[..., tuple[RunSummary, ...]]


def test_the_interval_over_seeds_is_that_of_the_paired_t_test() -> None:
    random = np.random.default_rng(0)
    better = {seed: float(random.normal(2)) for seed in range(5)}
    other = {seed: float(random.normal()) for seed in (3, 1, 0, 2, 4)}
    mean, half, number, p_value = over_seeds(better, other)
    ones, others = ([values[seed] for seed in range(5)] for values in (better, other))
    test: Any = ttest_rel(ones, others)
    expected = test.confidence_interval(0.95)
    assert number == 5
    assert p_value == pytest.approx(test.pvalue)
    assert mean is not None
    assert half is not None
    np.testing.assert_allclose([mean - half, mean + half], expected)


def test_only_seeds_that_both_have_are_compared() -> None:
    assert over_seeds({0: 3.0, 1: 9.0}, {0: 1.0, 2: 4.0}) == (2.0, None, 1, None)
    assert over_seeds({0: 1.0}, {1: 1.0}) == (None, None, 0, None)


@pytest.mark.parametrize("metric", ["acc_new", "acc_all"])
def test_the_difference_over_images_is_that_of_the_accuracies_at_the_ends(
    runs: Make, metric: str
) -> None:
    members = {run.init: run for run in runs(seeds=(1,))}
    mine, theirs = members["least-square"], members["random"]
    mistakes = theirs.record.mistakes
    assert mistakes is not None
    # From the other end of each class: some images are lost, too.
    mirrored = mistakes.with_columns(image=19 - pl.col("image")).sort("task", "row", "image")
    object.__setattr__(theirs.record, "mistakes", mirrored)
    found = over_images(mine, theirs, metric)
    assert found is not None
    difference, half, number, p_value = found
    right = [_naive_right(run, metric) for run in (mine, theirs)]
    assert right[0].keys() == right[1].keys()
    gained = sum(right[0][key] and not right[1][key] for key in right[0])
    lost = sum(right[1][key] and not right[0][key] for key in right[0])
    assert number == len(right[0])
    assert gained > lost > 0
    assert difference == pytest.approx(100 * (gained - lost) / number)
    variance = (gained + lost - (gained - lost) ** 2 / number) / number**2
    assert half == pytest.approx(196 * np.sqrt(variance))
    assert p_value == pytest.approx(_naive_mcnemar(gained, lost))
    ends = [_at_end(run, metric) for run in (mine, theirs)]
    assert difference == pytest.approx(ends[0] - ends[1])


def _naive_right(run: RunSummary, metric: str) -> dict[tuple[int, int], bool]:
    record = run.record
    assert record.mistakes is not None
    wrong = set(record.mistakes.select("task", "row", "image").rows())
    found: dict[tuple[int, int], bool] = {}
    for row, task, count in record.classes.select("row", "task", "val_rows").iter_rows():
        when = 2 if metric == "acc_all" else task
        if when:
            found |= {(row, image): (when, row, image) not in wrong for image in range(count)}
    return found


def _naive_mcnemar(gained: int, lost: int) -> float:
    from math import comb

    total = gained + lost
    tail = float(sum(comb(total, k) for k in range(min(gained, lost) + 1)) / 2**total)
    return min(1.0, 2 * tail)


def _at_end(run: RunSummary, metric: str) -> float:
    counts = run.record.evaluations.filter(
        pl.col("iteration") == pl.col("iteration").max().over("task")
    ).join(run.record.classes.select("row", origin="task"), on="row")
    if metric == "acc_all":
        counts = counts.filter(pl.col("task") == 2)
    else:
        counts = counts.filter(pl.col("task") == pl.col("origin"))
    return 100 * int(counts["correct"].sum()) / int(counts["total"].sum())


PLACE = Place("", "ce", 0, None, "least-square")


def effect(paper: Any, mean: Any, p_value: Any) -> Effect:
    return Effect(PLACE, "acc_new", "least-square", "random", paper, mean, 1.0, "seeds", 5, p_value)


@pytest.mark.parametrize(
    ("paper", "mean", "p_value", "expected"),
    [
        (5.0, 3.0, 0.04, "holds"),
        (-5.0, -3.0, 0.04, "holds"),
        (5.0, 3.0, 0.05, "open"),
        (5.0, 0.0, 1.0, "open"),
        (5.0, -3.0, 0.04, "opposite"),
        (None, 3.0, 0.04, "-"),
        (5.0, None, None, "-"),
        (5.0, 3.0, None, "-"),
    ],
)
def test_an_effect_holds_where_the_test_finds_the_sign_of_the_paper(
    paper: Any, mean: Any, p_value: Any, expected: str
) -> None:
    assert adjusted_by_holm([effect(paper, mean, p_value)])[0].verdict == expected


def _naive_holm(p_values: list[float]) -> list[float]:
    """Return the least level at which the sequence of tests of Holm rejects each hypothesis."""
    order, count = np.argsort(p_values), len(p_values)
    levels = [(count - place) * p_values[index] for place, index in enumerate(order)]
    return [min(1.0, max(levels[: [*order].index(index) + 1])) for index in range(count)]


@pytest.mark.parametrize("seed", range(5))
def test_p_values_are_adjusted_by_holm_for_the_effects_that_the_paper_has(seed: int) -> None:
    random = np.random.default_rng(seed)
    p_values = [*(random.random(9) ** 4).tolist(), 0.01, 0.01, 0.0, 1.0]
    outside = [effect(None, 3.0, 1e-9), effect(5.0, 3.0, None), effect(0.0, 3.0, 1e-9)]
    found = adjusted_by_holm([*outside, *(effect(5.0, 3.0, each) for each in p_values)])
    assert [each.adjusted for each in found[:3]] == [None] * 3
    assert [each.p_value for each in found[3:]] == p_values
    np.testing.assert_allclose([each.adjusted or 0.0 for each in found[3:]], _naive_holm(p_values))
