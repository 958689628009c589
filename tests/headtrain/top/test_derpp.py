from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from clinit.headtrain.heads.losses import LOSSES
from clinit.headtrain.protocol.stream.scenario import Task
from clinit.headtrain.protocol.study.parts import DerppConfig
from clinit.headtrain.top.methods import Derpp
from clinit.headtrain.top.training import TopMethod

Make = Callable[..., Any]
BASE, STEP, EACH = 4, 2, 20
TASKS = [Task(n, np.arange(STEP), BASE + STEP * (n - 1)) for n in (1, 2, 3)]


@pytest.fixture
def images(make_images: Make) -> Any:
    """20 base rows, then 20 rows of each of three tasks."""
    images = make_images(EACH * 4, classes=BASE)
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
    torch.testing.assert_close(
        torch.autograd.grad(found[0], parameters),
        torch.autograd.grad(expected, parameters),
        rtol=1e-4,
        atol=1e-5,
    )


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
