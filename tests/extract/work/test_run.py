import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image

from clinit.errors import CacheError, ClinitError, ImageError, ManifestError
from clinit.extract.cache.head import Top1
from clinit.extract.cache.plan import Part, Plan
from clinit.extract.cache.read import open_cache, open_split, shard_problem
from clinit.extract.dataset.decode import decode
from clinit.extract.dataset.scan import scan
from clinit.extract.network.transform import make_transform
from clinit.extract.work.run import ExtractConfig, extract
from clinit.observer import Event, Observer, Progressed
from tests.conftest import TINY_ARGS, TINY_MODEL
from tests.extract.work.made import extracted, files, tiny_config

Tree = Callable[..., Path]


@pytest.fixture
def config(tiny_weights: Path) -> ExtractConfig:
    return tiny_config(tiny_weights)


@pytest.fixture
def made(make_tree: Tree, config: ExtractConfig, tmp_path: Path) -> tuple[Path, Path]:
    """Images, and a cache of them."""
    root, out = make_tree(), tmp_path / "cache"
    extracted(root, out, config)
    return root, out


def stopping(after: int) -> Observer:
    """Return what interrupts an extraction after some batches."""
    calls = iter(range(1, 99))

    def interrupt(event: Event) -> None:
        if next(calls) == after:
            raise KeyboardInterrupt

    return interrupt


def test_cached_features_are_those_of_timms_own_forward_pass(
    make_tree: Tree, config: ExtractConfig, tiny_weights: Path, tmp_path: Path
) -> None:
    root = make_tree()
    extracted(root, tmp_path / "cache", replace(config, dtype="float32"))
    extracted(root, tmp_path / "half", config)
    network = timm.create_model(
        TINY_MODEL, num_classes=3, checkpoint_path=str(tiny_weights), **TINY_ARGS
    ).eval()
    transform = make_transform("timm", timm.data.resolve_model_data_config(network), input_size=32)
    for name, split in open_cache(tmp_path / "cache").splits.items():
        loaded = split.load()
        for i, path in enumerate(split.manifest.table["path"]):
            assert path == f"{name}/{'abc'[split.labels[i]]}/{Path(path).name}"
            pixels = transform.to_input(decode((root / path).read_bytes()))
            with torch.no_grad():
                batch = transform.normalise(pixels[None])
                expected = network.forward_head(network.forward_features(batch), pre_logits=True)
            np.testing.assert_allclose(loaded.features[i], expected[0], rtol=1e-4, atol=1e-5)
        half = open_split(tmp_path / "half" / name).load().features
        assert half.dtype == np.float16
        np.testing.assert_array_equal(half, loaded.features.astype(np.float16))


@pytest.mark.parametrize("stop_after", [1, 4])
def test_a_resumed_extraction_is_bit_identical_to_an_uninterrupted_one(
    make_tree: Tree, config: ExtractConfig, tmp_path: Path, stop_after: int
) -> None:
    """On another number of decoding threads, too."""
    root, out = make_tree(), tmp_path / "resumed"
    extracted(root, tmp_path / "whole", config)
    with pytest.raises(KeyboardInterrupt):
        extracted(root, out, config, observer=stopping(stop_after))
    with pytest.raises(CacheError, match="its extraction was interrupted"):
        open_split(out / "train")
    results = extracted(root, out, replace(config, workers=5))
    assert results[0].computed_rows == 15 - 6 * ((stop_after - 1) // 2)
    assert files(out) == files(tmp_path / "whole")


@pytest.mark.parametrize("damage", ["flip", "flip in the user block", "truncate", "remove"])
def test_a_damaged_shard_is_found_and_computed_again(
    made: tuple[Path, Path], config: ExtractConfig, damage: str
) -> None:
    root, out = made
    before, path = files(out), out / "train" / "shard-00001.h5"
    content = bytearray(path.read_bytes())
    if damage.startswith("flip"):
        content[len(content) // 2 if damage == "flip" else 300] ^= 255
    path.write_bytes(content[:-100] if damage == "truncate" else content)
    if damage == "remove":
        path.unlink()
    split = open_split(out / "train")
    sound = [shard_problem(split.path, split.plan, i, split) is None for i in range(3)]
    assert sound == [True, False, True]
    result = extracted(root, out, config)[0]
    assert result.computed_rows == 6
    assert len(result.replaced_shards) == (damage != "remove")
    assert files(out) == before


def spoil(root: Path) -> dict[str, str]:
    """Add unusual and unusable files to a tree; return the reason expected of each bad one."""
    folder = root / "train" / "b"
    picture = Image.open(folder / "0.png")
    picture.save(folder / "whole.jpg")
    whole = (folder / "whole.jpg").read_bytes()
    (folder / "1-truncated.jpg").write_bytes(whole[: len(whole) // 2])
    (folder / "2-empty.png").touch()
    (folder / "3-text.jpg").write_text("no pixels here")
    picture.convert("CMYK").save(folder / "4-cmyk.jpg")
    samples = np.arange(40 * 36, dtype=np.uint16).reshape(36, 40) * 40
    Image.fromarray(samples).save(folder / "5-deep.png")
    picture.save(folder / "6-moving.gif", save_all=True, append_images=[picture.rotate(90)])
    exif = picture.getexif()
    exif[274] = 6
    picture.save(folder / "7-turned.jpg", exif=exif)
    picture.resize((1, 1)).save(folder / "8-dot.png")
    return {
        "train/b/1-truncated.jpg": "cannot be decoded: Image is incomplete or truncated",
        "train/b/2-empty.png": "the file is empty",
        "train/b/3-text.jpg": "not an image of a known format, or its header is damaged",
    }


def test_a_bad_image_keeps_its_row_and_moves_no_other(
    make_tree: Tree, config: ExtractConfig, tmp_path: Path
) -> None:
    root = make_tree()
    reasons, wide = spoil(root), replace(config, dtype="float32", shard_rows=7)
    extracted(root, tmp_path / "spoilt", wide)
    split = open_split(tmp_path / "spoilt" / "train")
    assert split.num_rows == 15 + 9
    assert {entry.path: entry.reason for entry in split.summary.invalid} == reasons
    paths = split.manifest.table["path"].to_numpy()
    assert paths[~split.valid].tolist() == sorted(reasons)
    for path in reasons:
        (root / path).unlink()
    extracted(root, tmp_path / "clean", wide)
    clean, loaded = open_split(tmp_path / "clean" / "train"), split.load()
    assert clean.manifest.table["path"].to_list() == paths[split.valid].tolist()
    np.testing.assert_array_equal(loaded.labels, clean.load().labels)
    # The batches differ, so the last bits may.
    np.testing.assert_allclose(loaded.features, clean.load().features, atol=1e-5)
    assert loaded.counts().tolist() == [5, 11, 5]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"transform": "paper"}, "transform"),
        ({"dtype": "float32"}, "dtype"),
        ({"batch_size": 5}, "batch_size"),
        ({"shard_rows": 5}, "shard_rows"),
    ],
)
def test_another_way_to_extract_is_refused_and_the_field_is_named(
    made: tuple[Path, Path], config: ExtractConfig, change: dict[str, Any], field: str
) -> None:
    root, out = made
    before = files(out)
    with pytest.raises(CacheError, match=f"{field} = .*this command has {field} = "):
        extracted(root, out, replace(config, **change))
    assert files(out) == before


def test_a_cache_goes_on_with_the_batches_that_it_was_begun_with(
    made: tuple[Path, Path], config: ExtractConfig
) -> None:
    root, out = made
    before = files(out)
    (out / "train" / "shard-00001.h5").unlink()
    (out / "train" / "cache.json").unlink()
    extracted(root, out, replace(config, batch_size=None))
    assert files(out) == before
    assert Plan.read(out / "train").batch_size == config.batch_size == 4


def test_the_head_its_accuracy_and_the_time_are_stored(
    make_tree: Tree, config: ExtractConfig, tmp_path: Path
) -> None:
    seen: list[Any] = []
    root, out = make_tree(classes="abx"), tmp_path / "cache"
    results, cache = extracted(root, out, config, observer=seen.append), open_cache(out)
    assert cache.head.class_names == ("a", "b", "c")
    data = cache.split("train").load()
    known = data.labels < 2  # a and b, which are rows 0 and 1 of the head; x is none
    logits = data.features[known].astype(np.float32) @ cache.head.weight.T + cache.head.bias
    correct = int((logits.argmax(axis=1) == data.labels[known]).sum())
    assert results[0].split.summary.head.top1 == Top1(correct, 10)
    assert [p.done for p in seen if p.what == "Reading train"] == [4, 6, 10, 12, 15]
    facts = cache.split("train").summary.run
    assert set(facts.shares) == {"read", "decode", "transfer", "forward", "write"}
    assert sum(facts.shares.values()) == pytest.approx(1)
    assert facts.bound in facts.shares
    extracted(root, out, config)
    assert open_cache(out).split("train").summary.run == facts


def test_an_exchanged_manifest_and_a_damaged_summary_are_found_and_written_again(
    made: tuple[Path, Path], config: ExtractConfig
) -> None:
    root, out = made
    shutil.copy(out / "val" / "manifest.parquet", out / "train" / "manifest.parquet")
    split = open_split(out / "train")
    with pytest.raises(CacheError, match="is not the manifest that was extracted"):
        split.load()
    path = out / "train" / "cache.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "num_valid": 3}))
    with pytest.raises(CacheError, match=r"cache\.json is damaged: it has changed since"):
        open_split(out / "train")
    assert extracted(root, out, config)[0].computed_rows == 0
    split = open_split(out / "train")
    assert shard_problem(split.path, split.plan, 0, split) is None


def without_images(root: Path) -> None:
    for path in root.rglob("*.png"):
        path.unlink()


@pytest.mark.parametrize(
    ("damage", "kind", "match"),
    [
        (shutil.rmtree, ManifestError, "no folder at"),
        (without_images, ManifestError, r"contains none of the 6 images from train/a/0\.png on"),
        (lambda root: shutil.rmtree(root / "train"), ClinitError, "has vanished"),
        (lambda root: (root / "train" / "a" / "0.png").unlink(), ImageError, r"0\.png \(row 0\)"),
    ],
)
def test_images_that_are_not_there_are_refused_and_mark_no_row(
    make_tree: Tree,
    config: ExtractConfig,
    tmp_path: Path,
    damage: Callable[[Path], object],
    kind: type[ClinitError],
    match: str,
) -> None:
    root, out = make_tree(), tmp_path / "cache"
    manifests = {"train": scan("folder", root, "train").manifest}
    empty = {"train": replace(manifests["train"], table=manifests["train"].table.clear())}
    with pytest.raises(ManifestError, match="names no image"):
        list(extract(empty, root, out, config))
    damage(root)
    with pytest.raises(kind, match=match):
        list(extract(manifests, root, out, replace(config, strict=kind is ImageError)))
    assert not (out / "train" / "cache.json").exists()


@pytest.mark.parametrize(
    ("file", "match"),
    [
        ("train/cache.json", "belong to different extractions"),
        ("val", "dtype = float16 in train, float32 in val"),
        ("head.safetensors", r"head\.safetensors belongs to another backbone"),
    ],
)
def test_what_is_of_another_extraction_does_not_open_as_one_cache(
    make_tree: Tree, config: ExtractConfig, tmp_path: Path, file: str, match: str
) -> None:
    root, out, other = make_tree(train=2, val=1), tmp_path / "cache", tmp_path / "other"
    extracted(root, out, config)
    extracted(root, other, replace(config, dtype="float32"))
    if (out / file).is_dir():
        shutil.rmtree(out / file)
    (other / file).replace(out / file)
    with pytest.raises(CacheError, match=match):
        open_cache(out)


def test_a_folder_that_has_changed_is_followed_and_only_new_images_are_computed(
    make_tree: Tree, config: ExtractConfig, tmp_path: Path
) -> None:
    root, out = make_tree(), tmp_path / "cache"
    (root / "train" / "c" / "2.png").write_text("no pixels here")
    extracted(root, out, config)
    (root / "train" / "b" / "3.png").unlink()
    Image.new("RGB", (40, 36)).save(root / "train" / "b" / "1.png")
    for name in ("a/new.png", "aa/new.png", "c/new.png"):
        (root / "train" / name).parent.mkdir(exist_ok=True)
        shutil.copy(root / "train" / "a" / "0.png", root / "train" / name)

    def killed(event: Event) -> None:
        if isinstance(event, Progressed):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        extracted(root, out, config, observer=killed)
    train, val = extracted(root, out, config)
    fresh, _ = extracted(root, tmp_path / "fresh", config)
    assert (train.computed_rows, val.computed_rows) == (4, 0)
    assert train.split.manifest.digest == fresh.split.manifest.digest
    np.testing.assert_allclose(
        train.split.load().features, fresh.split.load().features, rtol=1e-3, atol=1e-3
    )
    assert sorted(each.name for each in out.iterdir()) == ["head.safetensors", "train", "val"]
    for image in (other := make_tree("other", train=1)).glob("train/*/*.png"):
        image.rename(image.with_name("own.png"))
    with pytest.raises(CacheError, match="no image stayed"):
        extracted(other, out, config)
    with pytest.raises(CacheError, match="only read"):
        extracted(root, root, config)
    shutil.rmtree(root / "train" / "aa")
    with pytest.raises(CacheError, match=r"1 image gone .* needs one process"):
        extracted(root, out, config, Part(1, 2))
