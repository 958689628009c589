from collections.abc import Callable
from dataclasses import replace

import pytest

from clinit.analysis.figures.bars import TOP, cost_of, duel, worst_pairs
from clinit.analysis.figures.line import starts_of
from clinit.analysis.metrics.classes import confusions
from clinit.analysis.report.report import report_of
from clinit.errors import RecordError
from clinit.headtrain.record.format import RunRecord

MakeRun = Callable[..., RunRecord]


def test_the_worst_pairs_of_the_first_seed_are_those_of_the_query(make_run: MakeRun) -> None:
    old = replace(make_run("least-square"), mistakes=None)
    runs = report_of([make_run(seed=0), make_run(seed=1), old]).runs
    ((name, pairs),) = worst_pairs(runs).items()
    assert name == "random, seed 0"
    record = runs[0].record
    assert record.mistakes is not None
    assert pairs.equals(confusions(record.mistakes, record.classes, TOP))
    with pytest.raises(RecordError, match="written by an earlier version"):
        report_of([old]).figure("confusions")
    empty = replace(record, mistakes=record.mistakes.clear())
    report_of([empty]).figure("confusions").draw_without_rendering()


@pytest.mark.parametrize(
    ("starts", "expected"),
    [
        (("random", "class-mean", "least-square"), "least-square minus random"),
        (("random", "class-mean"), "class-mean minus random"),
        (("class-mean", "least-square"), "least-square minus class-mean"),
    ],
)
def test_least_square_is_compared_with_random_where_they_are_there(
    make_run: MakeRun, starts: tuple[str, ...], expected: str
) -> None:
    words, seeds, gains = duel(report_of([*map(make_run, starts)]).runs)
    assert (words, seeds, len(gains)) == (expected, 1, 9)


def test_of_several_scales_the_calibrated_rows_are_compared_on_the_seeds_of_both(
    make_run: MakeRun,
) -> None:
    scaled = [make_run("least-square", scale) for scale in ("norm", "calibrated", "none")]
    words, seeds, _ = duel(report_of([make_run(), make_run(seed=1), *scaled]).runs)
    assert (words, seeds) == ("least-square (calibrated) minus random", 1)


def test_seconds_are_summed_over_tasks_and_averaged_over_seeds(make_run: MakeRun) -> None:
    records = [make_run("least-square", seed=seed) for seed in range(2)]
    for record, total in zip(records, (4.0, 6.0), strict=True):
        record.info["seconds"] = total
        for task in record.info["tasks"]:
            task["initialisation"]["seconds"] = total / 10 * task["task"]  # type: ignore[index]
    (start,) = starts_of(report_of(records).runs)
    first, total = ((0.4 + 0.8 + 1.2) + (0.6 + 1.2 + 1.8)) / 2, (4.0 + 6.0) / 2
    assert cost_of(start) == pytest.approx((first, total - first))


def test_many_classes_are_standing_bars_with_names_at_both_ends(make_run: MakeRun) -> None:
    runs = [make_run(init, tasks=14, iterations=2) for init in ("random", "least-square")]
    drawn = report_of(runs).figure("class-gains")
    assert len(drawn.axes[0].patches) == 42
    assert drawn.get_suptitle().count("\n") == 3
