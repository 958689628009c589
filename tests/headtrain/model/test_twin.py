"""A model on a device that executes (`tests.twin`), next to the CPU; and on its second device."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clinit.errors import DeviceError
from clinit.headtrain.model import growth
from clinit.headtrain.model.export import Export
from clinit.headtrain.model.model import load_model
from clinit.headtrain.model.network import TimmEngine
from clinit.headtrain.protocol.study.study import Study
from tests.twin import Machine, twin

__all__ = ["twin"]
PLACES = ("cpu", "cuda")


def test_a_model_on_the_device_answers_as_on_the_cpu_and_waits_for_its_answers_alone(
    twin: Machine, tiny_onnx: Export, images: list[Path]
) -> None:
    expected = load_model(tiny_onnx.path, device="cpu").predict(images)
    with twin:
        model = load_model(tiny_onnx.path, device="cuda")
        model.predict(images[:2])
        twin.counts.clear()
        waits, found = twin.waits, model.predict(images, batch_size=4)
    assert twin.counts["late copy to host"] == -(-len(images) // 4)
    assert twin.waits == waits, twin.counts
    for one, other in zip(found, expected, strict=True):
        assert [guess.row for guess in one.guesses] == [guess.row for guess in other.guesses]
        near, far = ([guess.probability for guess in each.guesses] for each in (one, other))
        np.testing.assert_allclose(far, near, atol=1e-5)


@pytest.mark.gpu
def test_the_gpu_sees_what_the_cpu_sees(tiny_onnx: Export, images: list[Path]) -> None:
    near, far = (load_model(tiny_onnx.path, device=name).predict(images) for name in PLACES)
    for found, expected in zip(far, near, strict=True):
        for left, right in zip(found.guesses, expected.guesses, strict=True):
            assert left.probability == pytest.approx(right.probability, abs=1e-2)


def test_new_rows_are_trained_on_the_device_of_the_network(
    tiny_onnx: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`cuda:1` extracted on the second GPU and trained on the first one."""
    asked: list[str] = []

    def started(head: Any, base: Any, new: Any, studies: list[Study], **rest: Any) -> Any:
        asked.append(studies[0].training.device)
        raise DeviceError("seen", remedy="")

    model = load_model(tiny_onnx.path, device="cpu")
    monkeypatch.setattr(TimmEngine, "device", "cuda:1")
    monkeypatch.setattr(growth, "started_heads", started)
    rows = np.random.default_rng(0).normal(size=(12, model.head.dim)).astype(np.float32)
    with pytest.raises(DeviceError, match="seen"):
        model.add((rows, ["x"] * 6 + ["y"] * 6))
    assert asked == ["cuda:1"]
