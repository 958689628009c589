from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from clinit.analysis.figures.class_gains import duel
from clinit.analysis.report.report import load_report
from clinit.errors import RecordError
from clinit.headtrain.record.format import RunRecord

MakeRun = Callable[..., RunRecord]
WriteRuns = Callable[..., Path]


@pytest.mark.parametrize(
    ("inits", "expected"),
    [
        (("random", "class-mean", "least-square"), "least-square minus random"),
        (("random", "class-mean"), "class-mean minus random"),
        (("class-mean", "least-square"), "least-square minus class-mean"),
    ],
)
def test_least_square_is_compared_with_random_where_they_are_there(
    make_run: MakeRun, write_runs: WriteRuns, inits: tuple[str, ...], expected: str
) -> None:
    assert duel(load_report([write_runs(*map(make_run, inits))]).runs).words == expected


def test_of_several_scales_the_calibrated_rows_are_compared(
    make_run: MakeRun, write_runs: WriteRuns
) -> None:
    runs = [make_run("least-square", scale) for scale in ("norm", "calibrated", "none")]
    found = duel(load_report([write_runs(make_run(), *runs)]).runs)
    assert found.start == "least-square (calibrated)"


def test_seeds_that_one_start_lacks_are_left_out(make_run: MakeRun, write_runs: WriteRuns) -> None:
    runs = [make_run(seed=seed) for seed in (0, 1, 2)]
    found = duel(load_report([write_runs(*runs, make_run("least-square", seed=1))]).runs)
    assert found.seeds == 1


def test_runs_of_different_streams_are_not_compared(
    make_run: MakeRun, write_runs: WriteRuns
) -> None:
    with pytest.raises(RecordError, match="no two starts of the same stream") as caught:
        duel(load_report([write_runs(make_run(), make_run("least-square", buffer=7))]).runs)
    assert "--init random --init least-square" in caught.value.remedy
