from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from clinit.headtrain.closed import interface as module
from clinit.headtrain.closed.interface import Arrival, Solution, evaluate, mean_loss

ENDS = (4, 6, 9)
CLASSES = 6
"""The last task is still to come."""


class Given:
    """Scores that were drawn: the feature of a row is its number."""

    block_values = 3

    def __init__(self, rows: int) -> None:
        drawn = np.random.default_rng(0).integers(0, 9, size=(rows, CLASSES))
        self.table = drawn.astype(np.float32)  # with equal ones among them
        self.most = 0

    def learn(self, arrival: Arrival) -> Solution:
        return Solution()

    def scores(self, features: Any) -> Any:
        self.most = max(self.most, len(features))
        return self.table[features[:, 0].astype(int)]

    def head(self) -> None:
        return None


LABELS = np.sort(np.random.default_rng(1).integers(0, CLASSES, size=500))
ROWS = np.arange(500, dtype=np.float32)[:, None]


@pytest.mark.parametrize("values", [1, 2**23])
def test_counts_and_mistakes_are_those_of_every_row_looked_at_alone(
    values: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BLOCK_VALUES", values)
    form = Given(500)
    found = evaluate(form, ROWS, LABELS, ENDS, CLASSES)
    assert form.most == (64 if values == 1 else 500)
    correct, in_task, mistakes = [0] * CLASSES, [0] * CLASSES, []
    numbers: dict[int, int] = {}
    for scores, label in zip(form.table, LABELS.tolist(), strict=True):
        number = numbers.get(label, 0)
        numbers[label] = number + 1
        start, stop = (0, 4) if label < 4 else (4, 6)
        best = max(range(CLASSES), key=lambda each: scores[each])
        correct[label] += best == label
        in_task[label] += max(range(start, stop), key=lambda each: scores[each]) == label
        if best != label:
            mistakes.append((label, number, best))
    assert found.correct.tolist() == correct
    assert found.correct_in_task.tolist() == in_task
    assert found.mistakes.T.tolist() == [list(each) for each in mistakes]
    assert found.mistakes.dtype == np.int32


def test_the_loss_is_the_mean_over_rows() -> None:
    form = Given(500)
    expected = torch.nn.functional.cross_entropy(
        torch.from_numpy(form.table), torch.from_numpy(LABELS)
    )
    assert mean_loss(form, ROWS, LABELS, "ce") == pytest.approx(float(expected), rel=1e-5)
