"""The images of a feature cache are found where it says, or asked for."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from PIL import Image

from clinit.errors import CacheError, ExperimentError
from clinit.extract.arrays.import_features import ImportConfig, import_features
from clinit.extract.cache.fingerprint import Fingerprint
from clinit.extract.dataset.tar import index_tar
from clinit.files.lock import claim_folder
from clinit.headtrain.top.activations import ActivationRows, ImageRows, StoredRows, Trunk
from clinit.headtrain.top.inputs import open_side, reload_backbone
from clinit.headtrain.top.network import cut_network
from clinit.headtrain.top.trunk_cache import Part, StoredActivations, TrunkCache
from tests.extract.dataset.made import make_tar

ROWS = np.array([1, 3, 4, 7, 11])


@pytest.fixture(scope="module")
def part(tiny_run: Path) -> Part:
    side = open_side(tiny_run.parent / "caches" / "base", None, option="--base-root")
    return Part(
        "base train", side.cache.split("train"), side.root, ROWS, side.source.train.features
    )


@pytest.fixture(scope="module")
def trunk(tiny_run: Path) -> Trunk:
    side = open_side(tiny_run.parent / "caches" / "base", None, option="--base-root")
    backbone, transform = reload_backbone(side, None, "cpu")
    return Trunk(backbone.config, cut_network(backbone.network, 2), transform)


@pytest.fixture
def make_cache(
    trunk: Trunk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., TrunkCache]:
    # Two rows a shard: more than one is read.
    monkeypatch.setattr("clinit.headtrain.top.trunk_cache.SHARD_BYTES", 1)

    def make(folder: str = "trunk", budget: int = 10**9) -> TrunkCache:
        return TrunkCache(tmp_path / folder, trunk, budget=budget, workers=1, batch_size=2)

    return make


def store(cache: TrunkCache, part: Part, on_busy: Callable[[], None] = pytest.fail) -> np.ndarray:
    """Return the stored activations of all rows of a part."""
    return read(paid(cache, part, on_busy).rows, part)


def paid(
    cache: TrunkCache, part: Part, on_busy: Callable[[], None] = pytest.fail
) -> StoredActivations:
    return cache.store(part, on_progress=lambda progress: None, on_busy=on_busy)


def read(rows: ActivationRows, part: Part) -> np.ndarray:
    assert len(rows) == part.split.num_valid
    batches = [part.rows[[4, 0]], part.rows[:0], part.rows[[2]]]
    blocks = list(rows.stream(batches))
    assert [len(block) for block in blocks] == [2, 0, 1]
    return np.concatenate([block.numpy() for block in blocks])


def test_rows_of_images_in_a_tar_file_are_those_of_the_same_files(
    trunk: Trunk, part: Part, tmp_path: Path
) -> None:
    files = part.split.manifest.table
    contents = [(part.root / path).read_bytes() for path in files["path"]]
    names = [f"{row:02}.png" for row in range(len(files))]
    tar = make_tar(tmp_path / "0.tar", list(zip(names, contents, strict=True)))
    contained = index_tar(tar).table.select(
        path=pl.lit("0.tar/") + pl.col("member"),
        label=files["label"],
        class_name=files["class_name"],
        size_bytes="size_bytes",
        container=pl.lit("0.tar"),
        column=pl.lit(""),
        position="position",
        container_bytes=pl.lit(tar.stat().st_size),
    )
    of_files = ImageRows(files, part.root, trunk, workers=1)
    of_tar = ImageRows(contained, tmp_path, trunk, workers=1)
    np.testing.assert_array_equal(read(of_tar, part), read(of_files, part))


def test_rows_in_memory_in_files_and_from_images_are_the_same(
    make_cache: Callable[..., TrunkCache], part: Part, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_memory = store(make_cache(), part)
    monkeypatch.setattr("clinit.headtrain.top.trunk_cache.MEMORY_SHARE", 0.0)
    in_files = store(make_cache(), part)
    np.testing.assert_array_equal(in_memory, in_files)
    assert in_memory.dtype == np.float16
    np.testing.assert_allclose(
        in_memory.astype(np.float32), read(make_cache().from_images(part), part), atol=1e-3
    )


@pytest.mark.parametrize("share", [0.4, 0.0])
def test_rows_for_a_cuda_device_are_written_into_pinned_memory(
    make_cache: Callable[..., TrunkCache],
    part: Part,
    monkeypatch: pytest.MonkeyPatch,
    share: float,
) -> None:
    monkeypatch.setattr("clinit.headtrain.top.trunk_cache.MEMORY_SHARE", share)
    cache = make_cache()
    plain = store(cache, part)
    config = replace(cache.trunk.config, device="cuda:0")
    for_cuda = replace(cache, trunk=replace(cache.trunk, config=config))
    vars(for_cuda.trunk)["shape"] = cache.trunk.shape  # would be asked of the device
    empty: Any = torch.empty
    asked: list[bool] = []

    def unpinned(*size: Any, pin_memory: bool = False, **options: Any) -> Any:
        asked.append(pin_memory)
        return empty(*size, **options)

    opened = for_cuda._open(part, cache.path(cache.plan(part)), computed_here=False)
    monkeypatch.setattr(torch, "empty", unpinned)
    np.testing.assert_array_equal(read(opened.rows, part), plain)
    assert asked == [True] * 3


@pytest.mark.parametrize(("free", "in_memory"), [(10**9, True), (100, False)])
def test_activations_are_held_in_memory_where_the_process_may_take_that_much(
    make_cache: Callable[..., TrunkCache],
    part: Part,
    monkeypatch: pytest.MonkeyPatch,
    free: int,
    in_memory: bool,
) -> None:
    opened: list[bool] = []

    class Spy(StoredRows):
        def __init__(self, *arguments: Any, in_memory: bool, **others: Any) -> None:
            opened.append(in_memory)
            super().__init__(*arguments, in_memory=in_memory, **others)

    monkeypatch.setattr("clinit.headtrain.top.trunk_cache.StoredRows", Spy)
    monkeypatch.setattr("clinit.headtrain.top.trunk_cache.free_memory", lambda: free)
    store(make_cache(), part)
    assert opened == [in_memory]


def test_activations_that_float16_cannot_hold_are_kept_in_float32(
    make_cache: Callable[..., TrunkCache], part: Part, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = store(make_cache(), part).astype(np.float32)
    monkeypatch.setattr("clinit.headtrain.top.trunk_cache.check_images", lambda *_: None)
    run = Trunk.features
    monkeypatch.setattr(Trunk, "features", lambda self, batch: 1e6 * run(self, batch))
    for share in (0.4, 0.0):
        monkeypatch.setattr("clinit.headtrain.top.trunk_cache.MEMORY_SHARE", share)
        large = store(make_cache("large"), part)
        np.testing.assert_allclose(large, 1e6 * plain, rtol=2e-3, atol=1e3)
    np.testing.assert_allclose(
        read(make_cache().from_images(part), part), large, rtol=1e-5, atol=1e-1
    )


def test_activations_that_float16_would_round_to_zeros_are_kept_in_float32(
    make_cache: Callable[..., TrunkCache],
    part: Part,
    trunk: Trunk,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    features = Trunk.features
    monkeypatch.setattr(Trunk, "features", lambda self, batch: 1e-9 * features(self, batch))
    monkeypatch.setattr("clinit.headtrain.top.trunk_cache.check_images", lambda *args: None)
    kept = store(make_cache(), part)
    assert kept.dtype == np.float32
    assert kept.any(axis=(1, 2, 3)).all()
    np.testing.assert_allclose(kept, read(make_cache().from_images(part), part), rtol=1e-3)


def test_other_images_of_the_same_names_are_refused(
    make_cache: Callable[..., TrunkCache], part: Part, tmp_path: Path
) -> None:
    root = tmp_path / "images"
    shutil.copytree(part.root, root)
    path = root / "train" / "a" / "1.png"
    content = path.read_bytes()
    Image.new("RGB", (40, 36)).save(path)
    path.write_bytes(path.read_bytes().ljust(len(content), b"\0"))  # of the size that it had
    cache, elsewhere = make_cache(), replace(part, root=root)
    for read_part in (cache.from_images, lambda part: store(cache, part)):
        with pytest.raises(CacheError, match="images of base train give features that differ from"):
            read_part(elsewhere)
    assert not cache.path(cache.plan(part)).exists()
    path.write_bytes(content)
    cache.from_images(elsewhere)


def test_a_run_waits_for_another_that_computes_the_same_part(
    make_cache: Callable[..., TrunkCache], part: Part, tmp_path: Path
) -> None:
    ignored = shutil.ignore_patterns(".lock")
    cache, told = make_cache(), []
    with ExitStack() as other:
        other.enter_context(claim_folder(cache.path(cache.plan(part))))

        def finish() -> None:
            told.append("busy")
            store(make_cache("other"), part)
            shutil.copytree(
                tmp_path / "other", tmp_path / "trunk", dirs_exist_ok=True, ignore=ignored
            )
            other.close()

        found = paid(cache, part, finish)
        waited = read(found.rows, part)
    assert told == ["busy"]
    assert not found.computed_here
    np.testing.assert_array_equal(waited, store(cache, part))


def test_what_the_activations_took_is_kept_beside_them(
    make_cache: Callable[..., TrunkCache], part: Part
) -> None:
    cache = make_cache()
    first, again = paid(cache, part), paid(cache, part)
    assert first.computed_here
    assert not again.computed_here
    facts = json.loads((cache.path(cache.plan(part)) / "cache.json").read_text())["run"]
    assert first.seconds == again.seconds == pytest.approx(sum(facts["seconds"].values()))
    assert first.seconds is not None
    assert first.seconds > 0


@pytest.mark.parametrize("share", [0.4, 0.0])
def test_a_damaged_shard_is_computed_again(
    make_cache: Callable[..., TrunkCache],
    part: Part,
    monkeypatch: pytest.MonkeyPatch,
    share: float,
) -> None:
    monkeypatch.setattr("clinit.headtrain.top.trunk_cache.MEMORY_SHARE", share)
    cache = make_cache()
    first = store(cache, part)
    shards = sorted(cache.path(cache.plan(part)).glob("shard-*.h5"))
    assert len(shards) == 3
    content = bytearray(shards[1].read_bytes())
    content[content.index(first[2].tobytes())] ^= 1
    shards[1].write_bytes(content)
    draft = shards[1].with_name(".shard-00001.h5.tmp-0123456789abcdef")
    draft.write_bytes(b"of a process that was killed")
    np.testing.assert_array_equal(store(cache, part), first)
    assert not draft.exists()


def test_only_what_is_missing_needs_room(
    make_cache: Callable[..., TrunkCache], part: Part, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = make_cache()
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 10}))
    with pytest.raises(CacheError, match=r"cannot store activations of 0\.00 GB in .*: 0\.00 GB"):
        cache.chosen([part])
    store(cache, part)
    assert cache.chosen([part]) == [True]
    folder = cache.path(cache.plan(part))
    (folder / "cache.json").unlink()  # as after a kill before the last commit
    assert cache.chosen([part]) == [True]
    (folder / "shard-00000.h5").unlink()
    (folder / "shard-00001.h5").unlink()
    (folder / "shard-00002.h5").unlink()
    with pytest.raises(CacheError, match="cannot store"):
        cache.chosen([part])


def test_a_folder_that_cannot_be_made_is_reported(
    make_cache: Callable[..., TrunkCache], part: Part, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(CacheError, match=r"cannot store .*file/trunk: Not a directory") as caught:
        make_cache("file/trunk").chosen([part])
    assert caught.value.remedy.startswith("Give another folder with --trunk-cache")


def test_another_network_transform_or_cut_is_another_folder(
    make_cache: Callable[..., TrunkCache], part: Part, tiny_run: Path
) -> None:
    cache = make_cache()
    plan = cache.plan(part)
    side = open_side(tiny_run.parent / "caches" / "base", None, option="--base-root")
    backbone, transform = reload_backbone(side, None, "cpu")
    lower = replace(
        cache, trunk=Trunk(backbone.config, cut_network(backbone.network, 3), transform)
    )
    fewer = replace(part, rows=ROWS[:-1])
    folders = {cache.path(plan), lower.path(lower.plan(part)), cache.path(cache.plan(fewer))}
    for name in ("weights", "transform", "backbone"):
        other = replace(plan, fingerprint=Fingerprint({**plan.fingerprint.fields, name: "another"}))
        folders.add(cache.path(other))
    assert len(folders) == 6


def test_no_name_of_a_data_set_leads_out_of_the_folder(
    make_cache: Callable[..., TrunkCache], part: Part
) -> None:
    cache = make_cache()
    plan = replace(cache.plan(part), dataset="../../a b/Ö")
    assert cache.path(plan) == cache.folder / f"..-..-a-b-Ö-train-{plan.identifier[:16]}"


def test_a_relative_folder_of_an_earlier_version_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, edit_document: Callable[..., None]
) -> None:
    np.savez(tmp_path / "a.npz", features=np.eye(3, 4, dtype=np.float16), labels=np.arange(3))
    import_features(tmp_path / "a.npz", None, tmp_path / "cache", ImportConfig(backbone="clip"))
    edit_document(tmp_path / "cache" / "train" / "cache.json", run={"root": "images"})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "0").touch()  # the first image by its name
    with pytest.raises(ExperimentError, match="were in images, seen from a folder that") as caught:
        open_side(tmp_path / "cache", None, option="--base-root")
    assert "Say where they are with --base-root, or run the `clinit extract`" in caught.value.remedy
    assert open_side(tmp_path / "cache", tmp_path / "images", option="--base-root")
