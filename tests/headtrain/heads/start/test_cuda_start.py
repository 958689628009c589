"""Initialisation and diagnosis on a CUDA device, through CuPy."""

import numpy as np
import pytest
import torch

from clinit.headtrain.heads.array import as_array, torch_stream
from clinit.headtrain.protocol.record.format import RunRecord
from clinit.headtrain.protocol.stream import buffer as residency
from tests.headtrain.protocol.test_experiment import run as train

HEADS = [
    {"init": "random"},
    {"lam": "auto"},
    *({"init": init} for init in ("class-mean", "imprint", "lda", "zero")),
    {"init": "class-mean", "class_mean": "unit", "scale": "row-norm", "bias": "keep"},
    *({"loss": loss} for loss in ("mse", "sqen")),
    {"weighting": "sample", "scale": "norm"},
]


@pytest.fixture(autouse=True)
def _needs_cupy(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("gpu"):
        pytest.importorskip("cupy")


def runs(device: str) -> list[RunRecord]:
    """Runs from every start, and of every solved head."""
    config = {"tasks": 2, "iterations": 6, "batch_size": 16, "buffer": 60, "device": device}
    solved = [train({**config, "method": method}, [{}])[0] for method in ("ncm", "ridge", "lda")]
    return [*train(config, HEADS), *solved]


@pytest.fixture(scope="module")
def on_the_cpu() -> list[RunRecord]:
    return runs("cpu")


@pytest.mark.parametrize("share", [0.25, 0.0])
# On the CPU the tests compare it with itself: they are rehearsed.
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_every_start_is_that_of_the_cpu(
    on_the_cpu: list[RunRecord], monkeypatch: pytest.MonkeyPatch, device: str, share: float
) -> None:
    """With rows on the device, and with rows streamed to it."""
    monkeypatch.setattr(residency, "DEVICE_SHARE", share)
    library = "cupy" if device == "cuda" else "numpy"
    for near, far in zip(on_the_cpu, runs(device), strict=True):
        for one, other in zip(near.info["tasks"], far.info["tasks"], strict=True):
            ours, theirs = one["initialisation"], other["initialisation"]
            assert theirs["library"] == (library if ours["library"] else None)
            # Not closer: the old rows of the second task are trained in float32.
            for name in ("factor", "shift", "loss_after"):
                expected = ours[name]
                if expected is not None:
                    expected = pytest.approx(expected, rel=1e-3, abs=1e-3)
                assert theirs[name] == expected
        np.testing.assert_allclose(far.head.weight, near.head.weight, rtol=1e-2, atol=1e-3)


@pytest.mark.gpu
def test_a_system_that_cannot_be_factorised_raises() -> None:
    from clinit.headtrain.heads.array import Cholesky

    tensor = -torch.eye(3, dtype=torch.float64, device="cuda")
    with torch_stream(tensor), pytest.raises(np.linalg.LinAlgError):
        Cholesky.of(as_array(tensor))
