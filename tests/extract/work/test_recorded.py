"""What a cache records gives its network back."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from clinit.errors import CacheError
from clinit.extract.cache.read import CacheSplit, open_split
from clinit.extract.dataset.decode import decode
from clinit.extract.work.recorded import reload
from tests.extract.work.made import extracted, tiny_backbone, tiny_config

Extract = Callable[..., CacheSplit]


@pytest.fixture
def extract(make_tree: Callable[..., Path], tiny_weights: Path, tmp_path: Path) -> Extract:
    root = make_tree()

    def run(weights: Path = tiny_weights, autocast: str = "off", **changes: Any) -> CacheSplit:
        config = tiny_config(weights, **changes)
        config = replace(config, backbone=tiny_backbone(weights, autocast=autocast))
        extracted(root, tmp_path / "cache", config, splits=("train",))
        return open_split(tmp_path / "cache" / "train")

    return run


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Compute as the threads of an extraction do: another number of threads rounds otherwise."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("transform", "autocast"), [("timm", "off"), ("paper", "bfloat16")])
def test_the_reloaded_backbone_and_transform_give_the_cached_features(
    extract: Extract, transform: str, autocast: str, one_thread: None
) -> None:
    mean = (0.48145466, 0.45, 1 / 3)
    split = extract(transform=transform, autocast=autocast, dtype="float32", mean=mean)
    backbone, found = reload(split)
    root, paths = Path(split.summary.run.root or ""), split.manifest.table["path"][:4]
    pixels = torch.stack([found.to_input(decode((root / path).read_bytes())) for path in paths])
    features = backbone.features(found.normalise(pixels))
    assert np.array_equal(features.numpy(), split.load().features[:4])


def test_the_weights_are_taken_from_where_they_were_even_in_another_folder(
    extract: Extract, tiny_weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tiny_weights.parent)
    split = extract(weights=Path(tiny_weights.name))
    monkeypatch.chdir(tmp_path)
    backbone, _ = reload(split)
    assert backbone.config.weights == tiny_weights
    assert backbone.head.class_names == ("a", "b", "c")


def test_other_weights_are_refused(extract: Extract, tiny_weights: Path, tmp_path: Path) -> None:
    state = load_file(tiny_weights)
    state["stem.0.bias"][0] += 1
    save_file(state, tmp_path / "other.safetensors")
    with pytest.raises(CacheError, match=r"other\.safetensors: SHA-256 \w{12}…, but the") as caught:
        reload(extract(), weights=tmp_path / "other.safetensors")
    assert "--weights FILE" in caught.value.remedy


def test_a_cache_that_does_not_know_its_weights_learns_it_from_its_command(
    extract: Extract, tiny_weights: Path, edit_document: Callable[..., None]
) -> None:
    split = extract()
    path = split.path / "cache.json"
    run = json.loads(path.read_text())["run"]
    del run["weights"]
    edit_document(path, run=run)
    with pytest.raises(CacheError, match="they are at an unrecorded path") as caught:
        reload(open_split(split.path))
    assert "--weights FILE" in caught.value.remedy
    again = extract()
    assert again.summary.run.started == split.summary.run.started
    assert reload(again)[0].config.weights == tiny_weights
