"""Features and labels of files that others have written, and what is wrong with them."""

import json
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch_file

from clinit.errors import CacheError
from clinit.extract.cache.read import CacheSplit
from clinit.extract.work import import_features as module
from clinit.extract.work.import_features import import_features
from clinit.extract.work.options import ImportConfig
from clinit.files.arrays import open_arrays

ROWS, DIM = 23, 5
RNG = np.random.default_rng(0)
FEATURES = RNG.normal(size=(ROWS, DIM)).astype(np.float16)
LABELS = RNG.integers(0, 3, ROWS)
ORDER = np.argsort(LABELS, kind="stable")


def npz(path: Path, **arrays: Any) -> None:
    columns: dict[str, Any] = {name: np.asfortranarray(each) for name, each in arrays.items()}
    np.savez(path, **columns)


def tensors(path: Path, **arrays: Any) -> None:
    save_file({name: np.asarray(array) for name, array in arrays.items()}, path)


Writer = Callable[..., None]
KINDS = pytest.mark.parametrize(
    ("name", "write"), [("a.npz", npz), ("b.npz", np.savez_compressed), ("a.safetensors", tensors)]
)


def imported(path: Path, labels: Path | None = None, **settings: Any) -> CacheSplit:
    config = ImportConfig(backbone="clip", **settings)
    return import_features(path, labels, path.parent / "cache", config)


def check(split: CacheSplit, features: np.ndarray = FEATURES) -> None:
    found = split.load()
    assert found.features.tobytes() == features[ORDER].tobytes()
    assert found.labels.tolist() == LABELS[ORDER].tolist()


@KINDS
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_features_and_labels_come_back_with_their_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, write: Writer, dtype: str
) -> None:
    monkeypatch.setattr(module, "SHARD_ROWS", 4)
    features = np.random.default_rng(1).normal(size=(ROWS, DIM)).astype(dtype)
    write(tmp_path / name, features=features, labels=LABELS)
    leftover = tmp_path / "cache" / "train" / ".features.tmp-0123456789abcdef"
    leftover.parent.mkdir(parents=True)
    leftover.write_bytes(b"half")  # of a killed import
    split = imported(tmp_path / name)
    check(split, features)
    assert (split.dtype, split.class_names) == (dtype, ("0", "1", "2"))
    assert split.manifest.table["path"].to_list() == [f"{row:02d}" for row in ORDER]
    assert not list((tmp_path / "cache").rglob("*.tmp-*"))


@KINDS
def test_arrays_of_other_names_are_found_by_option_and_listed_without(
    tmp_path: Path, name: str, write: Writer
) -> None:
    write(tmp_path / name, embedding=FEATURES, target=LABELS)
    named: dict[str, Any] = {"features_name": "embedding"}
    for settings, wanted, option in (
        ({}, "'features'", "--features-name"),
        (named, "'labels' or 'label'", "--labels-name"),
        ({**named, "labels_name": "no"}, "'no'", "--labels-name"),
    ):
        text = f"contains no {wanted}; it contains embedding, target"
        with pytest.raises(CacheError, match=text) as caught:
            imported(tmp_path / name, **settings)
        assert option in caught.value.remedy
    check(imported(tmp_path / name, **named, labels_name="target"))


def test_labels_may_be_in_a_file_of_their_own(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", FEATURES)
    np.save(tmp_path / "y.npy", LABELS)
    tensors(tmp_path / "a.safetensors", features=FEATURES)
    with pytest.raises(CacheError, match="only one array: the labels of its rows are missing"):
        imported(tmp_path / "a.npy")
    with pytest.raises(CacheError, match="contains no 'x'; it contains one array"):
        imported(tmp_path / "a.npy", tmp_path / "y.npy", features_name="x")
    npz(tmp_path / "a.npz")
    with pytest.raises(CacheError, match="it contains no array"):
        imported(tmp_path / "a.npz")
    split = imported(tmp_path / "a.safetensors", tmp_path / "y.npy")
    check(split)
    run = split.summary.run
    assert (Path(run.features.path).name, run.features.name) == ("a.safetensors", "features")
    assert (Path(run.labels.path).name, run.labels.name) == ("y.npy", None)


def test_class_names_come_from_the_metadata_or_from_the_option(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    arrays: dict[str, np.ndarray] = {"features": FEATURES, "labels": LABELS}
    for text in ("a, b", "{}", '["a", "a"]', "[]", "[1]", '["' + "x" * 4097):
        save_file(arrays, path, metadata={"class_names": text})
        with pytest.raises(CacheError, match="is not a JSON list of different texts") as caught:
            imported(path)
        assert "--classes FILE" in caught.value.remedy
    names = ["c", "a", "b", "without a row"]
    save_file(arrays, path, metadata={"class_names": json.dumps(names)})
    assert imported(path).class_names == tuple(names)
    (tmp_path / "names.txt").write_text("x\ny\nz\n")
    config = ImportConfig(backbone="clip", classes=tmp_path / "names.txt")
    assert import_features(path, None, tmp_path / "o", config).class_names == ("x", "y", "z")


@pytest.mark.parametrize("name", ["a.pt", "a.PTH", "a.csv"])
def test_an_unknown_suffix_is_refused_and_nothing_of_the_file_is_run(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / name).write_bytes(b"cos\nabort\n(tR.")
    with pytest.raises(CacheError, match=rf"suffix '{name[1:]}', expected one of \.npy, \.npz"):
        imported(tmp_path / name)
    with pytest.raises(CacheError, match="no file at"):
        imported(tmp_path / "a.npy")


def test_other_types_of_numbers_and_labels_are_taken(tmp_path: Path) -> None:
    values = torch.from_numpy(FEATURES).bfloat16()
    stored = {"features": values, "labels": torch.from_numpy(LABELS)}
    save_torch_file(stored, tmp_path / "a.safetensors")
    check(imported(tmp_path / "a.safetensors"), values.float().numpy())
    npz(tmp_path / "a.npz", features=FEATURES, labels=np.array(["ant", "bee", "cat"])[LABELS])
    split = import_features(tmp_path / "a.npz", None, tmp_path / "c", ImportConfig(backbone="clip"))
    check(split)
    assert split.class_names == ("ant", "bee", "cat")


@KINDS
def test_half_of_a_file_is_refused(tmp_path: Path, name: str, write: Writer) -> None:
    write(tmp_path / name, features=FEATURES, labels=LABELS)
    whole = (tmp_path / name).read_bytes()
    for size in (0, 10, len(whole) // 2, len(whole) - 1):
        (tmp_path / name).write_bytes(whole[:size])
        with pytest.raises(CacheError, match=f"cannot read .*{name}"):
            imported(tmp_path / name)
    assert not (tmp_path / "cache").exists()


def npy(shape: object, descr: str = "'<f4'", data: bytes = bytes(64), version: int = 1) -> bytes:
    """A file as numpy writes it, with any header."""
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    length = struct.pack("<H" if version == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes([version, 0]) + length + text + data


@pytest.mark.parametrize(
    "content",
    [
        npy((2**60, 6)),
        npy((17,)),
        npy((-1,)),
        npy((2**62,), "'<U0'"),
        npy((3,), "'|O'"),
        npy((3,), "[('a', '|O')]"),
        npy("(3,", "'<f4'"),
        npy((3,), "'zz'"),
        npy("(" * 9000),
        npy("-" * 9000 + "1"),
        b"\x93NUMPY\x02\x00\xff\xff\xff\xff{}",
        b"\x93NUMPY\x01\x00",
        b"PK\x03\x04 an archive",
        b"",
    ],
)
def test_what_is_no_array_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.npy").write_bytes(content)
    with pytest.raises(CacheError, match=r"a\.npy") as caught:
        open_arrays(tmp_path / "a.npy").labels("")
    assert "array" in caught.value.remedy or "label" in caught.value.remedy
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("features.npy", content)
        archive.writestr("labels.npy", npy((3,), "'<i8'", bytes(24)))
    with pytest.raises(CacheError, match=r"a\.npz"):
        imported(tmp_path / "a.npz")
