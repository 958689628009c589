"""What a cache records gives its network back, and a sample of its rows once more."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner, Result

from clinit.cli.main import app
from clinit.errors import CacheError, ClinitError
from clinit.extract.cache.read import Cache, CacheSplit, open_cache, open_split
from clinit.extract.dataset.decode import decode
from clinit.extract.work.recorded import (
    Rechecked,
    rebuild_network,
    recheck,
    reload,
    sample_rows,
)
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


@pytest.mark.parametrize(("transform", "autocast"), [("timm", "off"), ("paper", "bfloat16")])
def test_the_reloaded_backbone_and_transform_give_the_cached_features(
    extract: Extract, transform: str, autocast: str
) -> None:
    mean = (0.48145466, 0.45, 1 / 3)
    split = extract(transform=transform, autocast=autocast, dtype="float32", mean=mean)
    backbone, found = reload(split)
    root = Path(split.summary.run.root or "")
    paths = split.manifest.table["path"][:4]
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
    with pytest.raises(CacheError, match="in a place that it does not record") as caught:
        reload(open_split(split.path))
    assert "--weights FILE" in caught.value.remedy
    again = extract()
    assert again.summary.run.started == split.summary.run.started
    assert reload(again)[0].config.weights == tiny_weights


@pytest.fixture
def cache(tiny_weights: Path, make_tree: Callable[..., Path], tmp_path: Path) -> Cache:
    """A cache with a view, beside its images; one image cannot be read."""
    root = make_tree()
    (root / "train" / "b" / "2.png").write_text("no pixels")
    extracted(root, tmp_path / "cache", tiny_config(tiny_weights, views=1))
    return open_cache(tmp_path / "cache")


def all_of(cache: Cache) -> list[Rechecked]:
    network = rebuild_network(cache.split("train"), None, "cpu")
    return [
        recheck(split, network, cache.path.parent / "images", sample_rows(split, 99, 0))
        for split in (*cache.splits.values(), *cache.views)
    ]


def test_the_images_give_what_is_stored_in_splits_and_views(cache: Cache) -> None:
    found = all_of(cache)
    assert [(each.title, each.num_rows) for each in found] == [
        ("train", 14),
        ("val", 6),
        ("train, view 0", 14),
    ]
    assert all(each.is_same and not each.unreadable for each in found)
    # Rounding to float16 shows, and nothing but it.
    assert all(0 < each.largest <= 1.01 * 2**-11 for each in found)


def test_rows_in_another_order_are_found(cache: Cache) -> None:
    split = cache.split("train")
    order = [0, 4, 2, 3, 1, *range(5, 15)]  # images of one class: the labels stay
    object.__setattr__(split.manifest, "table", split.manifest.table[order])
    train, val, view = all_of(cache)
    assert (train.is_same, val.is_same, view.is_same) == (False, True, True)
    assert train.largest > 10 * train.tolerance
    assert (train.row, train.path) in ((1, "train/a/4.png"), (4, "train/a/1.png"))


def test_a_sample_is_seeded_without_replacement_and_valid(cache: Cache) -> None:
    split = cache.split("train")
    samples = [sample_rows(split, 5, seed).tolist() for seed in (0, 0, 1)]
    assert samples[0] == samples[1] != samples[2]
    assert all(len(set(rows)) == 5 and split.valid[rows].all() for rows in samples)


def verify(cache: Path, *words: object) -> Result:
    fixed = ["cache", "verify", str(cache), "--deep", "3", "--seed", "2", "--workers", "1"]
    return CliRunner().invoke(app, [*fixed, *map(str, words)])


def test_the_command_prints_the_difference_and_the_tolerance_and_fails_beyond(
    cache: Cache, tmp_path: Path
) -> None:
    done = verify(cache.path)
    assert done.exit_code == 0, done.exception
    lines = done.stdout.splitlines()
    assert lines[4].startswith("train: 3 rows extracted again")
    assert lines[5].startswith("  up to 0.0024 is rounding")
    gone = verify(cache.path, "--root", tmp_path / "gone")
    assert isinstance(gone.exception, ClinitError)
    assert f"not in {tmp_path}/gone" in str(gone.exception)
    for path in (cache.path.parent / "images").rglob("*.png"):
        path.write_bytes(bytes(path.stat().st_size))
    blank = verify(cache.path)
    assert isinstance(blank.exception, ClinitError)
    assert "do not match their images" in str(blank.exception)
    assert blank.stdout.count("DIFFERENT") == 3
    assert "cannot be read now: " in blank.stdout
