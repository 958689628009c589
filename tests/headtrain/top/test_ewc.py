""""""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest
import timm
import torch
from torch import Tensor, nn

from clinit.errors import ExperimentError
from clinit.headtrain.stream.scenario import Task
from clinit.headtrain.study.methods import EwcConfig
from clinit.headtrain.top import ewc
from clinit.headtrain.top.ewc import Ewc, Quadratic, chunk_size, diagonal_fisher
from clinit.headtrain.top.method import Rehearsal
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


LOSS_NAMES = ["ce", "mse", "sqen"]
WAYS: list[Literal["vmap", "loop"]] = ["vmap", "loop"]
ROWS = 30


def naive_diagonal(
    model: Any, images: Any, rows: np.ndarray, name: str, classes: int
) -> dict[str, Tensor]:
    """One backward pass a sample, gradients squared and averaged."""
    totals = {key: torch.zeros_like(values) for key, values in model.trainable().items()}
    for row in rows.tolist():
        model.zero_grad()
        logits = model.classifier(model.blocks(images.activations[row : row + 1]))
        LOSSES[name].value(logits[:, :classes], images.labels[row : row + 1]).sum().backward()
        for key, values in model.trainable().items():
            totals[key] += values.grad**2 / len(rows)
    return {
        key: values[:classes] if key.startswith("classifier") else values
        for key, values in totals.items()
    }


@pytest.mark.parametrize("by", WAYS)
@pytest.mark.parametrize("size", [1, 7, ROWS])
@pytest.mark.parametrize("name", LOSS_NAMES)
def test_it_is_that_of_a_loop_over_samples_whatever_the_batch_size(
    make_top: Make, make_images: Make, name: str, size: int, by: Literal["vmap", "loop"]
) -> None:
    model, images = make_top(), make_images(ROWS)
    rows = np.arange(ROWS)
    found = diagonal_fisher(model, images.batches(rows, size), classes=6, loss_name=name, by=by)
    expected = naive_diagonal(model, images, rows, name, classes=6)
    assert found.keys() == expected.keys()
    for key, values in found.items():
        torch.testing.assert_close(values, expected[key], rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("by", WAYS)
def test_a_head_that_has_grown_is_measured_on_the_classes_that_the_samples_know(
    make_top: Make, make_images: Make, by: Literal["vmap", "loop"]
) -> None:
    small, images, rows = make_top(classes=4), make_images(classes=4), np.arange(ROWS)
    before = diagonal_fisher(small, images.batches(rows, 8), classes=4, by=by)
    small.grow(3)
    after = diagonal_fisher(small, images.batches(rows, 8), classes=4, by=by)
    assert after["classifier.weight"].shape == (4, 4)
    for key, values in before.items():
        torch.testing.assert_close(after[key], values)
    torch.testing.assert_close(
        after, naive_diagonal(small, images, rows, "ce", 4), rtol=1e-4, atol=1e-7
    )


class Blocks(nn.Module):
    """The last block of a network of timm, and what follows it up to the features."""

    def __init__(self, network: Any, block: nn.Module) -> None:
        super().__init__()
        self.block = block
        self._network = [network]  # a list hides it from `parameters`

    def forward(self, activations: Tensor) -> Tensor:
        (network,) = self._network
        read = self.block(activations)
        if hasattr(network, "fc_norm"):
            read = network.norm(read)
        features: Tensor = network.forward_head(read, pre_logits=True)
        return features


def timm_blocks(kind: str) -> tuple[Blocks, tuple[int, ...], int]:
    """Return random blocks, the shape of their activations and the width of their features."""
    network: Any
    shape: tuple[int, ...]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        if kind == "vit":
            network = timm.create_model(
                "vit_tiny_patch16_224", num_classes=3, depth=1, embed_dim=24, num_heads=3
            )
            block, shape, dim = network.blocks[-1], (5, 24), 24
        elif kind == "resnet":
            network = timm.create_model("resnet10t", num_classes=3, channels=(4, 8, 8, 12))
            block, shape, dim = network.layer4[-1], (8, 6, 6), 12
            for module in network.modules():
                if isinstance(module, nn.BatchNorm2d) and module.running_mean is not None:
                    module.running_mean.normal_()
        else:
            name = {"convnextv2": "convnextv2_atto", "convnext": "convnext_atto"}[kind]
            network = timm.create_model(
                name, num_classes=3, depths=(1, 1, 1, 1), dims=(4, 8, 8, 12)
            )
            block, shape, dim = network.stages[-1].blocks[-1], (12, 3, 3), 12
        for parameter in network.parameters():
            parameter.data += 0.2 * torch.randn_like(parameter)
        return Blocks(network.eval(), block), shape, dim


@pytest.mark.parametrize("by", WAYS)
@pytest.mark.parametrize("kind", ["vit", "convnextv2", "convnext", "resnet"])
def test_attention_response_norm_layer_scale_and_batch_norm_are_followed(
    make_top: Make, make_images: Make, kind: str, by: Literal["vmap", "loop"]
) -> None:
    blocks, shape, dim = timm_blocks(kind)
    model = make_top(blocks=blocks, dim=dim)
    images, rows = make_images(6, shape=shape), np.arange(6)
    found = diagonal_fisher(model, images.batches(rows, 4), classes=6, by=by)
    expected = naive_diagonal(model, images, rows, "ce", 6)
    for key, values in found.items():
        scale = expected[key].max().item()
        torch.testing.assert_close(values, expected[key], rtol=1e-3, atol=1e-5 * scale)


@pytest.mark.parametrize("by", WAYS)
@pytest.mark.parametrize("kind", ["vit", "convnextv2"])
def test_mixed_precision_of_the_training_is_left_out(
    make_top: Make, make_images: Make, kind: str, by: Literal["vmap", "loop"]
) -> None:
    blocks, shape, dim = timm_blocks(kind)
    model = make_top(blocks=blocks, dim=dim)
    images, rows = make_images(6, shape=shape), np.arange(6)
    expected = diagonal_fisher(model, images.batches(rows, 4), classes=6, by=by)
    model.mixed = True
    found = diagonal_fisher(model, images.batches(rows, 4), classes=6, by=by)
    assert model.mixed
    assert not torch.equal(model.features(images.activations), blocks(images.activations)), (
        "the features are of mixed precision"
    )
    for key, values in found.items():
        assert torch.equal(values, expected[key])


class Scaled(nn.Module):
    """A parametrisation with a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, weight: Tensor) -> Tensor:
        return self.scale * weight


def test_parametrised_weights_are_followed(make_top: Make, make_images: Make) -> None:
    model, images, rows = make_top(), make_images(), np.arange(ROWS)
    nn.utils.parametrize.register_parametrization(model.blocks[1], "weight", Scaled())
    expected = naive_diagonal(model, images, rows, "ce", 6)
    assert any(name.endswith("0.scale") for name in expected)
    for by in WAYS:
        found = diagonal_fisher(model, images.batches(rows, 8), classes=6, by=by)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-7)


@pytest.mark.gpu
def test_a_cuda_device_gives_the_same(make_top: Make, make_images: Make) -> None:
    model, images, rows = make_top(), make_images(), np.arange(ROWS)
    expected = diagonal_fisher(model, images.batches(rows, 8), classes=6)
    model.to("cuda")
    images.activations, images.labels = images.activations.cuda(), images.labels.cuda()
    found = diagonal_fisher(model, images.batches(rows, 8), classes=6)
    for key, values in found.items():
        torch.testing.assert_close(values.cpu(), expected[key], rtol=1e-3, atol=1e-6)


def test_large_blocks_are_read_in_small_chunks(
    make_top: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_top()
    assert chunk_size(model) == 64
    values = sum(p.numel() for p in model.blocks.parameters())
    monkeypatch.setattr(ewc, "CHUNK_VALUES", 3 * values + 1)
    assert chunk_size(model) == 3
    monkeypatch.setattr(ewc, "CHUNK_VALUES", 1)
    assert chunk_size(model) == 1


def test_a_label_outside_the_classes_is_refused(make_top: Make, make_images: Make) -> None:
    images = make_images()
    images.labels[3] = 5
    with pytest.raises(ValueError, match="a sample has label 5, expected labels below 4"):
        diagonal_fisher(make_top(), images.batches(np.arange(ROWS), ROWS), classes=4)


def draw_anchor(seed: int, rows: int = 5) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Weights over many orders of magnitude, some zero, and values; a scalar among them."""
    random = torch.Generator().manual_seed(seed)
    values = {
        "matrix": torch.randn(rows, 3, generator=random),
        "scalar": torch.randn((), generator=random),
    }
    fisher = {
        name: (8 * torch.randn(v.shape, generator=random)).exp() for name, v in values.items()
    }
    fisher["matrix"][seed % rows] = 0
    return fisher, values


def naive_sum(
    anchors: list[tuple[dict[str, Tensor], dict[str, Tensor]]], at: dict[str, Tensor]
) -> float:
    total = 0.0
    for fisher, values in anchors:
        for name, weights in fisher.items():
            here = at[name].double()
            if weights.ndim:
                here = here[: len(weights)]
            total += (weights.double() * (here - values[name].double()) ** 2).sum().item()
    return total


@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_sum_of_penalties_is_one_quadratic(count: int) -> None:
    anchors = [draw_anchor(seed) for seed in range(count)]
    merged = Quadratic.around(*anchors[0])
    for anchor in anchors[1:]:
        merged = merged + Quadratic.around(*anchor)
    for seed in range(10, 15):
        _, at = draw_anchor(seed)
        assert merged.value(at).item() == pytest.approx(naive_sum(anchors, at), rel=1e-5)


def test_anchors_may_grow() -> None:
    anchors = [draw_anchor(0, rows=3), draw_anchor(1, rows=5), draw_anchor(2, rows=5)]
    merged = Quadratic.around(*anchors[0])
    for anchor in anchors[1:]:
        merged = merged + Quadratic.around(*anchor)
    _, at = draw_anchor(9, rows=8)
    assert merged.fisher["matrix"].shape == (5, 3)
    assert merged.value(at).item() == pytest.approx(naive_sum(anchors, at), rel=1e-5)


def test_finite_differences_agree() -> None:
    fisher, values = draw_anchor(0, rows=3)
    spring = Quadratic.around(
        {name: weights.double().clamp(max=10) for name, weights in fisher.items()},
        {name: each.double() for name, each in values.items()},
    )
    at = {name: each.double().requires_grad_() for name, each in draw_anchor(5, rows=4)[1].items()}
    assert torch.autograd.gradcheck(
        lambda matrix, scalar: 0.5 * spring.value({"matrix": matrix, "scalar": scalar}),
        (at["matrix"], at["scalar"]),
    )


def test_the_centre_of_what_never_weighed_is_a_number() -> None:
    nothing = {"matrix": torch.zeros(2, 2)}
    merged = Quadratic.around(nothing, {"matrix": torch.ones(2, 2)}) + Quadratic.around(
        nothing, {"matrix": torch.full((2, 2), 3.0)}
    )
    assert merged.centre["matrix"].eq(3).all()
    assert merged.value({"matrix": torch.full((2, 2), 7.0)}).item() == 0


def test_online_keeps_the_latest_anchor_and_a_share_of_the_older_weights() -> None:
    first, second = draw_anchor(0, rows=3), draw_anchor(1, rows=5)
    merged = Quadratic.around(*first).online(Quadratic.around(*second), gamma=0.5)
    expected = second[0]["matrix"].clone()
    expected[:3] += 0.5 * first[0]["matrix"]
    torch.testing.assert_close(merged.fisher["matrix"], expected)
    torch.testing.assert_close(merged.centre["matrix"], second[1]["matrix"])
    assert merged.constant.item() == 0
