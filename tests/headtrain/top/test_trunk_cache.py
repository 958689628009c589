"""The images of a feature cache are found where it says, or asked for."""

import shutil
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from clinit.errors import CacheError
from clinit.extract.cache.fingerprint import Fingerprint
from clinit.extract.work.recorded import reload
from clinit.files.lock import claim_folder
from clinit.headtrain.top.activations import ActivationRows, Trunk
from clinit.headtrain.top.images import Storage
from clinit.headtrain.top.inputs import PoolPart, Side, TrunkCache, open_side
from clinit.headtrain.top.network import cut_network
from clinit.observer import Event, Noted, ignore

Make = Callable[..., TrunkCache]
ROWS = np.array([1, 3, 4, 7, 11])


@pytest.fixture(scope="module")
def side(tiny_run: Path) -> Side:
    return open_side(tiny_run.parent / "caches" / "base", None, option="--base-root")


@pytest.fixture(scope="module")
def part(side: Side) -> PoolPart:
    features = side.source.train.features
    return PoolPart("base train", side.cache.split("train"), side.root, ROWS, features)


@pytest.fixture(scope="module")
def trunk(side: Side) -> Trunk:
    backbone, transform = reload(side.cache.split("train"), device="cpu")
    return Trunk(backbone.config, cut_network(backbone.network, 2), transform)


@pytest.fixture
def make_cache(trunk: Trunk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    # Two rows a shard: more than one is read.
    monkeypatch.setattr("clinit.headtrain.top.inputs.SHARD_BYTES", 1)

    def make(folder: str = "trunk") -> TrunkCache:
        storage = Storage(folder=tmp_path / folder, budget=10**9, workers=1)
        return TrunkCache(storage, trunk, batch_size=2)

    return make


def store(cache: TrunkCache, part: PoolPart) -> np.ndarray:
    """Return the stored activations of all rows of a part."""
    return read(cache.store(part, ignore), part)


def read(rows: ActivationRows, part: PoolPart) -> np.ndarray:
    assert len(rows) == part.split.num_valid
    blocks = list(rows.stream([part.rows[[4, 0]], part.rows[[2]]]))
    assert [len(block) for block in blocks] == [2, 1]
    return np.concatenate([block.numpy() for block in blocks])


def test_rows_in_memory_in_files_and_from_images_are_the_same(
    make_cache: Make, part: PoolPart, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_memory = store(make_cache(), part)
    monkeypatch.setattr("clinit.headtrain.top.inputs.MEMORY_SHARE", 0.0)
    np.testing.assert_array_equal(in_memory, store(make_cache(), part))
    assert in_memory.dtype == np.float16
    np.testing.assert_allclose(
        in_memory.astype(np.float32), read(make_cache().from_images(part), part), atol=1e-3
    )


@pytest.mark.parametrize("factor", [1e6, 1e-9])
def test_activations_that_float16_cannot_hold_are_kept_in_float32(
    make_cache: Make, part: PoolPart, monkeypatch: pytest.MonkeyPatch, factor: float
) -> None:
    plain = store(make_cache(), part).astype(np.float32)
    monkeypatch.setattr("clinit.headtrain.top.inputs.check_images", lambda *_: None)
    run = Trunk.features
    monkeypatch.setattr(Trunk, "features", lambda self, batch: factor * run(self, batch))
    for share in (0.4, 0.0):
        monkeypatch.setattr("clinit.headtrain.top.inputs.MEMORY_SHARE", share)
        found = store(make_cache("other"), part)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found / factor, plain, rtol=2e-3, atol=1e-3)
    computed = read(make_cache().from_images(part), part)
    np.testing.assert_allclose(computed / factor, found / factor, rtol=1e-5, atol=1e-6)


def test_other_images_of_the_same_names_are_refused(
    make_cache: Make, part: PoolPart, tmp_path: Path
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
    make_cache: Make, part: PoolPart, tmp_path: Path
) -> None:
    ignored = shutil.ignore_patterns(".lock")
    cache, events = make_cache(), list[Event]()
    other = ExitStack()
    other.enter_context(claim_folder(cache.path(cache.plan(part))))

    def finish(event: Event) -> None:
        events.append(event)
        store(make_cache("other"), part)
        shutil.copytree(tmp_path / "other", tmp_path / "trunk", dirs_exist_ok=True, ignore=ignored)
        other.close()

    rows = cache.store(part, finish)
    assert len(events) == 1
    assert isinstance(events[0], Noted)
    np.testing.assert_array_equal(read(rows, part), store(cache, part))


def test_another_network_transform_or_cut_is_another_folder(
    make_cache: Make, part: PoolPart, side: Side
) -> None:
    cache = make_cache()
    plan = cache.plan(part)
    backbone, transform = reload(side.cache.split("train"), device="cpu")
    trunk = Trunk(backbone.config, cut_network(backbone.network, 3), transform)
    lower, fewer = replace(cache, trunk=trunk), replace(part, rows=ROWS[:-1])
    below = replace(lower.plan(part), shape=plan.shape, dim=plan.dim)  # as of another ViT block
    folders = {cache.path(plan), lower.path(below), cache.path(cache.plan(fewer))}
    for name in ("weights", "transform", "backbone"):
        other = replace(plan, fingerprint=Fingerprint({**plan.fingerprint.fields, name: "another"}))
        folders.add(cache.path(other))
    assert len(folders) == 6


def test_no_name_of_a_data_set_leads_out_of_the_folder(make_cache: Make, part: PoolPart) -> None:
    cache = make_cache()
    plan = replace(cache.plan(part), dataset="../../a b/Ö")
    assert cache.path(plan) == cache.storage.folder / f"..-..-a-b-Ö-train-{plan.identifier[:16]}"
