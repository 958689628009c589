from __future__ import annotations

from collections.abc import Callable, Sequence

import polars as pl
import pytest

from clinit.analysis.metrics.efficiency import gain
from clinit.analysis.report.notes import bounded_gains
from clinit.analysis.report.report import report_of
from clinit.headtrain.record.format import RunRecord

MakeRun = Callable[..., RunRecord]


def curve(*accuracies: float) -> pl.DataFrame:
    """A curve with an evaluation every 50 iterations, from the start."""
    return pl.DataFrame(
        {
            "task": [1] * len(accuracies),
            "iteration": [50 * index for index in range(len(accuracies))],
            "acc_new": [*map(float, accuracies)],
        },
        schema={"task": pl.Int16, "iteration": pl.Int32, "acc_new": pl.Float64},
    )


RANDOM = curve(0, 50, 96, 100)
"""At 95 % of its best at 100, at its best at 150."""


@pytest.mark.parametrize(
    ("run", "random", "equal", "best"),
    [
        ((95, 96, 96, 96), RANDOM, True, True),
        ((94, 96, 96, 96), RANDOM, False, False),
        ((0, 0, 0, 0), RANDOM, False, False),
        # Random is at the level before its first step too: only its best is later.
        ((95, 95, 95, 95), curve(96, 97, 98, 100), False, True),
        ((95, 95, 95, 95), curve(100, 97, 98, 100), False, False),
    ],
)
def test_a_gain_is_bounded_where_the_run_is_there_at_its_start_and_random_is_not(
    run: Sequence[float], random: pl.DataFrame, equal: bool, best: bool
) -> None:
    found = gain(curve(*run), random)
    assert (found.bounded("equal-level"), found.bounded("random-best")) == (equal, best)


def slow(task: int, iteration: int) -> float:
    return {0: 0.0, 50: 0.4}.get(iteration, 0.9)


def test_bounded_gains_are_counted_over_tasks_and_seeds(make_run: MakeRun) -> None:
    runs = [make_run("random", seed=seed, accuracy=slow) for seed in (0, 1)]
    runs += [
        make_run("least-square", seed=s, accuracy=lambda t, i, s=s: 0.9 if t > s or i else 0.5)
        for s in (0, 1)
    ]
    report = report_of(runs)
    rows = [row for row in report.rows() if row["init"] == "least-square"]
    assert [row["gain_equal_level_bounded"] for row in rows] == [3, 2]
    told = [[task["gain_equal_level_bounded"] for task in row["tasks"]] for row in rows]
    assert told == [[True] * 3, [False, True, True]]
    assert [row["gain_equal_level_bounded"] for row in report.rows() if row not in rows] == [0, 0]
    assert bounded_gains(report.runs) == [
        "≥: at 95 % of the best of random before the first step, which counts as iteration 50, the"
        " first evaluation after it, so that the gain is at least that: least-square in 5 of 6"
        " tasks. A smaller `--eval-every` than 50 in training shows more."
    ]
    assert bounded_gains(report.runs)[0] in report.notes


def test_tasks_in_which_random_leaves_no_room_are_counted(make_run: MakeRun) -> None:
    fast = make_run("random", accuracy=lambda task, i: 0.9 if i and task > 1 else slow(task, i))
    late = make_run("least-square", accuracy=lambda task, iteration: 0.9 if iteration else 0.8)
    (note,) = bounded_gains(report_of([fast, late]).runs)
    assert note == (
        "No gain above 1 can show where random itself is at 95 % of its best by the first"
        " evaluation, iteration 50: random in 2 of 3 tasks. A smaller `--eval-every` than 50 in"
        " training shows more."
    )


def test_evaluations_at_every_iteration_cannot_be_closer(make_run: MakeRun) -> None:
    runs = [
        make_run(init, iterations=3, every=1, accuracy=lambda task, i, init=init: at(init, i))
        for init in ("random", "least-square")
    ]
    (note,) = bounded_gains(report_of(runs).runs)
    assert note.endswith("least-square in 3 of 3 tasks.")


def at(init: str, iteration: int) -> float:
    return 0.9 if init == "least-square" or iteration > 1 else 0.0


def test_without_a_gain_nothing_is_said(make_run: MakeRun) -> None:
    assert bounded_gains(report_of([make_run("least-square")]).runs) == []


def test_many_runs_that_miss_the_level_have_one_note(make_run: MakeRun) -> None:
    def missing(seed: int) -> RunRecord:
        return make_run("least-square", seed=seed, accuracy=lambda t, i: 0.9 * (t == 2))

    seeds = range(5)
    runs = [*(make_run(seed=seed) for seed in seeds), *map(missing, seeds)]
    notes = [note for note in report_of(runs).notes if "reach" in note]
    assert notes == [
        "5 of 10 runs do not reach 95 % of random's best new-task accuracy in every task; their"
        " gains are the means over those in which they do."
    ]
    few = [note for note in report_of([runs[0], runs[5]]).notes if "reach" in note]
    assert "in 1 of 3 tasks, not in tasks 1, 3; its gain" in few[0]


def test_notes_on_one_of_several_data_name_it(make_run: MakeRun) -> None:
    runs = [make_run("random", accuracy=slow), make_run("least-square", accuracy=lambda t, i: 0.9)]
    others = [make_run("random", accuracy=slow)]
    others[0].info["new"] = {"path": "caches/birds", "fingerprint": {"weights": "a"}, "rows": 2}
    notes = [note for note in report_of([*others, *runs]).notes if "≥" in note]
    assert [note.partition(": ")[0] for note in notes] == ["Data 2 of 2"]
