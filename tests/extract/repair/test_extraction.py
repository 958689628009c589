"""A repair computes what there was: from the images of each split, and no row becomes invalid."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from clinit.cli.main import app
from clinit.errors import ClinitError
from clinit.extract.backbone import BackboneConfig
from clinit.extract.cache import open_cache
from clinit.extract.repair.parts import Mended
from clinit.extract.run import ExtractConfig, extract
from clinit.extract.scan import scan
from tests.extract.repair.damage import contents, halve, mend


@pytest.fixture
def config(tiny_weights: Path) -> ExtractConfig:
    args = {"depths": (1, 1, 1, 1), "dims": (4, 8, 8, 12)}
    backbone = BackboneConfig(name="convnextv2_atto", weights=tiny_weights, model_args=args)
    return ExtractConfig(backbone=backbone, input_size=32, batch_size=4, shard_rows=6)


@pytest.fixture
def images(whole: Path, tmp_path: Path) -> Path:
    """Images of a train and a val split, of which one of train cannot be read."""
    root = Path(shutil.copytree(whole.parent / "images", tmp_path / "images"))
    (root / "train" / "b" / "2.png").write_text("no pixels")
    return root


def extracted(config: ExtractConfig, out: Path, **roots: Path) -> Path:
    for split, root in roots.items():
        list(extract({split: scan("folder", root, split).manifest}, root, out, config))
    return out


def test_an_image_that_is_gone_does_not_make_its_row_invalid(
    config: ExtractConfig, images: Path, tmp_path: Path
) -> None:
    cache = extracted(config, tmp_path / "cache", train=images)
    path = images / "train" / "b" / "1.png"
    content = path.read_bytes()
    halve(cache / "train" / "shard-00001.h5")
    before = contents(cache)
    path.unlink()
    with pytest.raises(ClinitError, match=r"b/1\.png \(row 6\): .*says that this row had") as e:
        mend(cache)
    assert "`clinit extract`" in e.value.remedy
    assert contents(cache) == before
    path.write_bytes(content)
    assert mend(cache) == [Mended("train", 6)]
    assert [entry.row for entry in open_cache(cache).split("train").summary.invalid] == [7]


def test_a_row_that_may_have_had_features_must_be_readable(
    config: ExtractConfig, images: Path, tmp_path: Path
) -> None:
    cache = extracted(config, tmp_path / "cache", train=images)
    halve(cache / "train" / "shard-00001.h5", cache / "train" / "cache.json")
    with pytest.raises(ClinitError, match=r"b/2\.png \(row 7\): .*nothing whole .* says"):
        mend(cache, root=images, weights=config.backbone.weights)


def test_what_is_not_as_it_was_written_is_said(
    config: ExtractConfig, images: Path, tmp_path: Path
) -> None:
    manifest = scan("folder", images, "train").manifest
    path, cache = images / "train" / "b" / "1.png", tmp_path / "cache"
    path.rename(tmp_path / "away")
    list(extract({"train": manifest}, images, cache, config))
    (tmp_path / "away").rename(path)
    halve(cache / "train" / "shard-00001.h5")
    done = CliRunner().invoke(app, ["cache", "repair", str(cache)])
    assert done.exit_code == 0, done.exception
    assert done.stdout.splitlines()[1:] == [
        "train: mended, 6 rows computed",
        "  rows that had no features and have some now: 1",
        "  shards of other bits than before: 1 of 3",
        "Everything is whole; what is not as it was written is said above.",
    ]


def test_each_split_is_extracted_from_its_own_images(
    config: ExtractConfig, images: Path, tmp_path: Path
) -> None:
    other = Path(shutil.copytree(images, tmp_path / "other"))
    shutil.rmtree(images / "val" / "b")  # another val split than that of the cache
    cache = extracted(config, tmp_path / "cache", train=images, val=other)
    before = contents(cache)
    halve(cache / "train" / "shard-00000.h5", cache / "val" / "shard-00000.h5")
    assert mend(cache) == [Mended("train", 6), Mended("val", 6)]
    after = contents(cache)
    for name in ("train/shard-00000.h5", "val/shard-00000.h5"):
        assert after[Path(name)][1] == before[Path(name)][1]
    roots = {name: split.summary.run.root for name, split in open_cache(cache).splits.items()}
    assert roots == {"train": str(images), "val": str(other)}
    done = CliRunner().invoke(app, ["cache", "verify", str(cache), "--deep", "9"])
    assert done.exit_code == 0, (done.exception, done.stdout)


def test_the_largest_image_is_that_of_each_split(
    config: ExtractConfig, images: Path, tmp_path: Path
) -> None:
    cache = extracted(replace(config, max_pixels=100), tmp_path / "cache", train=images)
    extracted(replace(config, max_pixels=2000), cache, val=images)
    halve(cache / "val" / "shard-00000.h5")
    assert mend(cache) == [Mended("val", 6)]
    assert open_cache(cache).split("val").num_valid == 6


def test_a_folder_of_images_is_recorded_from_the_root(
    config: ExtractConfig, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cache = extracted(config, tmp_path / "cache", train=Path("images"))
    assert open_cache(cache).split("train").summary.run.root == str(images)


def test_a_relative_folder_of_an_earlier_version_is_not_looked_for(
    config: ExtractConfig,
    images: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    edit_document: Callable[..., None],
) -> None:
    monkeypatch.chdir(tmp_path)
    cache = extracted(config, tmp_path / "cache", train=images)
    run = {"root": "images", "weights": str(config.backbone.weights)}
    edit_document(cache / "train" / "cache.json", run=run)
    halve(cache / "train" / "shard-00000.h5")
    with pytest.raises(ClinitError, match="were in images, seen from a folder that an earlier"):
        mend(cache)
    assert mend(cache, root=Path("images")) == [Mended("train", 6)]
    edit_document(cache / "train" / "cache.json", run=run)
    extracted(config, cache, train=images)  # computes nothing
    assert open_cache(cache).split("train").summary.run.root == str(images)
