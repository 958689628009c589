"""The optimizer of train-top written out, and its steps on a device that executes."""

import copy
import math
from collections.abc import Callable, Iterator, Mapping
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
from clinit.headtrain.top.network import PlasticModel, add_lora, cut_network, layers, make_plastic
from clinit.headtrain.top.training import TopMethod, sample_losses, top_optimizer, train_steps
from tests.headtrain.top.networks import build, seeded
from tests.headtrain.top.test_evaluate import Held
from tests.twin import CUDA, Machine, twin


def learning(key: str, *, full_rank: bool = False) -> Any:
    """A network in float64 of which the last two blocks and the classifier learn."""
    network = build(key).double()
    blocks = cut_network(network, 2).blocks
    if not full_rank:
        add_lora(network, layers(network, blocks), Top(rank=2), seeded())
    make_plastic(network, blocks, full_rank=full_rank)
    return network


def between(first: float, last: float, share: float) -> float:
    return last + (first - last) * (1 + math.cos(math.pi * share)) / 2


def one_cycle(step: int, steps: int, start: float, peak: float, end: float) -> float:
    """Smith's cycle with cosines: 30 % to the peak, the rest to the end."""
    top = 0.3 * steps - 1
    if step <= top:
        return between(start, peak, step / top)
    return between(peak, end, (step - top) / (steps - 1 - top))


@pytest.mark.parametrize("full_rank", [False, True])
@pytest.mark.parametrize(
    "key",
    [
        *("convnextv2", "convnext", "vit", "vit-fc-norm", "resnet-basic", "resnet-bottleneck"),
        *("mobilenetv2", "mobilenetv3", "swin", "regnet", "efficientnet"),
    ],
)
def test_ten_steps_are_those_of_adamw_written_out(key: str, full_rank: bool) -> None:
    """The head and matrices that the network does not list are decayed; rates fall by layer."""
    ours, theirs = (learning(key, full_rank=full_rank) for _ in range(2))
    for network in (ours, theirs):
        network.get_classifier().bias.data.fill_(3.0)  # of zero, its decay would not be seen
    blocks, bias = cut_network(theirs, 2).blocks, theirs.get_classifier().bias
    listed = theirs.no_weight_decay() if hasattr(theirs, "no_weight_decay") else ()
    optimizer, schedule = top_optimizer(ours, Training(lr=0.01, weight_decay=0.3), Top(), 10)
    batch = torch.randn(2, 3, 32, 32, generator=seeded(3)).double()
    labels = torch.tensor([0, 1])
    parameters = {name: p for name, p in theirs.named_parameters() if p.requires_grad}
    first, second = ({name: torch.zeros_like(p) for name, p in parameters.items()} for _ in "mv")
    for step in range(10):
        optimizer.zero_grad()
        nn.functional.cross_entropy(ours(batch), labels).backward()
        optimizer.step()
        schedule.step() if step < 9 else None
        loss = nn.functional.cross_entropy(theirs(batch), labels)
        gradients = torch.autograd.grad(loss, list(parameters.values()))
        beta = one_cycle(step, 10, 0.95, 0.85, 0.95)
        for (name, p), gradient in zip(parameters.items(), gradients, strict=True):
            depth = 2 - next((i for i, b in enumerate(blocks) if name.startswith(f"{b}.")), 2)
            peak = 0.01 * 0.9**depth
            rate = one_cycle(step, 10, peak / 25, peak, peak / 25e4)
            decayed = name not in listed and (p.ndim > 1 or p is bias)
            first[name] = beta * first[name] + (1 - beta) * gradient
            second[name] = 0.999 * second[name] + 0.001 * gradient**2
            size = (second[name] / (1 - 0.999 ** (step + 1))).sqrt() + 1e-8
            p.data *= 1 - rate * 0.3 * decayed
            p.data -= rate * first[name] / (1 - beta ** (step + 1)) / size
    for (name, one), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-9, msg=name)


def test_the_loss_is_the_mean_over_new_and_old_rows(
    make_top: Callable[..., Any], make_images: Callable[..., Any]
) -> None:
    model, batch = make_top(7), make_images(12, classes=7).batch(np.arange(12), num_new=5)
    loss, losses = TopMethod().loss(model, batch)
    logits = model.classifier(model.blocks(batch.activations))
    each = nn.functional.cross_entropy(logits, batch.labels, reduction="none")
    torch.testing.assert_close(losses, each.detach())
    torch.testing.assert_close(loss, each.mean())
    assert not losses.requires_grad


def test_logits_of_mixed_precision_are_widened_and_their_gradient_is_narrow_again() -> None:
    logits = torch.randn(4, 3, generator=seeded(1)).bfloat16().requires_grad_()
    values = sample_losses("ce", logits, torch.tensor([0, 1, 2, 0]))
    assert values.dtype == torch.float32
    values.sum().backward()
    assert logits.grad.dtype == torch.bfloat16


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
