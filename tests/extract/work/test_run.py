import errno
import fcntl
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
from safetensors.torch import load_file, save_file

from clinit.errors import (
    CacheError,
    ClinitError,
    ImageError,
    MachineError,
    ManifestError,
    StorageError,
)
from clinit.extract.cache.plan import read_plan
from clinit.extract.cache.read import open_cache, open_split, verify_shard
from clinit.extract.dataset.decode import decode
from clinit.extract.dataset.scan import available_splits, scan
from clinit.extract.network.backbone import BackboneConfig
from clinit.extract.network.transform import make_transform
from clinit.extract.work.run import ExtractConfig, extract
from clinit.extract.work.shard_work import Progress
from clinit.extract.work.split_run import SplitResult

MODEL = "convnextv2_atto"
ARGS: dict[str, Any] = {"depths": (1, 1, 1, 1), "dims": (4, 8, 8, 12)}


@pytest.fixture
def config(tiny_weights: Path) -> ExtractConfig:
    backbone = BackboneConfig(name=MODEL, weights=tiny_weights, model_args=ARGS)
    return ExtractConfig(backbone=backbone, input_size=32, batch_size=4, shard_rows=6)


def run(
    root: Path,
    out: Path,
    config: ExtractConfig,
    on_progress: Callable[[Progress], None] | None = None,
) -> list[SplitResult]:
    manifests = {s: scan("folder", root, s).manifest for s in available_splits("folder", root)}
    return list(
        extract(manifests, root, out, config, on_progress=on_progress or (lambda progress: None))
    )


def files(folder: Path) -> dict[str, bytes]:
    """Everything in a cache but what tells of the run itself."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in ("cache.json", ".lock")
    }


def test_cached_features_are_those_of_timms_own_forward_pass(
    make_tree: Callable[..., Path], config: ExtractConfig, tiny_weights: Path, tmp_path: Path
) -> None:
    root = make_tree()
    run(root, tmp_path / "cache", replace(config, dtype="float32"))
    network = timm.create_model(MODEL, num_classes=3, checkpoint_path=str(tiny_weights), **ARGS)
    network.eval()
    data = timm.data.resolve_model_data_config(network)
    transform = make_transform("timm", data, input_size=32)
    for name, split in open_cache(tmp_path / "cache").splits.items():
        loaded = split.load()
        for i, path in enumerate(split.manifest.table["path"]):
            assert path == f"{name}/{'abc'[split.labels[i]]}/{Path(path).name}"
            pixels = transform.to_input(decode((root / path).read_bytes()))
            with torch.no_grad():
                batch = transform.normalise(pixels[None])
                expected = network.forward_head(network.forward_features(batch), pre_logits=True)  # type: ignore[operator]
            np.testing.assert_allclose(loaded.features[i], expected[0], rtol=1e-4, atol=1e-5)


def test_float16_is_the_rounding_of_float32(
    make_tree: Callable[..., Path], config: ExtractConfig, tmp_path: Path
) -> None:
    root = make_tree()
    run(root, tmp_path / "half", config)
    run(root, tmp_path / "full", replace(config, dtype="float32"))
    half, full = (open_split(tmp_path / name / "train").load() for name in ("half", "full"))
    assert half.features.dtype == np.float16
    np.testing.assert_array_equal(half.features, full.features.astype(np.float16))


@pytest.mark.parametrize("stop_after", [1, 4])
def test_a_resumed_extraction_is_bit_identical_to_an_uninterrupted_one(
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
    with pytest.raises(CacheError, match="its extraction was interrupted"):
        open_split(tmp_path / "resumed" / "train")
    results = run(root, tmp_path / "resumed", config)
    assert results[0].computed_rows == 15 - 6 * ((stop_after - 1) // 2)
    assert files(tmp_path / "resumed") == files(tmp_path / "whole")


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
def test_a_damaged_shard_is_found_and_computed_again(
    make_tree: Callable[..., Path], config: ExtractConfig, tmp_path: Path, damage: str
) -> None:
    root, out = make_tree(), tmp_path / "cache"
    run(root, out, config)
    before, path = files(out), out / "train" / "shard-00001.h5"
    content = bytearray(path.read_bytes())
    if damage == "flip":
        content[len(content) // 2] ^= 255
    path.write_bytes(content[:-100] if damage == "truncate" else content)
    if damage == "remove":
        path.unlink()
    split = open_split(out / "train")
    assert [verify_shard(split, i) is None for i in range(3)] == [True, False, True]
    result = run(root, out, config)[0]
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
        "train/b/3-text.jpg": "not an image of a known format",
    }


def test_a_bad_image_keeps_its_row_and_moves_no_other(
    make_tree: Callable[..., Path], config: ExtractConfig, tmp_path: Path
) -> None:
    root = make_tree()
    reasons = spoil(root)
    wide = replace(config, dtype="float32", shard_rows=7)
    run(root, tmp_path / "spoilt", wide)
    split = open_split(tmp_path / "spoilt" / "train")
    assert split.num_rows == 15 + 9
    assert {entry.path: entry.reason for entry in split.summary.invalid} == reasons
    paths = split.manifest.table["path"].to_list()
    assert [paths[row] for row in np.flatnonzero(~split.valid)] == sorted(reasons)

    for path in reasons:
        (root / path).unlink()
    run(root, tmp_path / "clean", wide)
    clean = open_split(tmp_path / "clean" / "train")
    kept = split.manifest.table["path"].to_numpy()[split.valid]
    assert clean.manifest.table["path"].to_list() == kept.tolist()
    np.testing.assert_array_equal(split.load().labels, clean.load().labels)
    # The batches differ, so the last bits may.
    np.testing.assert_allclose(split.load().features, clean.load().features, atol=1e-5)


def test_an_image_that_is_not_that_of_the_manifest_stops_the_extraction(
    make_tree: Callable[..., Path], config: ExtractConfig, tmp_path: Path
) -> None:
    root = make_tree()
    manifests = {"train": scan("folder", root, "train").manifest}
    path = root / "train" / "c" / "4.png"  # in the last shard
    before = path.stat().st_size
    Image.new("RGB", (40, 36)).save(path)
    text = rf"c/4\.png has {path.stat().st_size} bytes, the manifest says {before:,}"
    with pytest.raises(ManifestError, match=text):
        list(extract(manifests, root, tmp_path / "cache", config))
    assert len(list((tmp_path / "cache").rglob("*.h5"))) == 2


def test_an_image_above_the_limit_is_a_bad_image(
    make_tree: Callable[..., Path], config: ExtractConfig, tmp_path: Path
) -> None:
    root = make_tree()
    Image.new("RGB", (41, 40)).save(root / "train" / "b" / "2.png")
    result = run(root, tmp_path / "cache", replace(config, max_pixels=1600))[0]
    assert [entry.reason for entry in result.split.summary.invalid] == [
        "too large: 41 x 40 pixels, more than the 1,600 of --max-pixels"
    ]
    again = run(root, tmp_path / "cache", replace(config, retry_invalid=True))[0]
    assert (again.computed_rows, again.retried_rows, again.split.num_valid) == (6, 1, 15)


GONE = ["a/1.png", "c/3.png", "c/4.png"]  # in the first and the last of three shards


@pytest.fixture
def interrupted(
    make_tree: Callable[..., Path], config: ExtractConfig, tmp_path: Path
) -> Callable[..., list[SplitResult]]:
    """Extract whole, then with three images missing; return what extracts train again."""
    root = make_tree()
    manifests = {"train": scan("folder", root, "train").manifest}
    list(extract(manifests, root, tmp_path / "whole", config))
    for name in GONE:
        (root / "train" / name).rename(tmp_path / name.replace("/", "-"))

    def again(**changes: Any) -> list[SplitResult]:
        on_progress = changes.pop("on_progress", lambda progress: None)
        changed = replace(config, **changes)
        return list(extract(manifests, root, tmp_path / "cache", changed, on_progress=on_progress))

    assert again()[0].split.num_valid == 12
    for name in GONE:
        (tmp_path / name.replace("/", "-")).rename(root / "train" / name)
    return again


def test_invalid_rows_that_are_read_again_give_an_uninterrupted_extraction(
    interrupted: Callable[..., list[SplitResult]], tmp_path: Path
) -> None:
    (plain,) = interrupted()
    assert (plain.computed_rows, plain.retried_rows, plain.split.num_valid) == (0, None, 12)
    (result,) = interrupted(retry_invalid=True)
    assert (result.computed_rows, result.retried_rows, result.replaced_shards) == (9, 3, ())
    assert result.split.num_valid == 15
    assert files(tmp_path / "cache") == files(tmp_path / "whole")
    assert all(verify_shard(open_split(tmp_path / "cache" / "train"), i) is None for i in range(3))
    (third,) = interrupted(retry_invalid=True)
    assert (third.computed_rows, third.retried_rows) == (0, 0)


@pytest.mark.parametrize("retry", [True, False])
@pytest.mark.parametrize("stop_after", [1, 2, 3])
def test_a_retry_that_is_interrupted_leaves_nothing_that_does_not_verify(
    interrupted: Callable[..., list[SplitResult]], tmp_path: Path, stop_after: int, retry: bool
) -> None:
    calls = 0

    def interrupt(progress: Progress) -> None:
        nonlocal calls
        calls += 1
        if calls == stop_after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted(retry_invalid=True, on_progress=interrupt)
    if stop_after < 3:  # in the two batches of the first shard: it is not replaced yet
        assert open_split(tmp_path / "cache" / "train").num_valid == 12
    else:
        with pytest.raises(CacheError, match="its extraction was interrupted"):
            open_split(tmp_path / "cache" / "train")
    (result,) = interrupted(retry_invalid=retry)
    assert result.replaced_shards == ()
    assert all(verify_shard(result.split, shard) is None for shard in range(3))
    if retry:
        assert files(tmp_path / "cache") == files(tmp_path / "whole")
    else:
        assert result.split.num_valid == (12 if stop_after < 3 else 13)


def test_a_retry_that_cannot_read_the_images_leaves_the_cache_as_it_was(
    interrupted: Callable[..., list[SplitResult]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Path.read_bytes

    def fail(path: Path) -> bytes:
        if path.suffix == ".png":
            raise PermissionError(errno.EACCES, "Permission denied")
        return read(path)

    folder = tmp_path / "cache" / "train"
    before, summary = files(folder), (folder / "cache.json").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", fail)
        with pytest.raises(MachineError, match="no permission to read"):
            interrupted(retry_invalid=True)
    assert (files(folder), (folder / "cache.json").read_bytes()) == (before, summary)
    split = open_split(folder)
    assert split.num_valid == 12
    assert all(verify_shard(split, shard) is None for shard in range(3))


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"transform": "paper"}, "transform"),
        ({"dtype": "float32"}, "dtype"),
        ({"mean": (0.5,)}, "transform"),
        ({"batch_size": 5}, "batch_size"),
        ({"shard_rows": 5}, "shard_rows"),
    ],
)
def test_another_way_to_extract_is_refused_and_the_field_is_named(
    make_tree: Callable[..., Path],
    config: ExtractConfig,
    tmp_path: Path,
    change: dict[str, object],
    field: str,
) -> None:
    root = make_tree()
    run(root, tmp_path / "cache", config)
    before = files(tmp_path / "cache")
    with pytest.raises(CacheError, match=f"{field} = .*this command has {field} = "):
        run(root, tmp_path / "cache", replace(config, **change))  # type: ignore[arg-type]
    assert files(tmp_path / "cache") == before


def test_a_cache_goes_on_with_the_batches_that_it_was_begun_with(
    make_tree: Callable[..., Path], config: ExtractConfig, tmp_path: Path
) -> None:
    root, out = make_tree(), tmp_path / "cache"
    run(root, out, config)
    before = files(out)
    (out / "train" / "shard-00001.h5").unlink()
    (out / "train" / "cache.json").unlink()
    run(root, out, replace(config, batch_size=None))
    assert files(out) == before
    assert read_plan(out / "train").batch_size == config.batch_size == 4


def test_the_head_and_its_accuracy_are_stored(
    make_tree: Callable[..., Path], config: ExtractConfig, tmp_path: Path
) -> None:
    results = run(make_tree(classes="abx"), tmp_path / "cache", config)
    cache = open_cache(tmp_path / "cache")
    assert cache.head is not None
    assert cache.head.class_names == ("a", "b", "c")
    data = cache.split("train").load()
    known = data.labels < 2  # a and b, which are rows 0 and 1 of the head; x is none
    logits = data.features[known].astype(np.float32) @ cache.head.weight.T + cache.head.bias
    correct = int((logits.argmax(axis=1) == data.labels[known]).sum())
    assert (results[0].top1.correct, results[0].top1.total) == (correct, 10)


def test_the_summary_tells_where_the_time_went(
    make_tree: Callable[..., Path], config: ExtractConfig, tmp_path: Path
) -> None:
    seen: list[Progress] = []
    run(make_tree(), tmp_path / "cache", config, seen.append)
    assert [p.rows_done for p in seen if p.split == "train"] == [4, 6, 10, 12, 15]
    facts = json.loads((tmp_path / "cache" / "train" / "cache.json").read_text())["run"]
    assert set(facts["shares"]) == {"read", "decode", "transfer", "forward", "write"}
    assert sum(facts["shares"].values()) == pytest.approx(1)
    assert facts["bound"] in facts["shares"]


def test_blocks_and_load_agree(
    make_tree: Callable[..., Path], config: ExtractConfig, tmp_path: Path
) -> None:
    root = make_tree()
    spoil(root)
    run(root, tmp_path / "cache", config)
    split = open_split(tmp_path / "cache" / "train")
    blocks = list(split.blocks(max_rows=4))
    assert max(len(labels) for _, labels in blocks) <= 4
    np.testing.assert_array_equal(np.concatenate([f for f, _ in blocks]), split.load().features)
    assert split.load().counts().tolist() == [5, 11, 5]


def test_an_absent_cache_and_an_absent_split_are_refused(
    make_tree: Callable[..., Path], config: ExtractConfig, tmp_path: Path
) -> None:
    with pytest.raises(CacheError, match="no feature cache at"):
        open_cache(tmp_path / "absent")
    root = make_tree(val=1)
    shutil.rmtree(root / "val")
    run(root, tmp_path / "cache", config)
    with pytest.raises(CacheError, match="has no split 'val', only train"):
        open_cache(tmp_path / "cache").split("val")
    with pytest.raises(CacheError) as caught:
        open_cache(tmp_path / "cache" / "train")
    assert caught.value.remedy.startswith("Give its parent folder")


def nameless(config: ExtractConfig, folder: Path) -> ExtractConfig:
    assert config.backbone.weights is not None
    save_file(load_file(config.backbone.weights), folder / "nameless.safetensors")
    return replace(
        config, backbone=replace(config.backbone, weights=folder / "nameless.safetensors")
    )


def test_other_names_judge_the_head_again(
    make_tree: Callable[..., Path], config: ExtractConfig, tmp_path: Path
) -> None:
    root, out, plain = make_tree(), tmp_path / "cache", nameless(config, tmp_path)
    run(root, out, replace(plain, head_classes="dataset"))
    strangers = tmp_path / "strangers.txt"
    strangers.write_text("x\ny\nz\n")
    results = run(root, out, replace(plain, head_classes=str(strangers)))
    assert [(r.computed_rows, r.top1.total) for r in results] == [(0, 0), (0, 0)]
    assert results[0].split.summary.head.class_names == str(strangers)


def test_a_split_learns_the_names_that_were_given_for_another(
    make_tree: Callable[..., Path], config: ExtractConfig, tmp_path: Path
) -> None:
    root, out, plain = make_tree(), tmp_path / "cache", nameless(config, tmp_path)
    run(root, out, plain)
    manifests = {"train": scan("folder", root, "train").manifest}
    for _ in extract(manifests, root, out, replace(plain, head_classes="dataset")):
        pass
    train, val = run(root, out, plain)
    assert (train.top1.total, val.computed_rows, val.top1.total) == (15, 0, 6)
    assert val.split.summary.head.class_names == "named by an earlier command"


def test_a_manifest_that_was_exchanged_is_found_and_written_again(
    make_tree: Callable[..., Path], config: ExtractConfig, tmp_path: Path
) -> None:
    root, out = make_tree(), tmp_path / "cache"
    run(root, out, config)
    shutil.copy(out / "val" / "manifest.parquet", out / "train" / "manifest.parquet")
    split = open_split(out / "train")
    assert "is not the manifest that was extracted" in str(verify_shard(split, 0))
    with pytest.raises(CacheError, match="is not the manifest that was extracted"):
        split.load()
    run(root, out, config)
    assert verify_shard(open_split(out / "train"), 0) is None


@pytest.mark.parametrize("change", [{"num_valid": 3}, {"shards": []}])
def test_a_damaged_summary_is_refused_and_mended(
    make_tree: Callable[..., Path],
    config: ExtractConfig,
    tmp_path: Path,
    change: dict[str, object],
) -> None:
    root, out = make_tree(), tmp_path / "cache"
    run(root, out, config)
    path = out / "train" / "cache.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(CacheError, match=r"cache\.json is damaged: it has changed since"):
        open_split(out / "train")
    assert run(root, out, config)[0].computed_rows == 0
    assert open_split(out / "train").num_valid == 15


@pytest.mark.parametrize("finished", [True, False])
def test_a_shard_that_the_storage_does_not_give_is_not_computed_again(
    make_tree: Callable[..., Path],
    config: ExtractConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    finished: bool,
) -> None:
    root, out = make_tree(), tmp_path / "cache"
    run(root, out, config)
    if not finished:
        (out / "train" / "cache.json").unlink()
    before, path, real = files(out), out / "train" / "shard-00001.h5", Path.open

    def opened(self: Path, *arguments: Any, **options: Any) -> Any:
        if self == path:
            raise OSError(errno.EIO, "Input/output error")
        return real(self, *arguments, **options)

    monkeypatch.setattr(Path, "open", opened)
    with pytest.raises(StorageError, match=f"^cannot read {path}: Input/output error$"):
        run(root, out, config)
    monkeypatch.undo()
    assert files(out) == before


def test_storage_that_cannot_lock_serves(
    make_tree: Callable[..., Path],
    config: ExtractConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = make_tree()
    run(root, tmp_path / "locked", config)

    def flock(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    run(root, tmp_path / "cache", config)
    assert files(tmp_path / "cache") == files(tmp_path / "locked")


def without_images(root: Path) -> None:
    for path in root.rglob("*.png"):
        path.unlink()


@pytest.mark.parametrize(
    ("spoil_root", "changes", "kind", "match"),
    [
        (shutil.rmtree, {}, ManifestError, "no folder at"),
        (without_images, {}, ManifestError, r"none of the 6 images from train/a/0\.png on is in"),
        (lambda root: shutil.rmtree(root / "train"), {}, ClinitError, "has vanished"),
        (spoil, {"strict": True}, ImageError, r"1-truncated\.jpg \(row 6\): cannot be decoded"),
    ],
)
def test_images_that_are_not_there_are_refused_and_mark_no_row(
    make_tree: Callable[..., Path],
    config: ExtractConfig,
    tmp_path: Path,
    spoil_root: Callable[[Path], object],
    changes: dict[str, Any],
    kind: type[ClinitError],
    match: str,
) -> None:
    root = make_tree()
    if spoil_root is spoil:
        spoil(root)
    manifests = {"train": scan("folder", root, "train").manifest}
    if spoil_root is not spoil:
        spoil_root(root)
    with pytest.raises(kind, match=match):
        list(extract(manifests, root, tmp_path / "cache", replace(config, **changes)))
    assert not (tmp_path / "cache" / "train" / "cache.json").exists()
    empty = {"train": replace(manifests["train"], table=manifests["train"].table.clear())}
    with pytest.raises(ManifestError, match=r"no folder at|names no image"):
        list(extract(empty, root, tmp_path / "cache", config))


@pytest.mark.parametrize(
    ("file", "match"),
    [
        ("train/cache.json", "belong to different extractions"),
        ("val", "dtype = float16 in train, float32 in val"),
        ("head.safetensors", r"head\.safetensors belongs to another backbone"),
    ],
)
def test_what_is_of_another_extraction_does_not_open_as_one_cache(
    make_tree: Callable[..., Path], config: ExtractConfig, tmp_path: Path, file: str, match: str
) -> None:
    root, out, other = make_tree(train=2, val=1), tmp_path / "cache", tmp_path / "other"
    run(root, out, config)
    run(root, other, replace(config, dtype="float32"))
    if (out / file).is_dir():
        shutil.rmtree(out / file)
    (other / file).replace(out / file)
    with pytest.raises(CacheError, match=match):
        open_cache(out)
