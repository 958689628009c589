import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from tests.cli.calls import NETWORK, call, checked

Call = Callable[..., Result]
Tree = Callable[..., Path]


@pytest.fixture
def extract(tiny_weights: Path, tmp_path: Path) -> Call:
    def run(*arguments: object, out: str = "cache", dataset: str | None = "folder") -> Result:
        places = ["--out", tmp_path / out, "--weights", tiny_weights]
        words = [] if dataset is None else ["--dataset", dataset]
        return call("extract", *places, *NETWORK, "--shard-rows=8", *words, *arguments)

    return run


def test_both_splits_are_extracted_summed_up_and_shown(
    extract: Call, make_tree: Tree, tmp_path: Path
) -> None:
    root, cache = make_tree(), tmp_path / "cache"
    lines = checked(extract("--root", root)).splitlines()
    assert lines[0] == f"train: 15 images, features 15 x 12 float16 in 2 shards at {cache}/train"
    assert "the bound is " in lines[1]
    assert lines[2].endswith(" of 15 images (its classes: stored with the weights)")
    described = call("cache", "show", cache).output
    plan = json.loads((cache / "train" / "plan.json").read_text())
    for name, value in plan["fingerprint"].items():
        assert name == "manifest" or (name in described and value in described)
    assert "3 rows, named" in described
    val = extract("--root", root, "--split", "val", "--limit-per-class", 1, out="val").output
    assert "val: 3 images" in val
    assert not (tmp_path / "val" / "train").exists()


def test_invalid_rows_are_listed(extract: Call, make_tree: Tree, tmp_path: Path) -> None:
    root, path = make_tree(train=10), tmp_path / "train.parquet"
    call("manifest", "build", "folder", "--root", root, "--split=train", "--out", path)
    images = [*root.glob("train/b/*.png"), *root.glob("train/c/*.png"), root / "train/a/9.png"]
    for image in images:
        image.rename(image.with_suffix(".gone"))
    base = ["--manifest", path, "--root", root]
    shown = extract(*base, dataset=None).output
    assert "21 of 30 images have no features:" in shown
    assert shown.count(": the file is missing") == 20
    assert f"all of them are listed in {tmp_path}/cache/train/cache.json" in shown
    for image in images[1:]:
        image.with_suffix(".gone").rename(image)
    assert "21 of 30 images have no features" in extract(*base, dataset=None).output
    (tmp_path / "cache" / "train" / "shard-00000.h5").unlink()
    again = checked(extract(*base, dataset=None))
    assert "1 of 30 images have no features" in again
    assert f"{images[0].relative_to(root)}: the file is missing" in again


def test_a_split_without_any_feature_is_an_error(
    extract: Call, make_tree: Tree, tmp_path: Path
) -> None:
    root = make_tree()
    for image in root.glob("val/*/*.png"):
        image.write_text("no pixels")
    refused = extract("--root", root)
    assert refused.exit_code == 1
    assert "val/a/0.png: not an image" in str(refused.exception)


def test_views_are_extracted_and_shown(extract: Call, make_tree: Tree, tmp_path: Path) -> None:
    root, cache = make_tree(), tmp_path / "cache"
    (root / "train" / "b" / "2.png").write_text("no pixels")
    assert extract("--root", root).exit_code == 0
    assert "  views" not in call("cache", "show", cache).output
    shown = checked(extract("--root", root, "--views", 2, "--view-seed", 7))
    assert shown.count("  already complete: every shard verified, nothing to do") == 2
    for number in (0, 1):
        assert f"train, view {number}: 15 images, features 14 x 12 float16" in shown
    assert shown.count("have no features") == 1, "what train has listed is not listed again"
    again = extract("--root", root, "--views", 1, "--view-seed", 7)
    assert again.output.count("  already complete: every shard verified, nothing to do") == 3
    described = call("cache", "show", cache).output
    assert "       views  2 of train, seed 7, " in described
    assert "random resized crop 32x32 bicubic antialias, area 0.08 to 1" in described


def test_parts_say_what_is_there_and_the_last_one_completes_the_cache(
    extract: Call, make_tree: Tree, tmp_path: Path
) -> None:
    images = ["--root", make_tree(), "--shard-rows", "4"]
    first = checked(extract(*images, "--part", "1/2"))
    assert f"train, part 1/2: 2 of 4 shards are finished, at {tmp_path}/cache/train" in first
    assert "  8 images computed" in first
    assert "the same command without --part computes missing shards" in first
    again = extract(*images, "--part", "1/2")
    assert "  this part was complete: every shard verified" in again.output
    last = extract(*images, "--part", "2/2")
    assert "train: 15 images, features 15 x 12 float16 in 4 shards" in last.output
    assert "--part" not in last.output
