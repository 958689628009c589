from collections.abc import Generator, Sequence

import numpy as np
import pytest
import torch
from jaxtyping import Float
from torch import Tensor, nn

from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.seeds import Draw, generator
from clinit.headtrain.heads.start.new_rows import random_rows
from clinit.headtrain.protocol.stream.task_plan import draw_schedule
from clinit.headtrain.protocol.study.study import Study
from clinit.headtrain.protocol.train.heads import LabelledRows
from clinit.headtrain.top import experiment
from clinit.headtrain.top.activations import ImageRows, PoolActivations
from clinit.headtrain.top.experiment import linear_probe
from clinit.headtrain.top.network import PlasticModel, cut_network
from tests.headtrain.top.networks import build


class Held(ImageRows):
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
    network, head = build("vit"), Rows(np.zeros((5, 12)), np.zeros(5))
    study = Study.of({"top_blocks": 1}, top=True)
    model = PlasticModel(network, cut_network(network, 1), head, study)
    values = torch.randn(11, 5, 12)
    held, more = Held(values[:8]), Held(values[8:])
    activations = PoolActivations([held, more], torch.device("cpu"))
    rows = np.array([7, 0, 10, 3, 3, 1, 9])
    monkeypatch.setitem(experiment.FORWARD_ROWS, "cpu", 3)
    found = experiment.features(model, activations, rows)
    assert (held.asked, more.asked) == ([2, 3], [1, 1]), "no empty batch is asked for"
    with torch.no_grad():
        expected = model.features(values[torch.from_numpy(rows)])
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


DIM, CLASSES = 12, 5


def rows(seed: int, count: int, noise: float = 1.5) -> LabelledRows:
    centres = torch.randn(CLASSES, DIM, generator=torch.Generator().manual_seed(0))
    random = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=random)
    features = centres[labels] + noise * torch.randn(count, DIM, generator=random)
    return LabelledRows(features, labels)


TRAIN, VAL = rows(1, 90), rows(2, 211)


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"BATCH": 32, "ITERATIONS": 70, "EVERY": 20}.items():
        monkeypatch.setattr(experiment, f"PROBE_{name}", value)


def test_the_curve_is_that_of_a_linear_layer_trained_by_torch() -> None:
    found = linear_probe(TRAIN, VAL, CLASSES, generator(4, Draw.PROBE, 2))
    random = generator(4, Draw.PROBE, 2)
    start = random_rows(random, CLASSES, DIM)
    batches = draw_schedule(random, [(range(90), 32)], first_new=0, iterations=70).batches
    linear = nn.Linear(DIM, CLASSES)
    with torch.no_grad():
        linear.weight.copy_(torch.from_numpy(start.weight))
        linear.bias.copy_(torch.from_numpy(start.bias))
    optimizer = torch.optim.AdamW(linear.parameters(), lr=1e-3, weight_decay=0.0)
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
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.gpu
def test_a_cuda_device_gives_the_same_curve() -> None:
    moved = [LabelledRows(part.features.cuda(), part.labels.cuda()) for part in (TRAIN, VAL)]
    found = linear_probe(moved[0], moved[1], CLASSES, generator(0, Draw.PROBE))
    expected = linear_probe(TRAIN, VAL, CLASSES, generator(0, Draw.PROBE))
    np.testing.assert_allclose(found, expected, atol=0.01)
