"""A sample that is extracted again tells whether the features are those of the images."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from clinit.cli.main import app
from clinit.errors import ClinitError
from clinit.extract.arrays.import_features import ImportConfig, import_features
from clinit.extract.cache.read import Cache, open_cache
from clinit.extract.dataset.scan import scan
from clinit.extract.network.backbone import BackboneConfig
from clinit.extract.work.recheck import Rechecked, recheck, sample_rows
from clinit.extract.work.recorded import rebuild_network
from clinit.extract.work.run import ExtractConfig, Network, extract


@pytest.fixture
def cache(tiny_weights: Path, make_tree: Callable[..., Path], tmp_path: Path) -> Cache:
    """A cache with a view, beside its images; one image cannot be read."""
    root = make_tree()
    (root / "train" / "b" / "2.png").write_text("no pixels")
    args = {"depths": (1, 1, 1, 1), "dims": (4, 8, 8, 12)}
    backbone = BackboneConfig(name="convnextv2_atto", weights=tiny_weights, model_args=args)
    config = ExtractConfig(backbone=backbone, input_size=32, batch_size=4, shard_rows=6, views=1)
    manifests = {split: scan("folder", root, split).manifest for split in ("train", "val")}
    list(extract(manifests, root, tmp_path / "cache", config))
    return open_cache(tmp_path / "cache")


def network_of(cache: Cache, weights: Path) -> Network:
    return rebuild_network(cache.split("train").plan, weights, "cpu", origin="cache")


def all_of(cache: Cache, weights: Path) -> list[Rechecked]:
    network, root = network_of(cache, weights), cache.path.parent / "images"
    return [
        recheck(split, network, root, sample_rows(split, 99, 0), workers=2)
        for split in (*cache.splits.values(), *cache.views)
    ]


def test_the_images_give_what_is_stored_in_splits_and_views(
    cache: Cache, tiny_weights: Path
) -> None:
    found = all_of(cache, tiny_weights)
    assert [each.title for each in found] == ["train", "val", "train, view 0"]
    assert [each.num_rows for each in found] == [14, 6, 14]
    assert all(each.is_same and not each.unreadable for each in found)
    # Rounding to float16 shows, and nothing but it.
    assert all(0 < each.largest <= 1.01 * 2**-11 for each in found)


def test_exchanged_images_are_found_with_their_row(cache: Cache, tiny_weights: Path) -> None:
    folder = cache.path.parent / "images" / "train" / "c"
    for name in ("1.png", "3.png"):  # of one size, as the manifest has it
        pixels = np.random.default_rng(int(name[0])).integers(0, 256, (36, 40, 3), dtype=np.uint8)
        size = (folder / name).stat().st_size
        Image.fromarray(pixels).save(folder / name)
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content.ljust(size, b"\0")[:size])
    train, val, view = all_of(cache, tiny_weights)
    assert (train.is_same, val.is_same, view.is_same) == (False, True, False)
    assert train.largest > 10 * train.tolerance
    assert (train.row, train.path) in ((11, "train/c/1.png"), (13, "train/c/3.png"))


def test_an_image_that_cannot_be_read_now_is_no_success(cache: Cache, tiny_weights: Path) -> None:
    path = cache.path.parent / "images" / "val" / "b" / "1.png"
    path.write_bytes(bytes(path.stat().st_size))
    _, val, _ = all_of(cache, tiny_weights)
    assert not val.is_same
    assert len(val.unreadable) == 1
    assert val.unreadable[0].startswith("val/b/1.png: ")


def test_a_sample_is_seeded_without_replacement_and_valid(cache: Cache) -> None:
    split = cache.split("train")
    samples = [sample_rows(split, 5, seed) for seed in (0, 0, 1)]
    assert samples[0].tolist() == samples[1].tolist()
    assert samples[0].tolist() != samples[2].tolist()
    assert all(len(set(s.tolist())) == 5 and split.valid[s].all() for s in samples)
    assert len(sample_rows(split, 99, 0)) == 14


def test_the_command_says_the_difference_and_the_tolerance_and_fails_beyond(
    cache: Cache, tmp_path: Path, make_tree: Callable[..., Path]
) -> None:
    words = ["cache", "verify", str(cache.path), "--deep", "3", "--seed", "2", "--workers", "1"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.exception
    lines = done.stdout.splitlines()
    assert lines[4].startswith("train: 3 rows extracted again")
    assert "of a row's largest feature, row " in lines[4]
    assert lines[5].startswith("  up to 0.0024 is rounding: storage in float16")
    assert lines[-1].endswith("the sample is what its images give.")
    other = make_tree(
        "other-images"
    )  # other noise, and other sizes: not the images of the manifest
    wrong = CliRunner().invoke(app, [*words, "--root", str(other)])
    assert isinstance(wrong.exception, ClinitError)
    gone = CliRunner().invoke(app, [*words, "--root", str(tmp_path / "gone")])
    assert str(gone.exception) == f"no folder at {tmp_path}/gone"
    for path in (cache.path.parent / "images").rglob("*.png"):
        path.write_bytes(bytes(path.stat().st_size))
    blank = CliRunner().invoke(app, words)
    assert isinstance(blank.exception, ClinitError)
    assert "differ from what the images give" in str(blank.exception)
    assert blank.stdout.count("DIFFERENT") == 3
    assert "cannot be read now: " in blank.stdout


def test_imported_features_have_no_images(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.eye(3, dtype=np.float32))
    np.save(tmp_path / "y.npy", np.arange(3))
    config = ImportConfig(backbone="clip")
    import_features(tmp_path / "x.npy", tmp_path / "y.npy", tmp_path / "c", config)
    done = CliRunner().invoke(app, ["cache", "verify", str(tmp_path / "c"), "--deep", "1"])
    assert isinstance(done.exception, ClinitError)
    assert "were imported: no image can be extracted again" in str(done.exception)
