"""The steps of train-top on a device that executes (`tests.twin`), next to the CPU's."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.protocol.stream.buffer import Pool
from clinit.headtrain.protocol.stream.scenario import Task
from clinit.headtrain.protocol.study.parts import Top, Training
from clinit.headtrain.protocol.study.study import Study
from clinit.headtrain.top import experiment
from clinit.headtrain.top.activations import ActivationBatch, PoolActivations, TaskReader
from clinit.headtrain.top.experiment import top_method
from clinit.headtrain.top.methods import Ewc, Quadratic
from clinit.headtrain.top.network import PlasticModel, cut_network
from clinit.headtrain.top.training import TopMethod, top_optimizer, train_steps
from tests.headtrain.top.networks import build
from tests.headtrain.top.test_evaluate import Held
from tests.twin import CUDA, Machine, twin

__all__ = ["twin"]


METHODS: dict[str, dict[str, Any]] = {
    "rehearsal": {"rank": 2},
    "bf16": {"rank": 2, "precision": "bf16"},
    "full rank": {"full_rank": True},
    "derpp": {"method": "derpp", "rank": 2},
    "ewc": {"method": "ewc", "full_rank": True},
    "mse": {"rank": 2, "loss": "mse"},
    "sqen": {"rank": 2, "loss": "sqen"},
}
TASK = Task(1, np.arange(2), start=3)
LABELS = np.arange(40) % TASK.stop
STEPS = 3


def make_network(key: str) -> tuple[nn.Module, Tensor]:
    """Return a network on the host, and activations in float16."""
    network = build(key)
    images = torch.randn((len(LABELS), 3, 32, 32), generator=torch.Generator().manual_seed(0))
    return network, cut_network(network, 2).trunk(images).half()


def study_of(settings: Mapping[str, Any]) -> Study:
    return Study.of(settings, top=True).resolved()


def make_model(network: nn.Module, top: Mapping[str, Any]) -> PlasticModel:
    dim = network.get_classifier().in_features  # type: ignore[operator]
    head = Rows(np.zeros((TASK.stop, dim)), np.zeros(TASK.stop))
    model = PlasticModel(network, cut_network(network, 2), head, study_of(top))
    model.open(torch.Generator().manual_seed(0))
    return model


def make_reader(values: Tensor, device: torch.device) -> TaskReader:
    """Two parts, so that batches are merged."""
    parts = PoolActivations([Held(values[:15]), Held(values[15:])], device)
    pool = Pool((np.zeros((len(LABELS), 1), np.float32), LABELS))
    is_new = TASK.start <= LABELS
    new, old = np.flatnonzero(is_new), np.flatnonzero(~is_new)
    return TaskReader(pool, parts, new=new, old=old)


def begin(method: TopMethod, model: PlasticModel, reader: TaskReader) -> None:
    """Give EWC springs: to measure them is no step."""
    if isinstance(method, Ewc):
        held = {name: p.detach().clone() for name, p in model.trainable().items()}
        fisher = {name: values.abs() for name, values in held.items()}
        method.memory = Quadratic(fisher, held, torch.zeros((), device=model.device))
    else:
        method.begin(model, TASK, reader)


def draws(method: TopMethod, reader: TaskReader) -> Iterator[ActivationBatch]:
    num_old = 0 if isinstance(method, Ewc) else 4
    rows = [np.concatenate([reader.new[i : i + 4], reader.old[i : i + num_old]]) for i in (0, 3, 6)]
    return reader.stream(rows, [4] * STEPS)


def train(model: PlasticModel, method: TopMethod, reader: TaskReader, twin: Machine) -> Tensor:
    begin(method, model, reader)
    optimizer = top_optimizer(model.network, Training(lr=1.5e-3), Top(), STEPS)
    batches, before = draws(method, reader), twin.waits
    found = torch.stack([*train_steps(model, method, batches, optimizer, range(STEPS))])
    assert twin.waits == before, twin.counts
    return found


@pytest.mark.parametrize(
    ("key", "name"),
    [*(("convnextv2", name) for name in METHODS), ("vit", "bf16"), ("resnet-basic", "full rank")],
)
def test_steps_on_the_device_give_the_cpus_numbers_and_do_not_wait(
    twin: Machine, key: str, name: str
) -> None:
    (network, values), top = make_network(key), METHODS[name]
    model = make_model(copy.deepcopy(network), top)
    near = train(model, top_method(study_of(top)), make_reader(values, torch.device("cpu")), twin)
    twin.counts.clear()
    with twin:
        there, reader = make_model(network.to(CUDA), top), make_reader(values, CUDA)
        far = train(there, top_method(study_of(top)), reader, twin)
        assert (far.device, far.shape) == (CUDA, (STEPS, 2))
        found = experiment.features(there, reader.activations, np.arange(len(LABELS)))
        assert (found.device, found.dtype) == (CUDA, torch.float32)
    tolerance = 2e-2 if "bf16" in name else 1e-4
    np.testing.assert_allclose(far.cpu(), near, rtol=tolerance, atol=tolerance)
    for one, other in zip(there.trainable().values(), model.trainable().values(), strict=True):
        np.testing.assert_allclose(one.detach().cpu(), other.detach(), atol=10 * tolerance)
