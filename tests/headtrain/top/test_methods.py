"""The losses of DER++ and EWC beside their equations, one sample after the other."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.losses import LOSSES
from clinit.headtrain.protocol.stream.scenario import Task
from clinit.headtrain.protocol.study.parts import DerppConfig, EwcConfig
from clinit.headtrain.protocol.study.study import Study
from clinit.headtrain.top.methods import Derpp, Ewc, diagonal_fisher
from clinit.headtrain.top.network import PlasticModel, cut_network
from clinit.headtrain.top.training import TopMethod
from tests.headtrain.top.networks import build

Make = Callable[..., Any]
BASE, STEP, EACH = 4, 2, 20
TASKS = [Task(n, np.arange(STEP), BASE + STEP * (n - 1)) for n in (1, 2)]


@pytest.fixture
def images(make_images: Make) -> Any:
    """20 base rows, then 20 rows of each of two tasks."""
    images = make_images(3 * EACH, classes=BASE)
    for task in TASKS:
        images.labels[rows_of(task.number)] = task.start + torch.arange(EACH) % STEP
    return images


def rows_of(number: int) -> np.ndarray:
    return np.arange(EACH) + EACH * number


def enter(model: Any, images: Any, task: Task) -> None:
    """Let the classes of a task arrive."""
    if model.num_classes < task.stop:
        torch.manual_seed(task.number)
        model.widen(STEP)
    images.new = rows_of(task.number)
    # What the buffer still holds of the rows of earlier tasks (0: the base).
    kept = [rows_of(number)[::-1][: 12 - 3 * task.number] for number in range(task.number)]
    images.old = np.concatenate(kept)


def learn(method: Any, model: Any, images: Any, task: Task) -> Tensor:
    """Learn a task as the learner does; return the losses of its steps."""
    enter(model, images, task)
    method.begin(model, task, images)
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=1e-2), []
    for _ in range(5):
        loss, _ = method.loss(model, images.batch(images.new, num_new=EACH))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    method.end(model, task, images)
    return torch.stack(losses)


def naive_fisher(
    model: Any, images: Any, rows: Sequence[int], classes: int, name: str = "ce"
) -> dict[str, Tensor]:
    """Squared gradients of one sample after the other, averaged."""
    parameters = model.trainable()
    squares = {key: torch.zeros_like(p) for key, p in parameters.items()}
    for row in rows:
        logits = model.logits(model.features(images.values[row : row + 1]))[:, :classes]
        loss = LOSSES[name].value(logits, images.labels[row : row + 1]).sum()
        gradients = torch.autograd.grad(loss, list(parameters.values()))
        for values, gradient in zip(squares.values(), gradients, strict=True):
            values += gradient**2 / len(rows)
    return {k: v[:classes] if k.startswith("classifier") else v for k, v in squares.items()}


def anchor_of(model: Any, fisher: dict[str, Tensor]) -> dict[str, Tensor]:
    parameters = dict(model.named_parameters())
    return {k: parameters[k].detach()[: len(f)].clone() for k, f in fisher.items()}


def naive_penalty(model: Any, fisher: dict[str, Tensor], anchor: dict[str, Tensor]) -> Tensor:
    """Sum over i of F_i (theta_i - theta*_i)^2, in float64."""
    total = torch.zeros((), dtype=torch.float64)
    for key, parameter in model.named_parameters():
        theta = parameter.double()[: len(anchor[key])]
        total = total + (fisher[key].double() * (theta - anchor[key].double()) ** 2).sum()
    return total


@pytest.mark.parametrize("name", ["ce", "mse", "sqen"])
def test_loss_and_gradient_are_those_of_equation_3(make_top: Make, images: Any, name: str) -> None:
    lam, model = 30.0, make_top(BASE)
    method = Ewc(EwcConfig(lam=lam, samples=100), loss_name=name)
    enter(model, images, TASKS[0])
    base = naive_fisher(model, images, images.old, BASE, name)
    at_base = anchor_of(model, base)
    learn(method, model, images, TASKS[0])
    first = naive_fisher(model, images, images.new, BASE + STEP, name)
    at_first = anchor_of(model, first)
    enter(model, images, TASKS[1])
    method.begin(model, TASKS[1], images)
    random = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=random)
    batch = images.batch(images.new, num_new=EACH)
    loss, losses = method.loss(model, batch)
    plain = LOSSES[name].value(model.classifier(model.blocks(batch.activations)), batch.labels)
    springs = naive_penalty(model, base, at_base) + naive_penalty(model, first, at_first)
    expected = plain.mean() + lam / 2 * springs
    torch.testing.assert_close(losses, plain.detach())
    torch.testing.assert_close(loss.double(), expected, rtol=1e-4, atol=1e-5)
    parameters = list(model.parameters())
    found, wanted = (torch.autograd.grad(each, parameters) for each in (loss, expected))
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-4)


def test_lambda_0_is_plain_fine_tuning_bit_for_bit(make_top: Make, images: Any) -> None:
    springs, plain = make_top(BASE), make_top(BASE)
    method, naive = Ewc(EwcConfig(lam=0.0)), TopMethod()
    for task in TASKS:
        one, other = learn(method, springs, images, task), learn(naive, plain, images, task)
        assert torch.equal(one, other)
    assert method.memory is None
    assert method.base_sample == 0


def test_the_sample_is_drawn_by_the_seed_and_its_fisher_is_the_naive_one(
    make_top: Make, images: Any
) -> None:
    model, read = make_top(BASE), []
    batches = images.batches

    def spy(rows: np.ndarray, size: int) -> Any:
        read.append(rows.tolist())
        return batches(rows, size)

    images.batches, images.old = spy, rows_of(0)
    for samples, seed in ((7, 0), (7, 0), (7, 1), (1000, 0)):
        method = Ewc(EwcConfig(samples=samples), seed=seed)
        method.begin(model, TASKS[0], images)
        for key, values in naive_fisher(model, images, read[-1], BASE).items():
            torch.testing.assert_close(method.memory.fisher[key], values, rtol=1e-4, atol=1e-7)
    images.new = images.old
    Ewc(EwcConfig(samples=7)).end(model, TASKS[0], images)
    first, again, other, whole, of_task = read
    assert first == again == sorted(set(first)) != other
    assert of_task != first
    assert len(first) == len(other) == 7
    assert whole == list(range(EACH))


@pytest.mark.parametrize("key", ["vit", "convnextv2", "convnext", "resnet-basic", "swin"])
def test_the_layers_of_timm_are_followed_and_mixed_precision_is_left_out(
    make_images: Make, key: str
) -> None:
    network, images, rows = build(key), make_images(6, shape=(3, 32, 32)), np.arange(6)
    halves, dim = cut_network(network, 1), network.get_classifier().in_features
    images.values = halves.trunk(images.values)
    head, found = Rows(np.random.default_rng(0).normal(size=(6, dim)), np.zeros(6)), {}
    for precision in ("float32", "bf16"):
        settings = {"method": "ewc", "top_blocks": 1, "precision": precision}
        model = PlasticModel(network, halves, head, Study.of(settings, top=True).resolved())
        model.open(torch.Generator())
        found[precision] = diagonal_fisher(model, images.batches(rows, 4), classes=6)
    rough = model.features(images.values)
    with model.full_precision():
        assert not torch.equal(model.features(images.values), rough)
        expected = naive_fisher(model, images, range(6), 6)
    for name, values in expected.items():
        scale = values.max().item()
        torch.testing.assert_close(found["float32"][name], values, rtol=1e-3, atol=1e-5 * scale)
        assert torch.equal(found["float32"][name], found["bf16"][name])


@pytest.mark.gpu
def test_a_cuda_device_gives_the_same(make_top: Make, make_images: Make) -> None:
    model, images, rows = make_top(), make_images(), np.arange(30)
    expected = diagonal_fisher(model, images.batches(rows, 8), classes=6)
    model.to("cuda")
    model.device = torch.device("cuda", 0)
    images.values, images.labels = images.values.cuda(), images.labels.cuda()
    found = diagonal_fisher(model, images.batches(rows, 8), classes=6)
    for key, values in found.items():
        torch.testing.assert_close(values.cpu(), expected[key], rtol=1e-3, atol=1e-6)


def draw(images: Any, task: Task, step: int) -> Any:
    """Six new rows and six old ones."""
    random = np.random.default_rng([task.number, step])
    new, old = random.permutation(images.new)[:6], random.permutation(images.old)
    return images.batch(np.concatenate([new, old[:6]]), num_new=6)


def outputs(model: Any, images: Any, row: int) -> Tensor:
    logits: Tensor = model.classifier(model.blocks(images.values[row : row + 1]))[0]
    return logits


@torch.no_grad()
def former_logits(model: Any, images: Any, rows: np.ndarray, width: int) -> dict[int, Tensor]:
    return {int(row): outputs(model, images, int(row))[:width].clone() for row in rows}


def assert_is_equation_6(
    config: DerppConfig,
    name: str,
    model: Any,
    images: Any,
    found: tuple[Tensor, Tensor],
    batch: Any,
    dark: np.ndarray,
    former: dict[int, Tensor],
) -> None:
    """L_new + alpha E |z' - h(x')|^2 + beta E l(y'', f(x'')), one sample after the other."""

    def loss(row: int) -> Tensor:
        return LOSSES[name].value(outputs(model, images, row)[None], images.labels[[row]])[0]

    def distance(row: int) -> Tensor:
        squares = (outputs(model, images, row)[: len(former[row])] - former[row]) ** 2
        return squares.mean()

    losses = torch.stack([loss(row) for row in batch.rows.tolist()])
    new, old = losses[: batch.num_new].mean(), losses[batch.num_new :].mean()
    dark_loss = torch.stack([distance(row) for row in dark.tolist()]).mean()
    expected = new + config.alpha * dark_loss + config.beta * old
    torch.testing.assert_close(found[1], losses.detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found[0], expected, rtol=1e-5, atol=1e-5)
    parameters = list(model.parameters())
    ours, theirs = (torch.autograd.grad(each, parameters) for each in (found[0], expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["ce", "mse", "sqen"])
def test_the_former_logits_are_those_of_the_start_of_the_task(
    make_top: Make, images: Any, name: str
) -> None:
    config = DerppConfig(alpha=0.3, beta=0.7)
    model, method = make_top(BASE), Derpp(config, name)
    for task in TASKS[:2]:
        enter(model, images, task)
        method.begin(model, task, images)
        former = former_logits(model, images, images.old, task.start)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.1 * torch.randn_like(parameter)
        batch = draw(images, task, step=0)
        found, dark = method.loss(model, batch), batch.rows[batch.num_new :]
        assert_is_equation_6(config, name, model, images, found, batch, dark, former)
        method.end(model, task, images)
        assert not method.memory


def test_without_old_rows_it_is_the_mean_loss_of_new_rows(make_top: Make, images: Any) -> None:
    model, method = make_top(BASE), Derpp(DerppConfig())
    enter(model, images, TASKS[0])
    images.old = np.empty(0, dtype=np.int64)
    method.begin(model, TASKS[0], images)
    batch = images.batch(images.new, num_new=EACH)
    assert method.loss(model, batch)[0] == TopMethod().loss(model, batch)[0]


def test_alpha_0_and_beta_1_is_rehearsal_with_twice_the_step(make_top: Make, images: Any) -> None:
    model, method = make_top(BASE), Derpp(DerppConfig(alpha=0.0, beta=1.0))
    enter(model, images, TASKS[0])
    method.begin(model, TASKS[0], images)
    assert not method.memory
    batch = draw(images, TASKS[0], step=0)
    torch.testing.assert_close(method.loss(model, batch)[0], 2 * TopMethod().loss(model, batch)[0])
