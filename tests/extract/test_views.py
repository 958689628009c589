import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch

from clinit.errors import CacheError, ManifestError
from clinit.extract.cache.read import open_cache
from clinit.extract.dataset.decode import decode
from clinit.extract.dataset.scan import scan
from clinit.extract.network.backbone import BackboneConfig
from clinit.extract.network.transform import make_transform
from clinit.extract.views import View
from clinit.extract.work.run import ExtractConfig, extract
from clinit.extract.work.shard_work import Progress
from clinit.extract.work.split_run import SplitResult

MODEL = "convnextv2_atto"
ARGS: dict[str, Any] = {"depths": (1, 1, 1, 1), "dims": (4, 8, 8, 12)}


@pytest.fixture
def config(tiny_weights: Path) -> ExtractConfig:
    backbone = BackboneConfig(name=MODEL, weights=tiny_weights, model_args=ARGS)
    return ExtractConfig(backbone=backbone, input_size=32, batch_size=4, shard_rows=6, views=2)


def run(
    root: Path,
    out: Path,
    config: ExtractConfig,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    splits: tuple[str, ...] = ("train", "val"),
) -> list[SplitResult]:
    manifests = {split: scan("folder", root, split).manifest for split in splits}
    return list(extract(manifests, root, out, config, on_progress=on_progress))


def files(folder: Path) -> dict[str, bytes]:
    """Everything in a cache but what tells of the run itself."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in ("cache.json", ".lock")
    }


def test_a_view_holds_the_features_of_the_cropped_images(
    make_tree: Callable[..., Path], config: ExtractConfig, tiny_weights: Path, tmp_path: Path
) -> None:
    root = make_tree()
    run(root, tmp_path / "cache", replace(config, dtype="float32", view_seed=9))
    network = timm.create_model(MODEL, num_classes=3, checkpoint_path=str(tiny_weights), **ARGS)
    network.eval()
    data = timm.data.resolve_model_data_config(network)
    transform = make_transform("timm", data, input_size=32)
    cache = open_cache(tmp_path / "cache")
    assert [view.path.name for view in cache.views] == ["0", "1"]
    for number, split in enumerate(cache.views):
        view = View((32, 32), transform.interpolation, seed=9, number=number)
        loaded = split.load()
        for row, path in enumerate(cache.split("train").manifest.table["path"]):
            pixels = view.to_input(decode((root / path).read_bytes()), row)
            with torch.no_grad():
                batch = transform.normalise(pixels[None])
                expected = network.forward_head(network.forward_features(batch), pre_logits=True)  # type: ignore[operator]
            np.testing.assert_allclose(loaded.features[row], expected[0], rtol=1e-4, atol=1e-5)


def test_views_are_row_by_row_the_train_split_and_differ_from_it_and_each_other(
    make_tree: Callable[..., Path], config: ExtractConfig, tmp_path: Path
) -> None:
    root = make_tree()
    (root / "train" / "b" / "2.png").write_text("no pixels")
    run(root, tmp_path / "cache", config)
    cache = open_cache(tmp_path / "cache")
    train = cache.split("train")
    for view in cache.views:
        assert view.manifest.digest == train.manifest.digest
        np.testing.assert_array_equal(view.labels, train.labels)
        np.testing.assert_array_equal(view.valid, train.valid)
        assert view.summary.invalid == train.summary.invalid
    blocks = [split.load().features for split in (train, *cache.views)]
    for i, one in enumerate(blocks):
        assert not any((one == other).all(axis=1).any() for other in blocks[:i])


def test_the_same_seed_gives_the_same_bits_whatever_the_workers_and_batches_and_another_does_not(
    make_tree: Callable[..., Path], config: ExtractConfig, tmp_path: Path
) -> None:
    root = make_tree()
    run(root, tmp_path / "cache", config)
    run(root, tmp_path / "again", replace(config, workers=5))
    assert files(tmp_path / "again") == files(tmp_path / "cache")
    run(root, tmp_path / "batches", replace(config, batch_size=3, dtype="float32"))
    run(root, tmp_path / "other", replace(config, view_seed=1))
    one, batches, other = (
        open_cache(tmp_path / name).views[1].load().features
        for name in ("cache", "batches", "other")
    )
    np.testing.assert_allclose(one, batches, rtol=1e-3, atol=1e-4)
    assert not (one == other).all(axis=1).any()


def test_views_are_added_to_a_finished_cache_and_only_the_missing_ones_are_computed(
    make_tree: Callable[..., Path], config: ExtractConfig, tmp_path: Path
) -> None:
    root, out = make_tree(), tmp_path / "cache"
    computed = [
        [result.computed_rows for result in run(root, out, replace(config, views=views))]
        for views in (0, 1, 3, 2)
    ]
    assert computed == [[15, 6], [0, 0, 15], [0, 0, 0, 15, 15], [0, 0, 0, 0]]
    assert len(open_cache(out).views) == 3
    run(root, tmp_path / "whole", replace(config, views=3))
    assert files(out) == files(tmp_path / "whole")


@pytest.mark.parametrize("stop_after", [9, 11, 13, 16])
def test_a_resumed_view_is_bit_identical_to_an_uninterrupted_one(
    make_tree: Callable[..., Path], config: ExtractConfig, tmp_path: Path, stop_after: int
) -> None:
    root = make_tree()
    run(root, tmp_path / "whole", config)
    calls = 0

    def interrupt(progress: Progress) -> None:
        nonlocal calls
        calls += 1
        if calls == stop_after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(root, tmp_path / "resumed", config, interrupt)
    cache = open_cache(tmp_path / "resumed")  # the plain features can be used
    assert cache.split("train").num_valid == 15
    with pytest.raises(CacheError, match=r"views/\d holds \d of 3 shards: its extraction was inte"):
        _ = cache.views
    run(root, tmp_path / "resumed", config)
    assert files(tmp_path / "resumed") == files(tmp_path / "whole")


def test_another_seed_is_refused_before_anything_is_computed(
    make_tree: Callable[..., Path], config: ExtractConfig, tmp_path: Path
) -> None:
    root, out = make_tree(), tmp_path / "cache"
    run(root, out, config)
    shutil.rmtree(out / "val")
    with pytest.raises(CacheError, match=r"views/0 was begun with view_seed = 0, this command has"):
        run(root, out, replace(config, view_seed=1, views=3))
    assert not (out / "val").exists()


def test_views_without_the_training_images_are_refused(
    make_tree: Callable[..., Path], config: ExtractConfig, tmp_path: Path
) -> None:
    with pytest.raises(ManifestError, match="of the training images, but only val") as caught:
        run(make_tree(), tmp_path / "cache", config, splits=("val",))
    assert "--views" in caught.value.remedy
    with pytest.raises(ValueError, match="views must be at least 0, got -1"):
        replace(config, views=-1)


def test_a_view_of_another_backbone_is_refused_and_the_field_is_named(
    make_tree: Callable[..., Path], config: ExtractConfig, tmp_path: Path
) -> None:
    root = make_tree()
    run(root, tmp_path / "cache", config)
    run(root, tmp_path / "other", replace(config, transform="paper"))
    shutil.rmtree(tmp_path / "cache" / "views" / "1")
    shutil.copytree(tmp_path / "other" / "views" / "1", tmp_path / "cache" / "views" / "1")
    with pytest.raises(CacheError, match="is no view of the train split beside it") as caught:
        _ = open_cache(tmp_path / "cache").views
    assert "its features have transform = resize 37x37" in str(caught.value)
    assert caught.value.remedy.startswith(f"Remove {tmp_path}/cache/views/1, then run")


def test_a_view_of_other_images_is_refused(
    make_tree: Callable[..., Path], config: ExtractConfig, tmp_path: Path
) -> None:
    run(make_tree(), tmp_path / "cache", config)
    run(make_tree("others", classes="xyz"), tmp_path / "other", config)
    shutil.rmtree(tmp_path / "cache" / "views")
    (tmp_path / "other" / "views").rename(tmp_path / "cache" / "views")
    with pytest.raises(
        CacheError, match=r"is no view of the train .* its features have manifest ="
    ):
        _ = open_cache(tmp_path / "cache").views


def test_views_of_two_seeds_a_copied_view_and_a_copied_split_are_refused(
    make_tree: Callable[..., Path], config: ExtractConfig, tmp_path: Path
) -> None:
    root, out = make_tree(), tmp_path / "cache"
    run(root, out, config)
    run(root, tmp_path / "other", replace(config, view_seed=1))
    second = out / "views" / "1"
    for origin, message in (
        (tmp_path / "other" / "views" / "1", "view_seed = 1 where view_seed = 0 is expected"),
        (out / "views" / "0", "view = 0 where view = 1 is expected"),
        (out / "train", "augmentation = nothing where augmentation = random resized crop"),
    ):
        shutil.rmtree(second)
        shutil.copytree(origin, second)
        with pytest.raises(CacheError, match=f"views/1 holds features with {message}"):
            _ = open_cache(out).views
    with pytest.raises(CacheError) as caught:
        open_cache(second)
    assert caught.value.remedy == f"Give its parent folder, {out}."
