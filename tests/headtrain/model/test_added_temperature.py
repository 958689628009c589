"""Classes that are added to a model whose rows were divided by a temperature."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from clinit.extract.cache.features import FeatureSet
from clinit.headtrain.model.add import add
from clinit.headtrain.model.edit import open_model
from clinit.headtrain.model.export import export_run
from clinit.headtrain.model.settings import AddConfig
from clinit.headtrain.stream.source import Source
from clinit.headtrain.temperature import temperature_of


def arriving(dim: int) -> Source:
    """Return features of two new classes, with some held out."""
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1], 12)
    rows = (rng.standard_normal((24, dim)) + np.eye(dim)[labels]).astype(np.float16)
    train = np.arange(24) % 3 > 0
    parts = [FeatureSet(rows[each], labels[each], ("x", "y")) for each in (train, ~train)]
    return Source(train=parts[0], val=parts[1])


@pytest.mark.parametrize("iterations", [0, 3])
def test_added_rows_are_those_beside_the_rows_as_trained(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, iterations: int
) -> None:
    monkeypatch.setattr("clinit.headtrain.temperature.LEAST_ROWS", 10)
    plain = export_run(tiny_run, tmp_path / "plain", calibrated=False)
    divided = export_run(tiny_run, tmp_path / "divided")
    config = AddConfig(iterations=iterations)
    one, other = (
        add(open_model(each.path, device="cpu"), arriving(12), config) for each in (plain, divided)
    )
    # The rows are the minimum of a loss of float32 products: around it the loss changes with the
    # square of the distance, so that float32 tells rows apart down to the root of its precision.
    known = np.sqrt(np.finfo(np.float32).eps)
    for part in ("weight", "bias"):
        divided_part, plain_part = (getattr(each.classes.head, part) for each in (other, one))
        atol = known * np.abs(plain_part).max()
        np.testing.assert_allclose(divided_part, plain_part, rtol=0, atol=atol)
    head, memory = other.classes.head, other.classes.memory
    assert memory is not None
    held_out = memory.held_out
    assert len(held_out.labels) == 20 + 8
    assert other.classes.facts.temperature == temperature_of(head, held_out)
    assert other.classes.facts.temperature != divided.facts.temperature


def test_without_held_out_rows_of_both_kinds_the_temperature_stays(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clinit.headtrain.temperature.LEAST_ROWS", 5)  # the new ones alone
    model = export_run(tiny_run, tmp_path / "model", remembers=False)
    found = add(open_model(model.path, device="cpu"), arriving(12), AddConfig())
    assert model.facts.temperature is not None
    assert found.classes.facts.temperature == model.facts.temperature.unmeasured
