""""""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from clinit.headtrain.stream.scenario import Task
from clinit.headtrain.study.methods import DerppConfig
from clinit.headtrain.top.derpp import Derpp, StoredLogits
from clinit.headtrain.top.method import Rehearsal
from clinit.headtrain.train.losses import LOSSES

Make = Callable[..., Any]
BASE, STEP, EACH = 4, 2, 20
TASKS = [Task(n, np.arange(STEP), BASE + STEP * (n - 1)) for n in (1, 2, 3)]
TEACHERS: list[Literal["snapshot", "stored"]] = ["snapshot", "stored"]
DISTANCES: list[Literal["mean", "sum"]] = ["mean", "sum"]


def images_of(make_images: Make) -> Any:
    """20 base rows, then 20 rows of each of three tasks."""
    images = make_images(EACH * 4, classes=BASE)
    for task in TASKS:
        images.labels[rows_of(task.number)] = task.start + torch.arange(EACH) % STEP
    return images


def rows_of(number: int) -> np.ndarray:
    return np.arange(EACH) + EACH * number


def kept_of(number: int, task: int) -> np.ndarray:
    """Return what the buffer still holds of a task's rows (0: the base) at a later task."""
    return rows_of(number)[: 12 - 3 * task]


def enter(model: Any, images: Any, task: Task) -> None:
    """Let the classes of a task arrive."""
    if model.num_classes < task.stop:
        torch.manual_seed(task.number)
        model.grow(STEP)
    images.new = rows_of(task.number)
    images.old = np.concatenate([kept_of(n, task.number) for n in range(task.number)])
    images.kept = kept_of(task.number, task.number)


def draw(images: Any, task: Task, step: int, *, twice: bool) -> tuple[Any, Any]:
    """Six new rows and six old ones, and six other old ones where they are wanted."""
    random = np.random.default_rng([task.number, step])
    new, old = random.permutation(images.new)[:6], random.permutation(images.old)
    batch = images.batch(np.concatenate([new, old[:6]]), num_new=6)
    return batch, images.batch(old[-6:]) if twice else None


def learn(method: Any, model: Any, images: Any, task: Task, steps: int = 4) -> list[Tensor]:
    """Learn a task as the learner does; return the losses of its steps."""
    enter(model, images, task)
    method.begin(model, task, images)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-2)
    losses = []
    for step in range(steps):
        loss, _ = method.loss(model, *draw(images, task, step, twice=method.draws == 2))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    method.end(model, task, images)
    return losses


def outputs(model: Any, images: Any, row: int) -> Tensor:
    logits: Tensor = model.classifier(model.blocks(images.activations[row : row + 1]))[0]
    return logits


def former_logits(model: Any, images: Any, rows: np.ndarray, width: int) -> dict[int, Tensor]:
    with torch.no_grad():
        return {int(row): outputs(model, images, int(row))[:width].clone() for row in rows}


def equation_6(
    model: Any,
    images: Any,
    batch: Any,
    dark: Any,
    former: dict[int, Tensor],
    config: DerppConfig,
    name: str,
) -> Tensor:
    """L_new + alpha E |z' - h(x')|^2 + beta E l(y'', f(x'')), one sample after the other."""

    def loss(row: int) -> Tensor:
        return LOSSES[name].value(outputs(model, images, row)[None], images.labels[[row]])[0]

    new, old = batch.rows[: batch.num_new].tolist(), batch.rows[batch.num_new :].tolist()
    total = torch.stack([loss(row) for row in new]).mean()
    total = total + config.beta * torch.stack([loss(row) for row in old]).mean()
    squares = []
    for row in dark:
        known = former[int(row)]
        square = ((outputs(model, images, int(row))[: len(known)] - known) ** 2).sum()
        squares.append(square / len(known) if config.distance == "mean" else square)
    return total + config.alpha * torch.stack(squares).mean()


def assert_same_step(model: Any, loss: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-5)
    parameters = list(model.parameters())
    for mine, theirs in zip(
        torch.autograd.grad(loss, parameters),
        torch.autograd.grad(expected, parameters),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["ce", "mse", "sqen"])
@pytest.mark.parametrize("distance", DISTANCES)
def test_with_stored_logits_it_is_equation_6_while_the_head_grows(
    make_top: Make, make_images: Make, distance: Literal["mean", "sum"], name: str
) -> None:
    config = DerppConfig(alpha=0.3, beta=0.7, teacher="stored", distance=distance)
    model, images = make_top(BASE), images_of(make_images)
    method = Derpp(config, loss_name=name)
    former = former_logits(model, images, rows_of(0), BASE)
    for task in TASKS:
        learn(method, model, images, task)
        former |= former_logits(model, images, rows_of(task.number), task.stop)
        if task.number == len(TASKS):
            break
        following = TASKS[task.number]
        enter(model, images, following)
        again = Derpp(config, loss_name=name)
        again.restore(method.state())
        again.begin(model, following, images)
        batch, second = draw(images, following, step=7, twice=True)
        widths = {len(former[int(row)]) for row in images.old}
        assert len(widths) == task.number + 1, "old rows were stored in several widths"
        with torch.no_grad():
            model.blocks[1].weight += 0.1
        loss, _ = again.loss(model, batch, second)
        expected = equation_6(model, images, batch, second.rows, former, config, name)
        assert_same_step(model, loss, expected)
        with torch.no_grad():
            model.blocks[1].weight -= 0.1


@pytest.mark.parametrize("name", ["ce", "mse", "sqen"])
@pytest.mark.parametrize("distance", DISTANCES)
def test_with_a_snapshot_the_former_logits_are_those_of_the_start_of_the_task(
    make_top: Make, make_images: Make, distance: Literal["mean", "sum"], name: str
) -> None:
    config = DerppConfig(alpha=0.3, beta=0.7, distance=distance)
    model, images = make_top(BASE), images_of(make_images)
    method = Derpp(config, loss_name=name)
    for task in TASKS[:2]:
        enter(model, images, task)
        method.begin(model, task, images)
        former = former_logits(model, images, images.old, task.start)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.1 * torch.randn_like(parameter)
        batch, _ = draw(images, task, step=0, twice=False)
        loss, losses = method.loss(model, batch, None)
        dark = batch.rows[batch.num_new :]
        assert_same_step(model, loss, equation_6(model, images, batch, dark, former, config, name))
        logits = model.classifier(model.blocks(batch.activations))
        torch.testing.assert_close(losses, LOSSES[name].value(logits, batch.labels).detach())
        method.end(model, task, images)
        assert method.state() == {}


@pytest.mark.parametrize("teacher", TEACHERS)
def test_without_old_rows_it_is_the_mean_loss_of_new_rows(
    make_top: Make, make_images: Make, teacher: Literal["snapshot", "stored"]
) -> None:
    model, images = make_top(BASE), images_of(make_images)
    enter(model, images, TASKS[0])
    images.old = np.empty(0, dtype=np.int64)
    method = Derpp(DerppConfig(teacher=teacher))
    method.begin(model, TASKS[0], images)
    batch = images.batch(images.new, num_new=EACH)
    loss, _ = method.loss(model, batch, None)
    assert loss == Rehearsal().loss(model, batch, None)[0]
    method.end(model, TASKS[0], images)
    images.old = images.kept
    following = TASKS[1]
    model.grow(STEP)
    method.begin(model, following, images)
    loss, _ = method.loss(model, images.batch(images.old), images.batch(images.old))
    assert loss.isfinite()


def test_alpha_0_and_beta_1_is_rehearsal_with_twice_the_step(
    make_top: Make, make_images: Make
) -> None:
    model, images = make_top(BASE), images_of(make_images)
    enter(model, images, TASKS[0])
    method = Derpp(DerppConfig(alpha=0.0, beta=1.0, teacher="stored"))
    method.begin(model, TASKS[0], images)
    assert method.draws == 1, "no logits, no second draw"
    assert method.state() == {}
    batch, _ = draw(images, TASKS[0], step=0, twice=False)
    torch.testing.assert_close(
        method.loss(model, batch, None)[0], 2 * Rehearsal().loss(model, batch, None)[0]
    )


@pytest.mark.parametrize("teacher", TEACHERS)
@pytest.mark.parametrize("at", [0, 2, 4])
def test_a_method_restored_within_a_task_goes_on_as_before(
    make_top: Make, make_images: Make, at: int, teacher: Literal["snapshot", "stored"]
) -> None:
    def run(stop: int | None) -> tuple[list[Tensor], dict[str, Tensor]]:
        model, images = make_top(BASE), images_of(make_images)
        method = Derpp(DerppConfig(alpha=0.5, teacher=teacher))
        learn(method, model, images, TASKS[0])
        enter(model, images, TASKS[1])
        method.begin(model, TASKS[1], images)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses = []
        for step in range(5):
            if step == stop:
                state = {name: values.clone() for name, values in method.state().items()}
                method = Derpp(DerppConfig(alpha=0.5, teacher=teacher))
                method.restore(state)
            batch, second = draw(images, TASKS[1], step, twice=method.draws == 2)
            loss, _ = method.loss(model, batch, second)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        method.end(model, TASKS[1], images)
        return losses, method.state()

    (expected, whole), (found, restored) = run(None), run(at)
    assert torch.equal(torch.stack(found), torch.stack(expected))
    assert whole.keys() == restored.keys()
    for name, values in whole.items():
        assert torch.equal(restored[name], values)


def test_stored_logits_without_a_second_draw_are_refused(make_top: Make, make_images: Make) -> None:
    model, images = make_top(BASE), images_of(make_images)
    enter(model, images, TASKS[0])
    method = Derpp(DerppConfig(teacher="stored"))
    method.begin(model, TASKS[0], images)
    batch, _ = draw(images, TASKS[0], step=0, twice=False)
    with pytest.raises(ValueError, match=r"6 old rows without the second draw of eq. 6"):
        method.loss(model, batch, None)


def stored() -> StoredLogits:
    """Rows 5, 2, 9 with two logits, rows 7, 1 with three; each logit is row + column / 10."""
    found = StoredLogits()
    for rows, width in (([5, 2, 9], 2), ([7, 1], 3)):
        values = np.array(rows)[:, None] + np.arange(width) / 10
        found.add(np.array(rows), torch.from_numpy(values).float())
    return found


def test_rows_are_found_with_the_logits_of_their_own_width() -> None:
    rows = np.array([1, 9, 7, 2, 9])
    found = stored().find(rows)
    widths = {}
    for places, logits in found:
        for place, values in zip(places.tolist(), logits, strict=True):
            widths[place] = len(values)
            expected = torch.from_numpy(rows[place] + np.arange(len(values)) / 10).float()
            torch.testing.assert_close(values, expected)
    assert widths == {0: 3, 1: 2, 2: 3, 3: 2, 4: 2}


def test_rows_that_are_not_kept_are_forgotten() -> None:
    found = stored()
    found.keep(np.array([2, 5]))
    assert sorted(found.rows.tolist()) == [2, 5]
    assert len(found.state()) == 2, "a block without rows is gone"
    with pytest.raises(ValueError, match="1 rows have no stored logits, for example row 7"):
        found.find(np.array([5, 7]))


def test_a_state_is_the_whole_memory() -> None:
    again = StoredLogits()
    again.restore(stored().state())
    for (places, logits), (expected_places, expected) in zip(
        again.find(np.array([7, 2])), stored().find(np.array([7, 2])), strict=True
    ):
        assert torch.equal(places, expected_places)
        assert torch.equal(logits, expected)


def test_rows_that_are_not_there_cannot_be_kept() -> None:
    with pytest.raises(ValueError, match="2 rows have no stored logits, for example row 3"):
        stored().keep(np.array([2, 3, 4]))


def test_a_row_is_stored_once() -> None:
    with pytest.raises(ValueError, match="1 rows have logits already, for example row 9"):
        stored().add(np.array([9, 10]), torch.zeros(2, 3))
