from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable

from clinit.analysis.report.notes import conclusion, conclusions
from clinit.analysis.report.report import report_of
from clinit.headtrain.record.format import RunRecord

MakeRun = Callable[..., RunRecord]
START = {"random": 0.0, "class-mean": 0.5, "least-square": 0.7}


def record(make_run: MakeRun, init: str, *, add: float = 0.0, **settings: object) -> RunRecord:
    def learnt(task: int, iteration: int) -> float:
        return START[init] + add + (0.1 if iteration else 0.0)

    return make_run(init, accuracy=learnt, **settings)


def test_it_has_the_start_and_the_mean_of_random_rows_and_of_others(make_run: MakeRun) -> None:
    report = report_of([record(make_run, init) for init in START])
    rows = {row["init"]: row for row in report.rows()}
    start = {init: f"{row['acc_new_start']:.1f} %" for init, row in rows.items()}
    mean = {init: f"{row['acc_new']:.1f}" for init, row in rows.items()}
    assert start["class-mean"] != start["least-square"]
    assert conclusion(report.runs) == (
        f"Before the first step of a task, random rows recognise {start['random']} of its new"
        f" classes, least-square rows {start['least-square']} and class-mean rows"
        f" {start['class-mean']}; over all its evaluations {mean['random']}, {mean['least-square']}"
        f" and {mean['class-mean']} % (mean over 3 tasks)."
    )


def test_numbers_of_several_seeds_are_means(make_run: MakeRun) -> None:
    runs = [
        record(make_run, init, seed=seed, add=0.05 * seed)
        for init in ("random", "least-square")
        for seed in range(3)
    ]
    report = report_of(runs)
    (words,) = report.conclusions
    for init in ("random", "least-square"):
        starts = [row["acc_new_start"] for row in report.rows() if row["init"] == init]
        assert len(set(starts)) == 3
        assert f"{statistics.fmean(starts):.1f} %" in words
    assert words.endswith("(mean over 3 tasks and 3 seeds).")


def test_of_several_trainings_it_is_about_the_best_and_names_it(make_run: MakeRun) -> None:
    runs = [
        record(make_run, init, lr=lr, add=lr)
        for init in ("random", "least-square")
        for lr in (0.1, 0.2)
    ]
    words = conclusion(report_of(runs).runs)
    assert words.startswith("lr 0.2: before the first step of a task, random rows recognise ")
    best = max(
        row["acc_new_start"] for row in report_of(runs).rows() if row["init"] == "least-square"
    )
    assert f"least-square rows {best:.1f} %" in words


def test_scales_are_named_and_at_most_three_starts(make_run: MakeRun) -> None:
    scales = ("none", "norm", "row-norm", "calibrated")
    runs = [make_run(), *(make_run("least-square", scale) for scale in scales)]
    words = conclusion(report_of(runs).runs)
    assert words.count("least-square (") == 3
    assert "random rows" in words


def test_without_a_step_nothing_is_said_of_evaluations(make_run: MakeRun) -> None:
    runs = [record(make_run, init, iterations=0) for init in ("random", "least-square")]
    assert "evaluations" not in conclusion(report_of(runs).runs)


def test_nothing_is_said_where_there_is_nothing_to_compare(make_run: MakeRun) -> None:
    assert conclusion(report_of([make_run()]).runs) == ""
    assert conclusion(report_of([make_run("class-mean"), make_run("least-square")]).runs) == ""
    apart = [make_run("random", lr=0.1), make_run("least-square", lr=0.2)]
    assert conclusion(report_of(apart).runs) == ""
    assert report_of(apart).conclusions == []


def test_each_data_has_a_sentence_under_its_name(make_run: MakeRun) -> None:
    runs = [make_run(init) for init in ("random", "least-square")]
    others = [make_run(init) for init in ("random", "least-square")]
    for run in others:
        run.info["new"] = {"path": "caches/birds", "fingerprint": {"weights": "a"}, "rows": 2}
    said = conclusions(report_of([*runs, *others]).runs)
    assert len(said) == 2
    assert all(words.startswith("Data ") and ": Before the first step" in words for words in said)
    alone = [*runs, dataclasses.replace(others[0])]
    (words,) = conclusions(report_of(alone).runs)
    assert "places50" in words
