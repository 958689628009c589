""""""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import numpy as np
import pytest
import timm
import torch
from jaxtyping import Float
from torch import Tensor, nn

from clinit.headtrain.rows import Rows
from clinit.headtrain.start.new_rows import random_rows
from clinit.headtrain.stream.seeds import Draw, generator
from clinit.headtrain.stream.task_plan import Share, draw_schedule
from clinit.headtrain.study.study import Study
from clinit.headtrain.top import evaluate
from clinit.headtrain.top.activations import PoolActivations
from clinit.headtrain.top.evaluate import linear_probe
from clinit.headtrain.top.network import PlasticModel, cut_network
from clinit.headtrain.train.heads import LabelledRows


class Held:
    """Activations in memory; remembers how many rows it was asked for at a time."""

    def __init__(self, values: Tensor) -> None:
        self.values = values
        self.asked: list[int] = []

    def __len__(self) -> int:
        return len(self.values)

    def stream(self, batches: Sequence[np.ndarray]) -> Generator[Float[Tensor, "batch ..."]]:
        for rows in batches:
            self.asked.append(len(rows))
            yield self.values[torch.from_numpy(rows)]


def test_features_are_those_of_one_pass_over_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    network = timm.create_model(
        "vit_tiny_patch16_224", img_size=32, embed_dim=12, depth=2, num_heads=2, num_classes=3
    ).eval()
    halves = cut_network(network, 1)
    head = Rows(np.zeros((3, 12)), np.zeros(3))
    model = PlasticModel(network, halves, head, Study.of({"top_blocks": 1}, top=True))
    held = Held(torch.randn(11, 5, 12))
    activations = PoolActivations([held], torch.device("cpu"))
    rows = np.array([7, 0, 10, 3, 3, 9, 1])
    monkeypatch.setitem(evaluate.FORWARD_ROWS, "cpu", 3)
    found = evaluate.features(model, activations, rows)
    assert held.asked == [3, 3, 1]
    with torch.no_grad():
        expected = model.features(held.values[torch.from_numpy(rows)])
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


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


def test_the_same_seed_gives_the_same_curve_and_another_index_another_one() -> None:
    curves = [
        linear_probe(TRAIN, VAL, num_classes=CLASSES, seed=3, index=index, iterations=60).curve
        for index in (1, 1, 2)
    ]
    assert curves[0] == curves[1] != curves[2]


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
