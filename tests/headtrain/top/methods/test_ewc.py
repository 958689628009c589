from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from clinit.errors import ExperimentError
from clinit.headtrain.stream.scenario import Task
from clinit.headtrain.study import EwcConfig
from clinit.headtrain.top.ewc import Ewc
from clinit.headtrain.top.method import Rehearsal, TopMethod
from clinit.headtrain.train.losses import LOSSES

Make = Callable[..., Any]
BASE, STEP = 4, 2
TASKS = [Task(n, np.arange(STEP), BASE + STEP * (n - 1)) for n in (1, 2)]


def images_of(make_images: Make) -> Any:
    """30 base rows, then 20 rows of each of two tasks."""
    images = make_images(70, classes=BASE)
    images.labels[30:50] = BASE + torch.arange(20) % STEP
    images.labels[50:] = BASE + STEP + torch.arange(20) % STEP
    return images


def learn(method: Any, model: Any, images: Any, task: Task, steps: int = 5) -> list[Tensor]:
    """Learn a task as the learner does; return the losses of its steps."""
    model.grow(STEP) if model.num_classes < task.stop else None
    images.old = np.arange(30) if task.number == 1 else np.empty(0, dtype=np.int64)
    images.new = np.arange(30, 50) + 20 * (task.number - 1)
    torch.manual_seed(task.number)
    method.begin(model, task, images)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(steps):
        loss, _ = method.loss(model, images.batch(images.new, num_new=20), None)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    method.end(model, task, images)
    return losses


def naive_fisher(
    model: Any, images: Any, rows: range, classes: int, name: str
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Squared gradients a sample, averaged, and the parameters, in float64."""
    squares = {key: torch.zeros_like(p, dtype=torch.float64) for key, p in model.named_parameters()}
    for row in rows:
        logits = model.classifier(model.blocks(images.activations[row : row + 1]))[:, :classes]
        loss = LOSSES[name].value(logits, images.labels[row : row + 1]).sum()
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        for values, gradient in zip(squares.values(), gradients, strict=True):
            values += gradient.double() ** 2 / len(rows)
    anchor = {key: p.detach().double().clone() for key, p in model.named_parameters()}
    for key in ("classifier.weight", "classifier.bias"):
        squares[key], anchor[key] = squares[key][:classes], anchor[key][:classes]
    return squares, anchor


def naive_penalty(model: Any, fisher: dict[str, Tensor], anchor: dict[str, Tensor]) -> Tensor:
    """Sum over i of F_i (theta_i - theta*_i)^2, one number after the other."""
    total = torch.zeros((), dtype=torch.float64)
    for key, parameter in model.named_parameters():
        theta = parameter.double()[: len(anchor[key])].flatten()
        for f, value, star in zip(fisher[key].flatten(), theta, anchor[key].flatten(), strict=True):
            total = total + f * (value - star) ** 2
    return total


@pytest.mark.parametrize("name", ["ce", "mse", "sqen"])
@pytest.mark.parametrize("mode", ["task", "online"])
def test_loss_and_gradient_are_those_of_equation_3(
    make_top: Make, make_images: Make, mode: Literal["task", "online"], name: str
) -> None:
    lam, gamma = 30.0, 1.0 if mode == "task" else 0.7
    model, images = make_top(BASE), images_of(make_images)
    config = EwcConfig(lam=lam, mode=mode, gamma=gamma, samples=100)
    method = Ewc(config, loss_name=name)
    base = naive_fisher(model, images, range(30), BASE, name)
    learn(method, model, images, TASKS[0])
    first = naive_fisher(model, images, range(30, 50), BASE + STEP, name)
    model.grow(STEP)
    images.new = np.arange(50, 70)
    method.begin(model, TASKS[1], images)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(
                parameter.shape, generator=torch.Generator().manual_seed(4)
            )
    batch = images.batch(np.arange(50, 70), num_new=20)
    loss, losses = method.loss(model, batch, None)
    logits = model.classifier(model.blocks(batch.activations))
    plain = LOSSES[name].value(logits, batch.labels)
    if mode == "task":
        springs = naive_penalty(model, *base) + naive_penalty(model, *first)
    else:
        squares = {key: values.clone() for key, values in first[0].items()}
        for key, values in base[0].items():
            squares[key][: len(values)] += gamma * values
        springs = naive_penalty(model, squares, first[1])
    expected = plain.mean() + lam / 2 * springs
    torch.testing.assert_close(losses, plain.detach())
    torch.testing.assert_close(loss.double(), expected, rtol=1e-4, atol=1e-5)
    parameters = list(model.parameters())
    for mine, theirs in zip(
        torch.autograd.grad(loss, parameters),
        torch.autograd.grad(expected, parameters),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)


def test_finite_differences_of_the_penalty_agree(make_top: Make, make_images: Make) -> None:
    model, images = make_top(BASE).double(), images_of(make_images)
    images.activations = images.activations.double()
    method = Ewc(EwcConfig(lam=7.0))
    learn(method, model, images, TASKS[0])
    batch = images.batch(images.new, num_new=20)
    weight = model.blocks[1].weight
    (gradient,) = torch.autograd.grad(method.loss(model, batch, None)[0], weight)
    for place in [(0, 0), (3, 2)]:
        with torch.no_grad():
            weight[place] += 1e-4
            above = method.loss(model, batch, None)[0]
            weight[place] -= 2e-4
            below = method.loss(model, batch, None)[0]
            weight[place] += 1e-4
        slope = (above - below) / 2e-4
        torch.testing.assert_close(slope, gradient[place], rtol=1e-5, atol=1e-6)


def test_lambda_0_is_plain_fine_tuning_bit_for_bit(make_top: Make, make_images: Make) -> None:
    images = images_of(make_images)
    springs, plain = make_top(BASE), make_top(BASE)
    ewc, naive = Ewc(EwcConfig(lam=0.0)), Rehearsal()
    for task in TASKS:
        torch.manual_seed(5)
        mine = learn(ewc, springs, images, task)
        torch.manual_seed(5)
        theirs = learn(naive, plain, images, task)
        assert torch.equal(torch.stack(mine), torch.stack(theirs))
    for one, other in zip(springs.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one, other)
    assert ewc.state() == {}
    assert ewc.base_sample == 0


def test_springs_hold_what_mattered(make_top: Make, make_images: Make) -> None:
    def drift(lam: float) -> float:
        model, images = make_top(BASE), images_of(make_images)
        fisher, anchor = naive_fisher(model, images, range(30), BASE, "ce")
        learn(Ewc(EwcConfig(lam=lam)), model, images, TASKS[0], steps=50)
        return naive_penalty(model, fisher, anchor).item()

    free, held, tight = drift(0.0), drift(1e2), drift(1e4)
    assert tight < held < free


@pytest.mark.parametrize("width", ["grow", "full"])
def test_rows_of_classes_that_came_after_an_anchor_are_free(
    make_top: Make, make_images: Make, width: str
) -> None:
    model, images = make_top(BASE if width == "grow" else BASE + 2 * STEP), images_of(make_images)
    method = Ewc(EwcConfig(lam=1e6))
    learn(method, model, images, TASKS[0], steps=1)
    if width == "grow":
        model.grow(STEP)
    images.new = np.arange(50, 70)
    method.begin(model, TASKS[1], images)
    before = method.loss(model, images.batch(images.new, 20), None)
    with torch.no_grad():
        model.classifier.weight[BASE + STEP :] = 1e3 * torch.randn(STEP, 4)
        model.classifier.bias[BASE + STEP :] = -1e3
    after = method.loss(model, images.batch(images.new, 20), None)
    penalties = [(loss - losses.mean()).item() for loss, losses in (before, after)]
    assert penalties[0] == pytest.approx(penalties[1], rel=1e-3, abs=1e-3)


def test_the_base_is_measured_with_its_own_classes_only(make_top: Make, make_images: Make) -> None:
    def state(start: float) -> dict[str, Tensor]:
        model, images = make_top(BASE), images_of(make_images)
        model.grow(STEP)
        with torch.no_grad():
            model.classifier.weight[BASE:] = start
        images.old, images.new = np.arange(30), np.arange(30, 50)
        method = Ewc(EwcConfig())
        method.begin(model, TASKS[0], images)
        return method.state()

    for mine, theirs in zip(state(0).values(), state(100).values(), strict=True):
        assert torch.equal(mine, theirs)


def test_a_base_without_rows_has_no_anchor(make_top: Make, make_images: Make) -> None:
    model, images = make_top(BASE + STEP), images_of(make_images)
    images.new = np.arange(30, 50)
    method = Ewc(EwcConfig())
    method.begin(model, TASKS[0], images)
    assert method.state() == {}
    loss, losses = method.loss(model, images.batch(images.new, 20), None)
    assert loss == losses.mean()
    method.end(model, TASKS[0], images)
    assert method.state()["fisher.classifier.weight"].shape == (BASE + STEP, 4)


def test_the_sample_is_of_the_size_asked_for_and_drawn_by_the_seed(
    make_top: Make, make_images: Make
) -> None:
    def sample(seed: int, samples: int) -> list[int]:
        model, images = make_top(BASE), images_of(make_images)
        read: list[int] = []
        batches = images.batches

        def spy(rows: np.ndarray, size: int) -> Any:
            read.extend(rows.tolist())
            return batches(rows, size)

        images.batches, images.old = spy, np.arange(30)
        Ewc(EwcConfig(samples=samples), seed=seed).begin(model, TASKS[0], images)
        return read

    assert sample(0, 7) == sample(0, 7) == sorted(sample(0, 7))
    assert len(set(sample(0, 7))) == 7
    assert sample(0, 7) != sample(1, 7)
    assert sample(0, 1000) == list(range(30))


@pytest.mark.parametrize("mode", ["task", "online"])
def test_a_method_restored_from_its_state_goes_on_as_before(
    make_top: Make, make_images: Make, mode: Literal["task", "online"]
) -> None:
    images, config = images_of(make_images), EwcConfig(lam=50.0, mode=mode)
    method, model = Ewc(config), make_top(BASE)
    learn(method, model, images, TASKS[0])
    state = {name: values.clone() for name, values in method.state().items()}
    parameters = {name: values.clone() for name, values in model.state_dict().items()}
    torch.manual_seed(9)
    expected = learn(method, model, images, TASKS[1])
    again = make_top(BASE + STEP)
    again.load_state_dict(parameters)
    restored = Ewc(config)
    restored.restore(state)
    torch.manual_seed(9)
    found = learn(restored, again, images, TASKS[1])
    assert torch.equal(torch.stack(found), torch.stack(expected))
    for name, values in method.state().items():
        assert torch.equal(restored.state()[name], values)


def test_restoring_nothing_forgets_the_springs(make_top: Make, make_images: Make) -> None:
    method = Ewc(EwcConfig())
    learn(method, make_top(BASE), images_of(make_images), TASKS[0], steps=1)
    method.restore({})
    assert method.state() == {}


def test_it_keeps_the_protocol_and_asks_for_a_base_sample() -> None:
    method = Ewc(EwcConfig(samples=99))
    assert isinstance(method, TopMethod)
    assert (method.draws, method.base_sample) == (1, 99)


class Shift(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.b = nn.Parameter(torch.zeros(1))

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.b


def test_low_rank_parts_are_refused(make_top: Make, make_images: Make) -> None:
    model, images = make_top(BASE), images_of(make_images)
    nn.utils.parametrize.register_parametrization(model.blocks[1], "weight", Shift())
    with pytest.raises(ExperimentError, match="is low-rank and lives for one task") as raised:
        Ewc(EwcConfig()).begin(model, TASKS[0], images)
    assert raised.value.remedy == "Train the blocks themselves with --full-rank."
    Ewc(EwcConfig(lam=0.0)).begin(model, TASKS[0], images)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lam": -1.0}, "lam must be at least 0, got -1.0"),
        ({"lam": float("nan")}, "lam must be finite, got nan"),
        ({"lam": float("inf")}, "lam must be finite, got inf"),
        ({"samples": 0}, "samples must be at least 1, got 0"),
        ({"mode": "online", "gamma": 0.0}, "gamma must be positive, got 0.0"),
        ({"mode": "online", "gamma": 1.5}, "gamma must be at most 1, got 1.5"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EwcConfig(**settings)
