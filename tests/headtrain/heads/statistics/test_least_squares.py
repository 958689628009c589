from typing import Any

import numpy as np
import pytest
import torch

import clinit


def sample() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 5, size=200)
    return (rng.normal(size=(5, 8))[labels] + rng.normal(size=(200, 8))).astype(np.float32), labels


@pytest.mark.parametrize("weighting", ["class", "sample"])
def test_numpy_and_torch_give_the_same_head_in_their_own_library(weighting: Any) -> None:
    features, labels = sample()
    head = clinit.least_squares(features, labels, weighting=weighting)
    assert isinstance(head.weight, np.ndarray)
    assert (head.weight.shape, head.bias.shape) == ((5, 8), (5,))
    tensors = torch.from_numpy(features).requires_grad_(), torch.from_numpy(labels)
    again = clinit.least_squares(*tensors, weighting=weighting)
    assert isinstance(again.weight, torch.Tensor)
    np.testing.assert_array_equal(again.weight.numpy(), head.weight)
    np.testing.assert_array_equal(again.bias.numpy(), head.bias)


FEATURES = np.ones((3, 2))


@pytest.mark.untyped
@pytest.mark.parametrize(
    ("features", "labels", "lam", "fact"),
    [
        (FEATURES, np.array([0, -1, 2]), 0.1, "labels are int64"),
        (FEATURES, np.zeros(3), 0.1, "labels are float64"),
        (FEATURES, torch.tensor([[0], [1], [1]]), 0.1, r"of shape \(3, 1\)"),
        (np.ones(3), np.arange(3), 0.1, r"of shape \(3,\), expected real numbers"),
        (torch.ones(2, 3, dtype=torch.complex64), np.arange(2), 0.1, "features are complex64"),
        (np.array([["a", "b"]]), np.arange(1), 0.1, "features are <U1"),
        *((FEATURES, np.arange(3), lam, f"lam is {lam!r}") for lam in ("auto", -0.1, np.inf)),
        (FEATURES, np.arange(2), 0.1, "3 features for 2 labels"),
    ],
)
def test_a_wrong_argument_is_refused(features: Any, labels: Any, lam: Any, fact: str) -> None:
    with pytest.raises(ValueError, match=fact):
        clinit.least_squares(features, labels, lam=lam)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("weighting", ["class", "sample"])
def test_cuda_tensors_stay_on_their_device_and_give_the_same_head(
    dtype: torch.dtype, weighting: Any
) -> None:
    pytest.importorskip("cupy")
    features, labels = sample()
    tensor, stream = torch.from_numpy(features).to("cuda", dtype), torch.cuda.Stream()
    with torch.cuda.stream(stream):
        found = clinit.least_squares(
            tensor * 1, torch.from_numpy(labels).cuda(), weighting=weighting
        )
    stream.synchronize()
    expected = clinit.least_squares(tensor.double().cpu().numpy(), labels, weighting=weighting)
    assert found.weight.device.type == "cuda"
    np.testing.assert_allclose(found.weight.cpu().numpy(), expected.weight, rtol=1e-9, atol=1e-12)
