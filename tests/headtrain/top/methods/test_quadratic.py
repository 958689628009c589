from __future__ import annotations

import pytest
import torch
from torch import Tensor

from clinit.headtrain.top.ewc import Quadratic


def draw(seed: int, rows: int = 5) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
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


def naive(
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
    anchors = [draw(seed) for seed in range(count)]
    merged = Quadratic.around(*anchors[0])
    for anchor in anchors[1:]:
        merged = merged + Quadratic.around(*anchor)
    for seed in range(10, 15):
        _, at = draw(seed)
        assert merged.value(at).item() == pytest.approx(naive(anchors, at), rel=1e-5)


def test_anchors_may_grow() -> None:
    anchors = [draw(0, rows=3), draw(1, rows=5), draw(2, rows=5)]
    merged = Quadratic.around(*anchors[0])
    for anchor in anchors[1:]:
        merged = merged + Quadratic.around(*anchor)
    _, at = draw(9, rows=8)
    assert merged.fisher["matrix"].shape == (5, 3)
    assert merged.value(at).item() == pytest.approx(naive(anchors, at), rel=1e-5)


def test_finite_differences_agree() -> None:
    fisher, values = draw(0, rows=3)
    spring = Quadratic.around(
        {name: weights.double().clamp(max=10) for name, weights in fisher.items()},
        {name: each.double() for name, each in values.items()},
    )
    at = {name: each.double().requires_grad_() for name, each in draw(5, rows=4)[1].items()}
    assert torch.autograd.gradcheck(
        lambda matrix, scalar: 0.5 * spring.value({"matrix": matrix, "scalar": scalar}),
        (at["matrix"], at["scalar"]),
    )


def test_rows_that_came_after_the_anchor_are_free() -> None:
    fisher, values = draw(0, rows=3)
    spring = Quadratic.around(fisher, values)
    at = {"matrix": torch.full((6, 3), 1e9, requires_grad=True), "scalar": values["scalar"]}
    with torch.no_grad():
        at["matrix"][:3] = values["matrix"]
    assert spring.value(at).item() == 0
    (gradient,) = torch.autograd.grad(spring.value(at), at["matrix"])
    assert not gradient.any()


def test_the_centre_of_what_never_weighed_is_a_number() -> None:
    nothing = {"matrix": torch.zeros(2, 2)}
    merged = Quadratic.around(nothing, {"matrix": torch.ones(2, 2)}) + Quadratic.around(
        nothing, {"matrix": torch.full((2, 2), 3.0)}
    )
    assert merged.centre["matrix"].eq(3).all()
    assert merged.value({"matrix": torch.full((2, 2), 7.0)}).item() == 0


def test_online_keeps_the_latest_anchor_and_a_share_of_the_older_weights() -> None:
    first, second = draw(0, rows=3), draw(1, rows=5)
    merged = Quadratic.around(*first).online(Quadratic.around(*second), gamma=0.5)
    expected = second[0]["matrix"].clone()
    expected[:3] += 0.5 * first[0]["matrix"]
    torch.testing.assert_close(merged.fisher["matrix"], expected)
    torch.testing.assert_close(merged.centre["matrix"], second[1]["matrix"])
    assert merged.constant.item() == 0


def test_an_anchor_does_not_move_with_its_parameters() -> None:
    fisher, values = draw(0)
    spring = Quadratic.around(fisher, values)
    values["matrix"] += 1
    assert spring.value(values).item() > 0
