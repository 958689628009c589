import numpy as np
import pytest

from clinit.analysis.figures.gallery import races
from clinit.analysis.runs import runs_of
from clinit.errors import RecordError
from tests.analysis.conftest import MakeRun

INITS = ("random", "class-mean")


def test_a_race_has_the_means_and_gains_of_all_seeds(make_run: MakeRun) -> None:
    runs = runs_of(
        [make_run(i, seed=s, lr=lr) for i in INITS for s in (0, 1) for lr in (0.001, 0.01)]
    )
    found = races(runs.runs)
    assert len(found) == 2, "each setting by itself"
    for race in found:
        assert (race.task, [start.runs[0].init for start in race.starts]) == (1, [*INITS])
        for start in race.starts:
            points = [run.points.filter(task=1)["acc_new"].to_list() for run in start.runs]
            assert race.line(start).mean.tolist() == pytest.approx(np.mean(points, axis=0))
            gains = [run.row()["tasks"][0]["gain_equal_level"] for run in start.runs]
            assert race.result(start) == f"gain {np.mean(gains):.2f} ±{np.std(gains, ddof=1):.2f}"
        curves = [run.points.filter(task=1)["acc_new"] for run in race.starts[0].runs]
        assert race.target == pytest.approx(0.95 * np.mean([max(curve) for curve in curves]))


def test_a_start_that_never_arrives_has_no_gain(make_run: MakeRun) -> None:
    poor = make_run("class-mean", accuracy=lambda task, iteration: 0.1)
    (race,) = races(runs_of([make_run(), poor]).runs)
    assert [*map(race.result, race.starts)] == ["gain 1.00", "never"]


def test_without_random_rows_there_is_no_race(make_run: MakeRun) -> None:
    with pytest.raises(RecordError, match="no random run of the same stream") as caught:
        races(runs_of([make_run("least-square")]).runs)
    assert "--init random" in caught.value.remedy
