"""The step of train-top on a CUDA device that is not there.

Tensors say that they are on it and hold no numbers: shapes, types and devices are followed, nothing
is computed. Torch's `FakeTensorMode` raises where tensors of two devices meet and where a value is
read. What it lets pass, and a CUDA device would wait for, is refused here: a copy to the host, a
blocking copy to the device or one from memory that is not pinned, and an index on the host.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import repeat
from typing import Any

import numpy as np
import pytest
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.protocol.stream.buffer import Pool
from clinit.headtrain.protocol.stream.scenario import Task
from clinit.headtrain.protocol.study.methods import Top
from clinit.headtrain.protocol.study.parts import Training
from clinit.headtrain.protocol.study.study import Study
from clinit.headtrain.top import evaluate
from clinit.headtrain.top.activations import Batch, ImageRows, PoolActivations, TaskReader
from clinit.headtrain.top.ewc import Ewc, Quadratic
from clinit.headtrain.top.experiment import top_method
from clinit.headtrain.top.network import PlasticModel, cut_network
from clinit.headtrain.top.training import TopMethod, top_optimizer, train_steps
from tests.headtrain.top.networks import build

CUDA = torch.device("cuda", 0)


METHODS: dict[str, dict[str, Any]] = {
    "rehearsal": {"rank": 2},
    "bf16": {"rank": 2, "precision": "bf16"},
    "full rank": {"full_rank": True},
    "derpp": {"method": "derpp", "rank": 2},
    "derpp sum": {"method": "derpp", "rank": 2, "derpp_distance": "sum"},
    "derpp stored": {"method": "derpp", "rank": 2, "derpp_teacher": "stored"},
    "ewc": {"method": "ewc", "full_rank": True},
    "mse": {"rank": 2, "loss": "mse"},
    "sqen": {"rank": 2, "loss": "sqen"},
}
TASK = Task(1, np.arange(2), start=3)
LABELS = np.arange(40) % TASK.stop
STEPS = 3


class Held(ImageRows):
    """Activations on the host."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def stream(self, batches: Sequence[np.ndarray]) -> Generator[Float[Tensor, "batch ..."]]:
        for rows in batches:
            yield torch.from_numpy(self.values[rows])


def make_network(key: str) -> tuple[nn.Module, np.ndarray]:
    """Return a network on the host, and activations in float16."""
    network = build(key)
    values = cut_network(network, 2).trunk(torch.randn(len(LABELS), 3, 32, 32))
    return network, values.half().numpy()


def study_of(settings: Mapping[str, Any]) -> Study:
    return Study.of(settings, top=True).resolved()


def make_model(network: nn.Module, top: Mapping[str, Any]) -> PlasticModel:
    dim = network.get_classifier().in_features  # type: ignore[operator]
    head = Rows(np.zeros((TASK.stop, dim)), np.zeros(TASK.stop))
    model = PlasticModel(network, cut_network(network, 2), head, study_of(top))
    model.open(torch.Generator().manual_seed(0))
    return model


def make_reader(values: np.ndarray, device: torch.device) -> TaskReader:
    """Two parts, so that batches are merged."""
    parts = PoolActivations([Held(values[:15]), Held(values[15:])], device)
    pool = Pool((np.zeros((len(LABELS), 1), np.float32), LABELS))
    is_new = TASK.start <= LABELS
    new, old = np.flatnonzero(is_new), np.flatnonzero(~is_new)
    return TaskReader(pool, parts, new=new, old=old, kept=new)


def begin(method: TopMethod, model: PlasticModel, reader: TaskReader) -> None:
    """Give EWC springs: to measure them is no step."""
    if isinstance(method, Ewc):
        held = {name: p.detach().clone() for name, p in model.trainable().items()}
        fisher = {name: values.abs() for name, values in held.items()}
        method.memory = Quadratic(fisher, held, torch.zeros((), device=model.device))
    else:
        method.begin(model, TASK, reader)


def draws(method: TopMethod, reader: TaskReader) -> Iterator[tuple[Batch, Batch | None]]:
    num_old = 0 if isinstance(method, Ewc) else 4
    rows = [np.concatenate([reader.new[i : i + 4], reader.old[i : i + num_old]]) for i in (0, 3, 6)]
    second = reader.stream([each[4:] for each in rows], [0] * STEPS)
    return zip(
        reader.stream(rows, [4] * STEPS),
        second if method.draws == 2 else repeat(None),
        strict=False,
    )


def train(
    model: PlasticModel, method: TopMethod, reader: TaskReader, no_waiting: NoWaiting
) -> Tensor:
    begin(method, model, reader)
    optimizer = top_optimizer(model.network, Training(lr=1.5e-3), Top(), STEPS)
    batches = draws(method, reader)
    with no_waiting:
        return torch.stack([*train_steps(model, method, batches, optimizer, range(STEPS))])


class WaitsError(AssertionError):
    """The host would wait for the device."""


class NoWaiting(TorchDispatchMode):
    """Refuses what a CUDA device would be waited for."""

    def __init__(self, pinned: list[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._pinned = pinned

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        found = func(*args, **kwargs)
        given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        made = [each for each in tree_leaves(found) if isinstance(each, Tensor)]
        on_device = any(each.is_cuda for each in given)
        if on_device and any(each.device.type == "cpu" for each in made):
            raise WaitsError(f"{func} brings values to the host")
        if on_device and any(each.device.type == "cpu" and each.ndim for each in given):
            raise WaitsError(f"{func} reads values on the host")
        if given and not on_device and any(each.is_cuda for each in made):
            if not kwargs.get("non_blocking"):
                raise WaitsError(f"{func} is a copy that blocks")
            if not any(each is given[0] for each in self._pinned):
                raise WaitsError(f"{func} copies from memory that is not pinned")
        return found


@contextmanager
def fake_cuda() -> Iterator[NoWaiting]:
    """Let tensors live on CUDA inside; yields the mode of what is not to wait."""
    pinned: list[Tensor] = []

    def pin(values: Tensor) -> Tensor:
        pinned.append(values)
        return values

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tensor, "pin_memory", pin)
        patch.setattr(Tensor, "backward", backward)
        # It begins with a tensor of no device, which does not become one of a fake device.
        patch.setattr(nn.utils, "skip_init", lambda module, *args, **kw: module(*args, **kw))
        # Autocast asks the driver, and turns itself off with a warning where there is none.
        patch.setattr("torch.cuda.amp.common.amp_definitely_not_available", lambda: False)
        patch.setattr("torch.cuda.is_bf16_supported", lambda: True)
        with FakeTensorMode(allow_non_fake_inputs=True):
            yield NoWaiting(pinned)


def backward(root: Tensor) -> None:
    """Do what autograd does, one node after another: its engine needs the driver for streams."""
    assert root.grad_fn is not None
    waits: dict[Any, int] = {}
    todo, seen = [root.grad_fn], {root.grad_fn}
    while todo:
        for node, _ in todo.pop().next_functions:
            if node is not None:
                waits[node] = waits.get(node, 0) + 1
                if node not in seen:
                    seen.add(node)
                    todo.append(node)
    arrived: dict[Any, dict[int, Tensor]] = {root.grad_fn: {0: torch.ones_like(root)}}
    ready: list[Any] = [root.grad_fn]
    while ready:
        current = ready.pop()
        gradients = arrived.pop(current, {})
        if hasattr(current, "variable"):
            current.variable.grad = _sum(current.variable.grad, gradients[0])
            continue
        given = [gradients.get(place) for place in range(max(gradients, default=0) + 1)]
        for (node, place), value in _edges(current, given):
            if value is not None:
                wanted = node._input_metadata[place]
                assert value.device == wanted.device, f"{node} gets a gradient on {value.device}"
                there = arrived.setdefault(node, {})
                fitting = value.sum_to_size(wanted.shape).to(wanted.dtype)
                there[place] = _sum(there.get(place), fitting)
            waits[node] -= 1
            if not waits[node]:
                ready.append(node)


def _edges(node: Any, given: list[Tensor | None]) -> Iterator[tuple[Any, Tensor | None]]:
    """Run one node; yield where each of its gradients goes."""
    edges = [edge for edge in node.next_functions if edge[0] is not None]
    written_in_python = hasattr(node, "needs_input_grad")
    values = node.apply(*given) if written_in_python else node(*given)
    values = values if isinstance(values, tuple) else (values,)
    # A function in Python has a gradient for each argument, tensor or not.
    wanted = node.needs_input_grad if written_in_python else [e[0] for e in node.next_functions]
    kept = [value for value, want in zip(values, wanted, strict=True) if want]
    return zip(edges, kept, strict=True)


def _sum(one: Tensor | None, other: Tensor) -> Tensor:
    return other if one is None else one + other


@pytest.mark.parametrize(
    ("key", "name"),
    [*(("convnextv2", name) for name in METHODS), ("vit", "bf16"), ("resnet-basic", "full rank")],
)
def test_no_step_waits_for_the_device_or_mixes_devices(key: str, name: str) -> None:
    network, values = make_network(key)
    top = METHODS[name]
    with fake_cuda() as no_waiting:
        model, reader = make_model(network.to(CUDA), top), make_reader(values, CUDA)
        means = train(model, top_method(study_of(top)), reader, no_waiting)
        assert (means.device, means.shape) == (CUDA, (STEPS, 2))
        trained = model.trainable().values()
        assert {parameter.device for parameter in trained} == {CUDA}
        assert all(parameter.grad is not None for parameter in trained)
        with no_waiting:
            found = evaluate.features(model, reader.activations, np.arange(len(LABELS)))
        assert (found.device, found.dtype) == (CUDA, torch.float32)
        assert found.shape == (len(LABELS), model.dim)
