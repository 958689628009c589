"""The learner alone logs, times and tells what a method yields."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.start.scale import Initialisation
from clinit.headtrain.protocol import events
from clinit.headtrain.protocol.learner import Experiment, Learner, Method
from clinit.headtrain.protocol.stream.task_plan import Lesson
from clinit.headtrain.protocol.study.study import Study
from clinit.headtrain.protocol.train.evaluate import BankEvaluation
from clinit.observer import Event, Warned
from tests.headtrain.protocol.test_experiment import make_base, make_head, make_new

NOTHING = Initialisation(Rows(np.empty((0, 0)), np.empty(0)))


class Told(Method):
    """Yields facts at known times; its only head diverges."""

    device = torch.device("cpu")

    def __init__(self, clock: list[float]) -> None:
        self.clock = clock

    def learn(self, lesson: Lesson) -> Iterator[events.Fact]:
        counts = np.zeros((1, lesson.task.stop), dtype=np.int64)
        for seconds, fact in (
            (1.0, events.Done("prepare", {"numbers": lesson.task.number})),
            (2.0, events.Started(NOTHING, {"solve": 0.5})),
            (4.0, events.Stepped(2, waits=False)),
            (0.0, events.Trained(0, np.tile(np.array([1, 3], np.float32), (2, 1, 1)))),
            (8.0, events.Tested(2, BankEvaluation(counts, counts), np.array([np.nan]))),
            (16.0, events.Done("train", of_heads=[{"anchor": {"strength": 1.0}}])),
        ):
            self.clock[0] += seconds
            yield fact

    def seconds(self, spent: Any) -> np.ndarray:
        return np.array([spent["train"] + spent["evaluate"]])


def test_facts_are_logged_timed_by_phase_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, seen = [0.0], list[Event]()
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])

    def observe(event: Event) -> None:
        seen.append(event)
        clock[0] += 100.0  # the time of observers counts in no phase

    study = Study.of({"tasks": 2, "iterations": 3, "buffer": 9, "batch_size": 5, "device": "cpu"})
    experiment = Experiment.of(make_head(), make_base(), make_new(), [study])
    learner = Learner(experiment, Told(clock), observe)
    learner.learn()
    assert [entry.facts["numbers"] for entry in learner.log.entries] == [1, 2]
    first = learner.log.entries[0]
    assert first.start_seconds == [{"solve": 0.5}]
    assert first.of_heads == [{"anchor": {"strength": 1.0}}]
    np.testing.assert_array_equal(np.isnan(first.losses[:, 0, 0]), [False, False, True])
    assert first.steps(0)["loss"][0] == pytest.approx(0.4 * 1.0 + 0.6 * 3.0)  # 2 of 5 rows are new
    assert first.points[0].elapsed_s == [4.0 + 8.0]
    spent = {name: learner.log.seconds[name] for name in ("initialise", "train", "evaluate")}
    assert spent == {"initialise": 4.0, "train": 2 * (4.0 + 16.0), "evaluate": 16.0}
    (told,) = [event.warning for event in seen if isinstance(event, Warned)]  # once, not per task
    assert "has diverged: its loss is nan after 2 updates of task 1" in told
    kinds = [type(event).__name__ for event in seen if not isinstance(event, Warned)]
    assert kinds == ["TaskStarted", "Stepped", "Evaluated"] * 2
