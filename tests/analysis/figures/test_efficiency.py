from collections.abc import Callable
from pathlib import Path

import pytest

from clinit.analysis.figures.efficiency import races
from clinit.analysis.metrics.efficiency import gain
from clinit.analysis.runs import load_runs, runs_of
from clinit.errors import RecordError
from clinit.headtrain.protocol.record.format import RunRecord

MakeRun = Callable[..., RunRecord]


def test_a_race_has_the_iterations_and_gains_of_the_definition(three_inits: Path) -> None:
    (race,) = races(load_runs(three_inits).runs)
    points = {each.start.name: each.start.first.points.filter(task=1) for each in race.runners}
    assert (race.task, race.words) == (1, "task 1, seed 0")
    assert race.best == points["random"]["acc_new"].max()
    for runner in race.runners:
        (found,) = gain(points[runner.start.name], points["random"]).tasks
        assert runner.gain.reached == found.reached
        told = (found.value("equal-level"), found.value("random-best"))
        assert runner.result == f"{found.reached}, ×{told[0]:.3g}, ×{told[1]:.3g}"
    assert race.of_random.random_best == 200


def test_one_seed_races_and_each_setting_by_itself(make_run: MakeRun) -> None:
    runs = [
        make_run(init, seed=seed, lr=lr, tasks=1)
        for init in ("random", "class-mean")
        for seed in (0, 1)
        for lr in (0.001, 0.01)
    ]
    found = races(runs_of(runs).runs)
    assert len(found) == 2
    for race in found:
        assert [runner.start.first.init for runner in race.runners] == ["random", "class-mean"]
        assert len(race.runners[0].start.runs) == 2


def test_a_start_that_never_arrives_has_no_gain(make_run: MakeRun) -> None:
    poor = make_run("class-mean", accuracy=lambda task, iteration: 0.1)
    (race,) = races(runs_of([make_run(), poor]).runs)
    assert [runner.result for runner in race.runners][1] == "never"


def test_without_random_rows_there_is_no_race(make_run: MakeRun) -> None:
    with pytest.raises(RecordError, match="no random run of the same stream") as caught:
        races(runs_of([make_run("least-square")]).runs)
    assert "--init random" in caught.value.remedy
