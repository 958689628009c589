from __future__ import annotations

import numpy as np
import pytest
import torch

import clinit
from clinit.headtrain.statistics.solve import _integers, _matrix, _ridge


def sample() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 5, size=200)
    return (rng.normal(size=(5, 8))[labels] + rng.normal(size=(200, 8))).astype(np.float32), labels


@pytest.mark.parametrize("weighting", ["class", "sample"])
def test_numpy_and_torch_give_the_same_head_in_their_own_library(weighting: str) -> None:
    features, labels = sample()
    head = clinit.least_squares(features, labels, weighting=weighting)  # type: ignore[arg-type]
    assert isinstance(head.weight, np.ndarray)
    assert head.weight.shape == (5, 8)
    assert head.bias.shape == (5,)
    tensors = torch.from_numpy(features).requires_grad_(), torch.from_numpy(labels)
    again = clinit.least_squares(*tensors, weighting=weighting)  # type: ignore[arg-type]
    assert isinstance(again.weight, torch.Tensor)
    np.testing.assert_array_equal(again.weight.numpy(), head.weight)
    np.testing.assert_array_equal(again.bias.numpy(), head.bias)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.array([0, -1, 2]), "the smallest label is -1, expected labels from 0 on"),
        (np.zeros((3, 2), dtype=np.int64), r"labels have shape \(3, 2\), expected \(rows,\)"),
        (torch.tensor([[0], [1]]), r"labels have shape \(2, 1\), expected \(rows,\)"),
    ],
)
def test_wrong_labels_are_refused(labels: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _integers(labels)


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (np.ones(3), r"features have shape \(3,\), expected \(rows, dim\)"),
        (np.ones((2, 3, 4)), r"features have shape \(2, 3, 4\), expected \(rows, dim\)"),
        (np.ones((2, 3), dtype=np.complex64), "features are complex64, expected real numbers"),
        (torch.ones(2, 3, dtype=torch.complex64), "features are complex64"),
        (np.array([["a", "b"]]), "features are <U1, expected real numbers"),
    ],
)
def test_wrong_features_are_refused(features: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _matrix(features)


@pytest.mark.parametrize("lam", ["auto", -0.1, float("nan"), float("inf"), None])
def test_a_wrong_ridge_is_refused(lam: object) -> None:
    with pytest.raises(ValueError, match=f"lam is {lam!r}, expected a finite number >= 0"):
        _ridge(lam)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("weighting", ["class", "sample"])
def test_cuda_tensors_stay_on_their_device_and_give_the_same_head(
    dtype: torch.dtype, weighting: str
) -> None:
    pytest.importorskip("cupy")
    features, labels = sample()
    tensor = torch.from_numpy(features).to("cuda", dtype)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        found = clinit.least_squares(
            tensor * 1,
            torch.from_numpy(labels).cuda(),
            weighting=weighting,  # type: ignore[arg-type]
        )
    stream.synchronize()
    expected = clinit.least_squares(
        tensor.double().cpu().numpy(),
        labels,
        weighting=weighting,  # type: ignore[arg-type]
    )
    assert found.weight.device.type == "cuda"
    np.testing.assert_allclose(found.weight.cpu().numpy(), expected.weight, rtol=1e-9, atol=1e-12)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("lam", [0.0, 0.05])
def test_cupy_arrays_take_every_step_that_numpy_arrays_take(lam: float) -> None:
    cupy = pytest.importorskip("cupy")
    from clinit.headtrain.statistics.class_statistics import ClassStatistics
    from clinit.headtrain.statistics.solve import LambdaPath, least_squares_head

    features, labels = sample()
    near = ClassStatistics.of(features, labels)
    parts = [
        ClassStatistics.of(
            cupy.asarray(features[rows]), cupy.asarray(labels[rows]), totals=near.totals
        )
        for rows in (slice(70), slice(70, None))
    ]
    far = parts[0] + parts[1]
    np.testing.assert_allclose(far.total_covariance.get(), near.total_covariance, atol=1e-12)
    np.testing.assert_allclose(far.within_covariance.get(), near.within_covariance, atol=1e-12)
    expected = least_squares_head(near, lam).weight
    np.testing.assert_allclose(least_squares_head(far, lam).weight.get(), expected, atol=1e-10)
    np.testing.assert_allclose(LambdaPath.of(far).head(lam).weight.get(), expected, atol=1e-10)
