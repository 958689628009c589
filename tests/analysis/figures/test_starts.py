from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from clinit.analysis.figures.line import seeds_remark, starts_of
from clinit.analysis.report.report import load_report
from clinit.headtrain.record.format import RunRecord

MakeRun = Callable[..., RunRecord]
WriteRuns = Callable[..., Path]


def test_runs_that_differ_only_in_their_seed_are_one_start(
    make_run: MakeRun, write_runs: WriteRuns
) -> None:
    runs = [make_run(init, seed=seed) for seed in range(3) for init in ("random", "least-square")]
    starts = starts_of(load_report([write_runs(*runs)]).runs)
    assert [(start.name, len(start.runs)) for start in starts] == [
        ("random", 3),
        ("least-square", 3),
    ]
    assert [run.config["seed"] for run in starts[0].runs] == [0, 1, 2]
    assert seeds_remark(starts) == "Means over 3 seeds."
    assert seeds_remark(starts_of(load_report([write_runs(make_run(), folder="one")]).runs)) == ""


def test_starts_with_unequal_numbers_of_seeds_say_so(
    make_run: MakeRun, write_runs: WriteRuns
) -> None:
    runs = write_runs(make_run(), make_run(seed=1), make_run("least-square"))
    starts = starts_of(load_report([runs]).runs)
    assert [start.name for start in starts] == ["random", "least-square"]
    assert seeds_remark(starts) == "Means over up to 2 seeds."


def test_a_run_that_was_recorded_twice_is_not_taken_for_two_seeds(
    make_run: MakeRun, write_runs: WriteRuns
) -> None:
    starts = starts_of(load_report([write_runs(make_run(), make_run(), make_run(seed=1))]).runs)
    assert [(start.name, len(start.runs)) for start in starts] == [
        ("random (run 1)", 2),
        ("random (run 2)", 1),
    ]


def test_settings_other_than_the_seed_stay_in_the_name(
    make_run: MakeRun, write_runs: WriteRuns
) -> None:
    runs = [make_run("least-square", lam=lam, seed=seed) for lam in (0.1, 1.0) for seed in (0, 1)]
    starts = starts_of(load_report([write_runs(*runs)]).runs)
    assert [start.name for start in starts] == ["least-square (λ 0.1)", "least-square (λ 1)"]
