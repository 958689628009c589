"""A merged cache is the one that an extraction of all images would have written."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from PIL import Image
from typer.testing import CliRunner

from clinit.cli.main import app
from clinit.errors import CacheError, ClinitError
from clinit.extract.arrays.import_features import ImportConfig, import_features
from clinit.extract.backbone import BackboneConfig
from clinit.extract.cache import CacheSplit, open_cache
from clinit.extract.dataset.manifest import Manifest, read_manifest
from clinit.extract.dataset.scan import scan
from clinit.extract.head import Head, read_head, write_head
from clinit.extract.merge import merge
from clinit.extract.run import ExtractConfig, extract
from clinit.extract.verify import verify
from tests.extract.dataset.made import make_tar


@pytest.fixture(scope="module")
def config(tiny_weights: Path) -> ExtractConfig:
    args = {"depths": (1, 1, 1, 1), "dims": (4, 8, 8, 12)}
    backbone = BackboneConfig(name="convnextv2_atto", weights=tiny_weights, model_args=args)
    return ExtractConfig(backbone=backbone, input_size=32, batch_size=1, shard_rows=4)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of four classes in two splits; one of them cannot be read."""
    root = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(0)
    for split, count in (("train", 5), ("val", 2)):
        for name in "abcd":
            (root / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = rng.integers(0, 256, (36, 40, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(root / split / name / f"{number}.png")
    (root / "train" / "b" / "2.png").write_text("no pixels")
    return root


@pytest.fixture(scope="module")
def manifests(root: Path) -> dict[str, Manifest]:
    return {split: scan("folder", root, split).manifest for split in ("train", "val")}


def of_classes(manifest: Manifest, names: str) -> Manifest:
    """Return the part of some classes, as if there were no others."""
    label = {name: number for number, name in enumerate(names)}
    table = manifest.table.filter(pl.col("class_name").is_in(list(names)))
    table = table.with_columns(label=pl.col("class_name").replace_strict(label))
    return replace(manifest, class_names=tuple(names), table=table.sort("label", "path"))


@pytest.fixture(scope="module")
def halves(
    tmp_path_factory: pytest.TempPathFactory,
    root: Path,
    manifests: dict[str, Manifest],
    config: ExtractConfig,
) -> tuple[Path, Path, Path]:
    """Caches of the classes a and c, of b and d, and of all."""
    folder = tmp_path_factory.mktemp("caches")
    for name, classes in (("one", "ac"), ("two", "bd"), ("all", "abcd")):
        parts = {split: of_classes(each, classes) for split, each in manifests.items()}
        list(extract(parts, root, folder / name, config))
    return folder / "one", folder / "two", folder / "all"


def same(one: CacheSplit, other: CacheSplit) -> None:
    here, there = one.load(), other.load()
    assert here.features.tobytes() == there.features.tobytes()
    assert here.labels.tolist() == there.labels.tolist()
    assert here.class_names == there.class_names
    assert one.plan == other.plan
    assert one.summary.invalid == other.summary.invalid
    assert one.summary.head == other.summary.head
    assert one.manifest.table.equals(other.manifest.table)


def test_two_halves_are_the_whole(tmp_path: Path, halves: tuple[Path, Path, Path]) -> None:
    one, two, whole = halves
    for number, parts in enumerate(((one, two), (two, one))):
        splits = list(merge(parts, tmp_path / str(number)))
        assert [split.plan.split for split in splits] == ["train", "val"]
        for split in splits:
            same(split, open_cache(whole).split(split.plan.split))
        assert not any(part.problems for part in verify(tmp_path / str(number)))


def test_an_extraction_of_the_merged_manifest_accepts_the_result(
    tmp_path: Path, halves: tuple[Path, Path, Path], root: Path, config: ExtractConfig
) -> None:
    out = tmp_path / "out"
    list(merge(halves[:2], out))
    found = {split: read_manifest(out / split / "manifest.parquet") for split in ("train", "val")}
    assert [result.computed_rows for result in extract(found, root, out, config)] == [0, 0]


def test_splits_of_different_caches_become_one_cache(
    tmp_path: Path, halves: tuple[Path, Path, Path]
) -> None:
    for name, removed in (("t", "val"), ("v", "train")):
        shutil.copytree(halves[2], tmp_path / name)
        shutil.rmtree(tmp_path / name / removed)
    merged = list(merge((tmp_path / "t", tmp_path / "v"), tmp_path / "out"))
    assert {split.plan.split for split in merged} == {"train", "val"}
    for split in merged:
        same(split, open_cache(halves[2]).split(split.plan.split))


def test_images_of_different_folders_start_from_the_folder_around_them(
    tmp_path: Path, halves: tuple[Path, Path, Path], edit_document: Callable[..., None]
) -> None:
    for name, cache in zip("xy", halves[:2], strict=True):
        shutil.copytree(cache, tmp_path / name)
        for split in ("train", "val"):
            run = {"root": f"/data/{name}", "weights": None}
            edit_document(tmp_path / name / split / "cache.json", run=run)
    train = next(iter(merge((tmp_path / "x", tmp_path / "y"), tmp_path / "out")))
    assert train.summary.run.root == "/data"
    assert train.summary.run.merged == (str(tmp_path / "x"), str(tmp_path / "y"))
    paths = train.manifest.table["path"].to_list()
    assert paths[0] == "x/train/a/0.png"
    assert paths[5] == "y/train/b/0.png"


def test_classes_that_are_not_in_order_keep_their_order(
    tmp_path: Path,
    root: Path,
    manifests: dict[str, Manifest],
    halves: tuple[Path, Path, Path],
    config: ExtractConfig,
) -> None:
    list(extract({"train": of_classes(manifests["train"], "db")}, root, tmp_path / "db", config))
    (train, _) = merge((tmp_path / "db", halves[0]), tmp_path / "out")
    assert train.class_names == ("d", "b", "a", "c")
    whole = open_cache(halves[2]).split("train")
    paths = whole.manifest.table["path"].to_list()
    rows = [paths.index(path) for path in train.manifest.table["path"]]
    features = np.concatenate([shard.features for shard in whole.shards()])[rows]
    assert np.concatenate([s.features for s in train.shards()]).tobytes() == features.tobytes()


def test_an_image_in_two_caches_is_refused(tmp_path: Path, halves: tuple[Path, Path, Path]) -> None:
    with pytest.raises(CacheError, match=r"10 images of train are in more than one cache, such"):
        list(merge((halves[0], halves[2]), tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_features_of_another_backbone_are_refused_with_the_field(
    tmp_path: Path,
    root: Path,
    manifests: dict[str, Manifest],
    halves: tuple[Path, Path, Path],
    config: ExtractConfig,
) -> None:
    other = replace(config, dtype="float32")
    list(extract({"train": of_classes(manifests["train"], "b")}, root, tmp_path / "b", other))
    with pytest.raises(CacheError, match=r"dtype = float16 in .*one, float32 in .*b$"):
        list(merge((halves[0], tmp_path / "b"), tmp_path / "out"))


def test_images_in_containers_are_refused_before_anything_is_written(
    tmp_path: Path, root: Path, config: ExtractConfig, halves: tuple[Path, Path, Path]
) -> None:
    members = [("a.png", (root / "val" / "a" / "0.png").read_bytes()), ("a.cls", b"0")]
    make_tar(tmp_path / "shards" / "val-0.tar", members)
    (tmp_path / "shards" / "classnames.txt").write_text("a\n")
    manifest = scan("webdataset", tmp_path / "shards", "val").manifest
    list(extract({"val": manifest}, tmp_path / "shards", tmp_path / "cache", config))
    with pytest.raises(CacheError, match=r"cache/val lie in tar or Parquet files: .* not merged"):
        list(merge([halves[0], tmp_path / "cache"], tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_heads_that_differ_are_refused(tmp_path: Path, halves: tuple[Path, Path, Path]) -> None:
    shutil.copytree(halves[1], tmp_path / "two")
    path = tmp_path / "two" / "head.safetensors"
    write_head(replace(read_head(path), class_names=("x", "y", "z")), path)
    with pytest.raises(CacheError, match="the rows of the head have other class names in"):
        list(merge((halves[0], tmp_path / "two"), tmp_path / "out"))
    write_head(replace(read_head(path), class_names=None), path)
    list(merge((tmp_path / "two", halves[0]), tmp_path / "out"))
    assert read_head(tmp_path / "out" / "head.safetensors").class_names == ("a", "b", "c")


def test_the_new_cache_is_none_of_the_old_ones(
    tmp_path: Path, halves: tuple[Path, Path, Path]
) -> None:
    one, two, _ = halves
    with pytest.raises(CacheError, match="is one of the caches that are merged"):
        list(merge((one, two), one))
    with pytest.raises(CacheError, match="a cache is given twice"):
        list(merge((one, one), tmp_path / "out"))
    with pytest.raises(CacheError, match="1 cache is given, expected two or more"):
        list(merge((one,), tmp_path / "out"))


def test_a_killed_merge_goes_on_and_is_not_replaced_by_another(
    tmp_path: Path,
    root: Path,
    manifests: dict[str, Manifest],
    halves: tuple[Path, Path, Path],
    config: ExtractConfig,
) -> None:
    fewer = of_classes(manifests["train"], "bd")
    fewer = replace(fewer, table=fewer.table[1:])
    list(extract({"train": fewer}, root, tmp_path / "fewer", config))

    class KilledError(Exception):
        pass

    def kill(title: str, done: int, total: int) -> None:
        if done >= 8:
            raise KilledError

    out = tmp_path / "out"
    with pytest.raises(KilledError):
        list(merge(halves[:2], out, on_rows=kill))
    before = {path: path.stat().st_ino for path in (out / "train").glob("*.h5")}
    assert len(before) == 2
    train, _ = merge(halves[:2], out)
    same(train, open_cache(halves[2]).split("train"))
    assert {path: path.stat().st_ino for path in before} == before
    again = {path: path.stat().st_mtime_ns for path in out.rglob("*.*") if path.is_file()}
    assert [split.plan.split for split in merge(halves[:2], out)] == ["train", "val"]
    assert {path: path.stat().st_mtime_ns for path in again} == again
    with pytest.raises(CacheError, match="holds a complete split already"):
        list(merge((halves[0], tmp_path / "fewer"), out))


def imported(folder: Path, name: str, labels: list[str], *, backbone: str = "clip") -> Path:
    features = np.random.default_rng(len(name)).normal(size=(len(labels), 3)).astype(np.float16)
    np.savez(folder / f"{name}.npz", features=features, labels=np.array(labels))
    config = ImportConfig(backbone=backbone)
    import_features(folder / f"{name}.npz", None, folder / name, config)
    return folder / name


def test_imported_caches_are_merged_and_told_apart_by_their_files(tmp_path: Path) -> None:
    one = imported(tmp_path, "one", ["b", "a", "b"])
    three = imported(tmp_path, "three", ["c", "a"])
    fives = imported(tmp_path, "fives", ["d"])
    (both,) = merge((one, three), tmp_path / "both")
    assert both.class_names == ("a", "b", "c")
    assert both.labels.tolist() == [0, 0, 1, 1, 2]
    digest = open_cache(one).split("train").fingerprint.features
    assert digest is not None
    assert f"{digest[:12]}/1" in both.manifest.table["path"].to_list()
    (all_three,) = merge((tmp_path / "both", fives), tmp_path / "three-of-them")
    assert all_three.num_rows == 6
    with pytest.raises(CacheError, match="3 images of train are in more than one cache"):
        list(merge((tmp_path / "both", one), tmp_path / "again"))
    with pytest.raises(CacheError, match=r"backbone = clip in .*, dino in"):
        list(merge((one, imported(tmp_path, "dinos", ["a"], backbone="dino")), tmp_path / "no"))


def test_views_are_left_out_and_the_command_says_so(
    tmp_path: Path,
    root: Path,
    manifests: dict[str, Manifest],
    halves: tuple[Path, Path, Path],
    config: ExtractConfig,
) -> None:
    seen = replace(config, views=1)
    list(extract({"train": of_classes(manifests["train"], "b")}, root, tmp_path / "b", seen))
    words = ["cache", "merge", str(tmp_path / "out"), str(halves[0]), str(tmp_path / "b")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.exception
    assert f"the views of {tmp_path / 'b'} are not merged" in done.stderr
    assert done.stdout.splitlines()[:2] == [
        f"train: 15 rows of 3 classes, 12 x float16, at {tmp_path}/out/train",
        "  without features: 1",
    ]


def vals_to_merge(folder: Path) -> list[Path]:
    caches: list[Path] = []
    for name in ("one", "two"):
        features = np.random.default_rng(len(caches)).normal(size=(2, 3)).astype(np.float16)
        np.savez(folder / f"{name}.npz", features=features, labels=np.array(["a", "b"]))
        config = ImportConfig(backbone="clip", split="val")
        caches.append(folder / name)
        import_features(folder / f"{name}.npz", None, caches[-1], config)
    return caches


@pytest.mark.parametrize(
    ("backbone", "labels", "head", "message"),
    [
        ("dino", ["a", "b"], True, r"holds features of another backbone \(dino, 3 x float16\)"),
        ("clip", ["a", "c"], True, "the classes of this split are not those of .*out/train"),
        ("clip", ["a", "b"], True, r"head.safetensors belongs to .*out, these have no head"),
        ("clip", ["a", "b"], False, ""),
    ],
)
def test_a_merge_into_a_cache_leaves_its_head_classes_and_backbone(
    tmp_path: Path, backbone: str, labels: list[str], head: bool, message: str
) -> None:
    np.savez(tmp_path / "t.npz", features=np.eye(2, 3, dtype=np.float16), labels=np.array(labels))
    write_head(Head(np.eye(2, 3), np.zeros(2)), tmp_path / "h.safetensors")
    given = tmp_path / "h.safetensors" if head else None
    out = tmp_path / "out"
    import_features(tmp_path / "t.npz", None, out, ImportConfig(backbone=backbone, head=given))
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    parts = vals_to_merge(tmp_path)
    if not message:
        list(merge(parts, out))
        assert set(open_cache(out).splits) == {"train", "val"}
        return
    with pytest.raises(ClinitError, match=message):
        list(merge(parts, out))
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_a_merge_does_not_replace_the_head_of_a_cache(tmp_path: Path) -> None:
    write_head(Head(np.eye(2, 3), np.zeros(2)), tmp_path / "h.safetensors")
    write_head(Head(2 * np.eye(2, 3), np.zeros(2)), tmp_path / "other.safetensors")
    labels = np.array(["a", "b"])
    for name, split, head in (("t", "train", "h"), ("v", "val", "other"), ("w", "val", "other")):
        features = np.random.default_rng(ord(name)).normal(size=(2, 3)).astype(np.float16)
        np.savez(tmp_path / f"{name}.npz", features=features, labels=labels)
        config = ImportConfig(backbone="clip", split=split, head=tmp_path / f"{head}.safetensors")
        import_features(tmp_path / f"{name}.npz", None, tmp_path / name, config)
    before = (tmp_path / "t" / "head.safetensors").read_bytes()
    with pytest.raises(ClinitError, match="holds another head than") as caught:
        list(merge((tmp_path / "v", tmp_path / "w"), tmp_path / "t"))
    assert "another folder" in caught.value.remedy
    assert (tmp_path / "t" / "head.safetensors").read_bytes() == before
    assert not (tmp_path / "t" / "val").exists()
    open_cache(tmp_path / "t")


def test_folders_that_an_earlier_version_recorded_as_typed_are_not_taken_for_one(
    tmp_path: Path, halves: tuple[Path, Path, Path], edit_document: Callable[..., None]
) -> None:
    for name, cache in zip("xy", halves[:2], strict=True):
        shutil.copytree(cache, tmp_path / name)
        for split in ("train", "val"):
            run = {"root": "images", "weights": None}
            edit_document(tmp_path / name / split / "cache.json", run=run)
    with pytest.raises(CacheError, match=r"/x were in images, seen from a folder that") as caught:
        list(merge((tmp_path / "x", tmp_path / "y"), tmp_path / "out"))
    assert "`clinit extract` command of" in caught.value.remedy
    assert not (tmp_path / "out").exists()
