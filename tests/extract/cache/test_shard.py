import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from clinit.errors import CacheError, StorageError
from clinit.extract.cache.features import fit_float16
from clinit.extract.cache.fingerprint import Fingerprint
from clinit.extract.cache.plan import Plan
from clinit.extract.cache.shard import Shard, assemble, read_shard, write_shard

PLAN = Plan(
    dataset="made",
    split="train",
    num_rows=17,
    dim=5,
    dtype="float16",
    shard_rows=7,
    batch_size=7,
    fingerprint=Fingerprint({"backbone": "x"}),
)


@pytest.fixture
def path(shard: Shard, tmp_path: Path) -> Path:
    """A shard on disk."""
    write_shard(shard, tmp_path / "a.h5", plan=PLAN, index=0)
    return tmp_path / "a.h5"


@pytest.fixture
def shard() -> Shard:
    features = np.random.default_rng(0).normal(size=(7, 5)).astype(np.float32)
    labels = np.array([0, 0, 1, 1, 2, 2, 2])
    return assemble(features, labels, {2: "the file is empty"}, dtype="float16")


def test_a_shard_survives_the_disk(shard: Shard, path: Path) -> None:
    found = read_shard(path, PLAN, 0)
    assert found.digest() == shard.digest()
    assert found.features.dtype == np.float16
    np.testing.assert_array_equal(found.features, shard.features)
    np.testing.assert_array_equal(found.labels, shard.labels)
    np.testing.assert_array_equal(found.valid, [1, 1, 0, 1, 1, 1, 1])
    assert found.reasons == {2: "the file is empty"}
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_features_that_are_not_finite_make_their_row_invalid(value: float) -> None:
    features = np.ones((3, 2), dtype=np.float32)
    features[1, 0] = value
    shard = assemble(features, np.zeros(3, np.int64), {}, dtype="float16")
    assert shard.reasons == {1: "the features are not finite"}
    np.testing.assert_array_equal(shard.valid, [True, False, True])
    assert np.isfinite(shard.features).all()


def test_an_invalid_row_does_not_choose_the_type() -> None:
    features = np.full((2, 3), 1e-9, dtype=np.float32)
    features[0] = 1
    shard = assemble(features, np.zeros(2, np.int64), {1: "bad"}, dtype="float16")
    assert shard.features.dtype == np.float16


def _fits(features: np.ndarray) -> bool:
    """As the docstring of `fit_float16` says it, row by row."""
    for row in features.reshape(len(features), -1).tolist():
        largest = max(map(abs, row))
        same = [float(np.float16(value)) for value in row] == row if largest < 2**-14 else True
        if largest >= 65_504 or not same:
            return False
    return True


def test_the_rule_is_that_of_a_slow_loop() -> None:
    rng, found = np.random.default_rng(0), []
    for _ in range(300):
        scale = 2.0 ** rng.integers(-30, 18, (4, 1))
        features = (rng.normal(size=(4, 3)) * scale).astype(np.float32)
        features[rng.random(4) < 0.3] = 0
        if rng.random() < 0.3:
            features = np.clip(features, -6e4, 6e4).astype(np.float16).astype(np.float32)
        found.append(fit_float16(features).all())
        assert found[-1] == _fits(features)
    assert 50 < sum(found) < 250


def test_a_shard_of_another_plan_or_place_is_refused(path: Path) -> None:
    with pytest.raises(CacheError, match="belongs to another extraction"):
        read_shard(path, replace(PLAN, batch_size=3), 0)
    with pytest.raises(CacheError, match=r"`features` has shape \(7, 5\), expected \(3, 5\)"):
        read_shard(path, PLAN, 2)


def change(path: Path, edit: Callable[[h5py.File], object]) -> None:
    """Change a shard as somebody would who knows how it is sealed."""
    with h5py.File(path, "r+") as file:
        edit(file)
    seal(path, path.read_bytes())


def seal(path: Path, content: bytes) -> None:
    digest = hashlib.sha256(content[512:]).hexdigest().encode()
    path.write_bytes(b"clinit-shard/2 sha256 " + digest + content[86:])


def replaced(file: h5py.File, name: str, **how: Any) -> None:
    content = file[name][:]
    del file[name]
    file.create_dataset(name, **({"data": content} | how))


def put(name: str, **how: Any) -> Callable[[h5py.File], object]:
    return lambda file: replaced(file, name, **how)


def new(name: str, shape: tuple[int, ...], dtype: Any, **how: Any) -> Callable[[h5py.File], object]:
    return lambda file: replaced(file, name, data=None, shape=shape, dtype=dtype, **how)


def instead(other: Any) -> Callable[[h5py.File], object]:
    """Put something that leads elsewhere in the place of the features."""

    def edit(file: h5py.File) -> None:
        del file["features"]
        if isinstance(other, h5py.VirtualLayout):
            other[:] = h5py.VirtualSource("other.h5", "features", (7, 5))
            file.create_virtual_dataset("features", other)
        else:
            file["features"] = other

    return edit


CHUNKS = {"maxshape": (None, 5), "chunks": (2**28, 5)}


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (put("features", compression="gzip"), "`features` is stored through a filter"),
        (put("labels", fletcher32=True), "`labels` is stored through a filter"),
        (new("features", (2**40, 5), "f2"), r"`features` has shape \(1099511627776, 5\)"),
        (new("features", (7, 5), "f8"), "`features` contains float64, expected float16 or float32"),
        (new("features", (7, 5), h5py.string_dtype()), "`features` contains object, expected"),
        (new("features", (7, 5), "f2", **CHUNKS), "`features` declares 70 bytes in a file of"),
        (new("labels", (7,), "i4"), "`labels` contains int32, expected int64"),
        (new("labels", (7, 1), "i8"), r"`labels` has shape \(7, 1\), expected \(7,\)"),
        (put("labels", data=h5py.Empty("i8")), r"`labels` has shape None, expected \(7,\)"),
        (new("invalid_rows", (2**40,), "i8"), "declares 8,796,093,022,208 bytes in a file of"),
        (put("invalid_reasons", data=np.zeros(1, int)), "`invalid_reasons` contains int64"),
        (put("invalid_rows", data=np.array([3])), "`valid` and `invalid_rows` disagree"),
        (put("invalid_rows", data=np.array([2, 3])), r"has shape \(1,\), expected"),
        (lambda f: (f.move("valid", "v"), f.create_group("valid")), "`valid` is not a data set"),
        (instead(h5py.ExternalLink("other.h5", "/features")), "`features` is a link to"),
        (instead(h5py.SoftLink("/labels")), "`features` is a link to"),
        (instead(h5py.VirtualLayout((7, 5), "f2")), "`features` is stored in other files"),
        (new("features", (7, 5), "f2", external=[("raw", 0, 70)]), "is stored in other files"),
        (lambda f: f.__delitem__("labels"), "."),
        (lambda f: f.attrs.__delitem__("plan"), "."),
    ],
)
def test_what_is_not_stored_as_a_shard_is_not_read(
    path: Path, edit: Callable[[h5py.File], object], message: str
) -> None:
    change(path, edit)
    with pytest.raises(CacheError, match=rf"a\.h5 cannot be read as a shard: .*{message}"):
        read_shard(path, PLAN, 0)


def test_no_flipped_bit_of_a_shard_changes_what_is_read(shard: Shard, path: Path) -> None:
    whole, rng = path.read_bytes(), np.random.default_rng(0)
    refused = 0
    for place in rng.permutation(len(whole))[:600].tolist():
        damaged = bytearray(whole)
        damaged[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        try:
            assert read_shard(path, PLAN, 0).digest() == shard.digest()
        except (CacheError, StorageError):
            refused += 1
    # All but those in the rest of the user block, which mean nothing.
    assert refused > 500
