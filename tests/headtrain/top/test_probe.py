from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from clinit.headtrain.start.new_rows import random_rows
from clinit.headtrain.stream.seeds import Draw, generator
from clinit.headtrain.stream.task_plan import Share, draw_schedule
from clinit.headtrain.top.evaluate import linear_probe
from clinit.headtrain.train.rows import LabelledRows

DIM, CLASSES = 12, 5


def rows(seed: int, count: int, noise: float = 1.5) -> LabelledRows:
    centres = torch.randn(CLASSES, DIM, generator=torch.Generator().manual_seed(0))
    random = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=random)
    features = centres[labels] + noise * torch.randn(count, DIM, generator=random)
    return LabelledRows(features, labels)


TRAIN, VAL = rows(1, 90), rows(2, 211)


@pytest.mark.parametrize(("lr", "weight_decay"), [(1e-3, 0.0), (3e-2, 0.1)])
def test_the_curve_is_that_of_a_linear_layer_trained_by_torch(
    lr: float, weight_decay: float
) -> None:
    settings: dict[str, Any] = {"batch": 32, "iterations": 70, "eval_every": 20}
    probe = linear_probe(
        TRAIN,
        VAL,
        num_classes=CLASSES,
        seed=4,
        index=2,
        lr=lr,
        weight_decay=weight_decay,
        **settings,
    )
    random = generator(4, Draw.PROBE, 2)
    start = random_rows(random, CLASSES, DIM)
    batches = draw_schedule(random, [Share(0, 90, 32)], first_new=0, iterations=70).batches
    linear = nn.Linear(DIM, CLASSES)
    with torch.no_grad():
        linear.weight.copy_(torch.from_numpy(start.weight))
        linear.bias.copy_(torch.from_numpy(start.bias))
    optimizer = torch.optim.AdamW(linear.parameters(), lr=lr, weight_decay=weight_decay)
    expected = []
    for step in range(71):
        if step in (0, 20, 40, 60, 70):
            right = (linear(VAL.features).argmax(1) == VAL.labels).float().mean().item()
            expected.append((step, right))
        if step < 70:
            chosen = torch.from_numpy(batches[step])
            loss = nn.functional.cross_entropy(linear(TRAIN.features[chosen]), TRAIN.labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert [step for step, _ in probe.curve] == [step for step, _ in expected]
    np.testing.assert_allclose(
        [top1 for _, top1 in probe.curve], [top1 for _, top1 in expected], atol=1e-6
    )


def test_the_best_is_the_maximum_of_the_curve_where_it_was_reached_first() -> None:
    probe = linear_probe(TRAIN, VAL, num_classes=CLASSES, seed=0, lr=0.05, iterations=400)
    top1 = [value for _, value in probe.curve]
    assert probe.top1_best == max(top1)
    assert probe.iteration == probe.curve[top1.index(max(top1))][0]
    assert probe.iteration < 400, "it overfits: the last point is not the best"


def test_features_that_tell_the_classes_apart_are_probed_well() -> None:
    clear = linear_probe(
        rows(1, 300, noise=0.1), rows(2, 100, noise=0.1), num_classes=CLASSES, seed=0, lr=1e-2
    )
    assert clear.top1_best == 1
    shuffled = LabelledRows(TRAIN.features, TRAIN.labels[torch.randperm(90)])
    blind = linear_probe(shuffled, VAL, num_classes=CLASSES, seed=0, iterations=100)
    assert blind.top1_best < 0.5


def test_the_same_seed_gives_the_same_curve_and_another_index_another_one() -> None:
    curves = [
        linear_probe(TRAIN, VAL, num_classes=CLASSES, seed=3, index=index, iterations=60).curve
        for index in (1, 1, 2)
    ]
    assert curves[0] == curves[1] != curves[2]


def test_more_iterations_leave_the_random_head_as_it_was() -> None:
    short, long = (
        linear_probe(TRAIN, VAL, num_classes=CLASSES, seed=3, iterations=count) for count in (0, 50)
    )
    assert short.curve == long.curve[:1]
    assert short.iteration == 0


def test_the_papers_settings_are_the_defaults() -> None:
    probe = linear_probe(TRAIN, VAL, num_classes=CLASSES, seed=0)
    assert [step for step, _ in probe.curve] == list(range(0, 601, 50))


def test_half_precision_features_of_few_rows_and_absent_classes_are_probed() -> None:
    few = LabelledRows(TRAIN.features[:3].half(), torch.tensor([0, 0, 2]))
    probe = linear_probe(few, VAL, num_classes=CLASSES, seed=0, iterations=10)
    assert 0 <= probe.top1_best <= 1


def test_gradients_are_not_recorded() -> None:
    linear_probe(TRAIN, VAL, num_classes=CLASSES, seed=0, iterations=2)
    assert torch.is_grad_enabled()


@pytest.mark.gpu
def test_a_cuda_device_gives_the_same_curve() -> None:
    moved = [LabelledRows(part.features.cuda(), part.labels.cuda()) for part in (TRAIN, VAL)]
    found = linear_probe(moved[0], moved[1], num_classes=CLASSES, seed=0, iterations=100)
    expected = linear_probe(TRAIN, VAL, num_classes=CLASSES, seed=0, iterations=100)
    np.testing.assert_allclose(found.curve, expected.curve, atol=0.01)


NONE = LabelledRows(TRAIN.features[:0], TRAIN.labels[:0])


@pytest.mark.parametrize(
    ("train", "val", "settings", "message"),
    [
        (NONE, VAL, {}, "a probe needs at least one training row, got none"),
        (TRAIN, NONE, {}, "a probe needs at least one validation row, got none"),
        (TRAIN, VAL, {"num_classes": 4}, r"training labels lie in \[0, 4\], expected \[0, 3\]"),
        (TRAIN, VAL, {"batch": 0}, "batch must be at least 1, got 0"),
        (TRAIN, VAL, {"iterations": -1}, "iterations must be at least 0, got -1"),
        (TRAIN, VAL, {"eval_every": 0}, "eval_every must be at least 1, got 0"),
        (TRAIN, VAL, {"lr": 0.0}, "lr must be positive, got 0.0"),
        (TRAIN, VAL, {"weight_decay": -1.0}, "weight_decay must be at least 0, got -1.0"),
    ],
)
def test_what_cannot_be_probed_is_refused(
    train: LabelledRows, val: LabelledRows, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        linear_probe(train, val, **{"num_classes": CLASSES, "seed": 0, **settings})
