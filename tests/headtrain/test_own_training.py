"""Losses and steps of a user: values, gradients, runs side by side, refusals."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from clinit.errors import ExperimentError
from clinit.headtrain.heads.losses import LOSSES, loss_named
from clinit.headtrain.protocol.study.study import Study
from tests.headtrain.test_keeping import train


def entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(logits, labels, reduction="none")


def squared(logits: Tensor, labels: Tensor) -> Tensor:
    """The built-in `mse`, term by term."""
    target = functional.one_hot(labels, logits.shape[1])
    weight = 1 + 14 * target
    return (weight * (logits - 30 * target).square()).mean(1)


@pytest.mark.parametrize(("own", "name"), [(entropy, "ce"), (squared, "mse")])
def test_an_own_loss_has_value_and_gradient_of_the_built_in_one(own: Any, name: str) -> None:
    logits = torch.randn(20, 3, 7, generator=torch.Generator().manual_seed(0)).double()
    labels, out = (torch.arange(20) % 7)[:, None].expand(20, 3), torch.empty_like(logits)
    found = loss_named(Study.of({"loss": own}).training.loss)
    value, gradient = found.value_and_gradient(logits, labels, out)
    expected = LOSSES[name].value_and_gradient(logits, labels)
    torch.testing.assert_close(value, expected[0])
    torch.testing.assert_close(gradient, expected[1])
    assert gradient is out
    assert not value.requires_grad
    torch.testing.assert_close(found.value(logits, labels), expected[0])


def descends(batch: Any, head: Any, state: dict[str, Any]) -> Any:
    """Return the built-in loss of the batch; note each call in the state of the head."""
    state.setdefault("calls", []).append((batch.task, batch.iteration))
    seen = state["calls"]
    assert seen == [(task, step) for task in (1, 2) for step in range(12)][: len(seen)]
    assert batch.num_old == (8, 12)[batch.task - 1]
    assert batch.is_new.sum() == len(batch.labels) // 2
    batch.features.requires_grad_(False)
    return functional.cross_entropy(head(batch.features), batch.labels)


def by_hand(batch: Any, head: Any, state: dict[str, Any]) -> Any:
    """Return the gradients of the same loss, and spoil what is only a copy."""
    error = head(batch.features).detach().softmax(1)
    error[torch.arange(len(error)), batch.labels] -= 1
    found = error.T @ batch.features / len(error), error.mean(0)
    batch.features.zero_()
    return found


def test_heads_of_own_losses_and_steps_give_in_a_bank_the_bits_that_they_give_alone() -> None:
    heads: list[Any] = [{"loss": entropy}, {"loss": "sqen"}, {"loss": squared, "lr": 1e-4}]
    heads += [{"step": descends}, {"step": by_hand}, {"step": descends, "lr": 1e-4}]
    for record, settings in zip(train(*heads), heads, strict=True):
        (alone,) = train(settings)
        np.testing.assert_array_equal(record.head.weight, alone.head.weight)
        np.testing.assert_array_equal(record.head.bias, alone.head.bias)


def test_a_run_with_an_own_cross_entropy_is_that_with_the_built_in_one() -> None:
    own, built_in = train({"loss": entropy}, {"loss": "ce"})
    starts = [each.info["tasks"][0]["initialisation"] for each in (own, built_in)]
    assert starts[0]["factor"] == starts[1]["factor"]
    np.testing.assert_allclose(own.steps["loss"], built_in.steps["loss"], rtol=1e-4, atol=1e-6)
    assert own.info["id"].endswith(f"loss={__name__}.entropy")
    assert own.info["config"]["loss"].startswith(f"{__name__}:entropy@")


@pytest.mark.parametrize("own", [descends, by_hand])
def test_a_run_with_an_own_step_down_the_loss_is_that_of_the_built_in_step(own: Any) -> None:
    held = {"anchor": "moments"} if own is by_hand else {}
    mine, built_in = train({"step": own, **held}, held)
    np.testing.assert_allclose(mine.steps["loss"], built_in.steps["loss"], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(mine.head.weight, built_in.head.weight, rtol=1e-3, atol=1e-5)
    assert mine.info["config"]["step"].startswith(f"{__name__}:{own.__name__}@")
    assert "step" not in built_in.info["config"]


def one_number(logits: Tensor, labels: Tensor) -> Any:
    return entropy(logits, labels).mean()


def without_gradient(logits: Tensor, labels: Tensor) -> Any:
    return entropy(logits, labels).detach()


def undefined(logits: Tensor, labels: Tensor) -> Any:
    return entropy(logits, labels) * torch.nan


@pytest.mark.parametrize(
    ("own", "fact"),
    [
        (one_number, r"one_number returned Tensor \(\), expected a tensor \(\d+,\)"),
        (without_gradient, "with gradient"),
        (undefined, "undefined is nan after 0 updates of task 1"),
    ],
)
def test_what_is_no_loss_of_each_row_is_refused(own: Any, fact: str) -> None:
    with pytest.raises(ExperimentError, match=fact):
        train({"loss": own})


def nothing(batch: Any, head: Any, state: dict[str, Any]) -> Any:
    return None


def per_row(batch: Any, head: Any, state: dict[str, Any]) -> Any:
    return entropy(head(batch.features), batch.labels)


def overwrites(batch: Any, head: Any, state: dict[str, Any]) -> Any:
    return head.weight.mul_(2).sum()


@pytest.mark.parametrize(
    ("own", "fact"),
    [
        (nothing, "nothing returned [('NoneType',)], expected a loss"),
        (per_row, "per_row returned [(16,)], expected a loss"),
        (overwrites, f"{__name__}:overwrites fails: RuntimeError"),
    ],
)
def test_a_step_without_loss_or_gradients_is_refused(own: Any, fact: str) -> None:
    with pytest.raises(ExperimentError) as caught:
        train({"step": own})
    assert fact in str(caught.value)


@pytest.mark.gpu
@pytest.mark.parametrize("own", [{"loss": entropy}, {"step": by_hand}])
def test_own_losses_and_steps_train_on_a_cuda_device(own: Any) -> None:
    (cpu,), (cuda,) = (train({**own, "device": device}) for device in ("cpu", "cuda"))
    np.testing.assert_allclose(cpu.steps["loss"], cuda.steps["loss"], rtol=1e-3, atol=1e-3)


def exits(logits: Tensor, labels: Tensor) -> Any:
    raise SystemExit(0)


class _Stopped(BaseException):
    """An error that is no `Exception`, and that has no text."""

    def __str__(self) -> str:
        raise ValueError


def stops(logits: Tensor, labels: Tensor) -> Any:
    raise _Stopped("enough")


def fails(logits: Tensor, labels: Tensor) -> Any:
    return [][0]


def writes(logits: Tensor, labels: Tensor) -> Any:
    return logits.mul_(2).logsumexp(1)


@pytest.mark.parametrize(
    ("own", "fact"),
    [
        (exits, "SystemExit: 0"),
        (stops, "_Stopped: <exception str() failed>"),
        (fails, "return [][0])"),
        (writes, "in-place operation"),
    ],
)
def test_a_loss_that_fails_is_named_with_its_own_line(own: Any, fact: str) -> None:
    with pytest.raises(ExperimentError) as caught:
        train({"loss": own})
    assert str(caught.value).startswith(f"{__name__}:{own.__name__} fails: ")
    assert fact in str(caught.value)
