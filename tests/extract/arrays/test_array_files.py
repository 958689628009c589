"""Features and labels of files that others have written, and what is wrong with them."""

from __future__ import annotations

import errno
import json
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch_file
from typer.testing import CliRunner

from clinit.cli.main import app
from clinit.errors import CacheError, StorageError
from clinit.extract.arrays import import_features as module
from clinit.extract.arrays import parquet_files as parquet_module
from clinit.extract.arrays.import_features import ImportConfig, import_features
from clinit.extract.arrays.numpy_files import NpyHeader, open_npy, read_npy_header
from clinit.extract.cache.read import CacheSplit

ROWS, DIM = 23, 5
RNG = np.random.default_rng(0)
FEATURES = RNG.normal(size=(ROWS, DIM)).astype(np.float16)
LABELS = RNG.integers(0, 3, ROWS)
ORDER = np.argsort(LABELS, kind="stable")


def parquet(path: Path, features: np.ndarray, labels: Any, **names: str) -> None:
    pl.DataFrame(
        {names.get("x", "features"): features, names.get("y", "label"): labels}
    ).write_parquet(path, row_group_size=4)


def lists(path: Path, features: np.ndarray, labels: Any, **names: str) -> None:
    columns = {
        names.get("x", "features"): features.tolist(),
        names.get("y", "label"): labels,
    }
    kind = pl.List(pl.Float16 if features.dtype == np.float16 else pl.Float32)
    pl.DataFrame(columns).cast({names.get("x", "features"): kind}).write_parquet(path)


def tensors(features: np.ndarray, labels: Any, **names: str) -> dict[str, np.ndarray]:
    return {names.get("x", "features"): features, names.get("y", "labels"): np.asarray(labels)}


def _savez(save: Any, path: Path, arrays: dict[str, np.ndarray]) -> None:
    save(path, **arrays)


WRITERS: dict[str, tuple[str, Callable[..., None]]] = {
    "npz": (
        "a.npz",
        lambda path, features, labels, **n: _savez(np.savez, path, tensors(features, labels, **n)),
    ),
    "npz, compressed": (
        "a.npz",
        lambda path, features, labels, **n: _savez(
            np.savez_compressed, path, tensors(features, labels, **n)
        ),
    ),
    "safetensors": (
        "a.safetensors",
        lambda path, features, labels, **n: save_file(tensors(features, labels, **n), path),
    ),
    "parquet": ("a.parquet", parquet),
    "parquet, lists": ("a.parquet", lists),
}


def imported(path: Path, labels: Path | None = None, **settings: Any) -> CacheSplit:
    config = ImportConfig(backbone="clip", **settings)
    return import_features(path, labels, path.parent / "cache", config)


def check(split: CacheSplit, features: np.ndarray = FEATURES) -> None:
    found = split.load()
    assert found.features.tobytes() == features[ORDER].tobytes()
    assert found.labels.tolist() == LABELS[ORDER].tolist()


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_features_and_labels_come_back_with_their_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, dtype: str
) -> None:
    monkeypatch.setattr(module, "SHARD_ROWS", 4)
    name, write = WRITERS[kind]
    features = RNG.normal(size=(ROWS, DIM)).astype(dtype)
    write(tmp_path / name, features, LABELS)
    split = imported(tmp_path / name)
    check(split, features)
    assert split.dtype == dtype
    assert not list((tmp_path / "cache").rglob("*.tmp-*"))


@pytest.mark.parametrize("kind", WRITERS)
def test_arrays_of_other_names_are_found_by_option_and_listed_without(
    tmp_path: Path, kind: str
) -> None:
    name, write = WRITERS[kind]
    write(tmp_path / name, FEATURES, LABELS, x="embedding", y="target")
    with pytest.raises(
        CacheError, match="holds no 'features'; it holds embedding, target"
    ) as caught:
        imported(tmp_path / name)
    assert "`--features-name NAME`" in caught.value.remedy
    with pytest.raises(CacheError, match="holds no 'labels' or 'label'; it holds") as caught:
        imported(tmp_path / name, features_name="embedding")
    assert "`--labels-name NAME`" in caught.value.remedy
    with pytest.raises(CacheError, match="holds no 'no'; it holds embedding, target"):
        imported(tmp_path / name, features_name="embedding", labels_name="no")
    check(imported(tmp_path / name, features_name="embedding", labels_name="target"))


@pytest.mark.parametrize("kind", ["npz", "parquet", "parquet, lists"])
def test_labels_of_text_are_class_names(tmp_path: Path, kind: str) -> None:
    name, write = WRITERS[kind]
    write(tmp_path / name, FEATURES, np.array(["ant", "bee", "cat"])[LABELS])
    split = imported(tmp_path / name)
    check(split)
    assert split.class_names == ("ant", "bee", "cat")


def test_a_categorical_column_is_text(tmp_path: Path) -> None:
    words = pl.Series(np.array(["ant", "bee", "cat"])[LABELS]).cast(pl.Categorical())
    parquet(tmp_path / "a.parquet", FEATURES, words)
    assert imported(tmp_path / "a.parquet").class_names == ("ant", "bee", "cat")


def test_labels_may_be_in_a_file_of_their_own(tmp_path: Path) -> None:
    save_file({"features": FEATURES}, tmp_path / "a.safetensors")
    np.save(tmp_path / "y.npy", LABELS)
    split = imported(tmp_path / "a.safetensors", tmp_path / "y.npy")
    check(split)
    run = split.summary.run
    assert run.features is not None
    assert run.labels is not None
    assert (Path(run.features.path).name, run.features.name) == ("a.safetensors", "features")
    assert (Path(run.labels.path).name, run.labels.name) == ("y.npy", None)


def test_bfloat16_is_widened_exactly(tmp_path: Path) -> None:
    values = torch.from_numpy(FEATURES).bfloat16()
    stored = {"features": values, "labels": torch.from_numpy(LABELS)}
    save_torch_file(stored, tmp_path / "a.safetensors")
    check(imported(tmp_path / "a.safetensors"), values.float().numpy())


def test_an_array_alone_needs_labels(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", FEATURES)
    with pytest.raises(CacheError, match="holds one array: the labels of its rows are missing"):
        imported(tmp_path / "a.npy")
    np.save(tmp_path / "y.npy", LABELS)
    with pytest.raises(CacheError, match="holds one array without a name, not 'x'") as caught:
        imported(tmp_path / "a.npy", tmp_path / "y.npy", features_name="x")
    assert caught.value.remedy == "Leave out `--features-name`."
    check(imported(tmp_path / "a.npy", tmp_path / "y.npy"))


def test_class_names_come_from_the_metadata_or_from_the_option(tmp_path: Path) -> None:
    names = ["c", "a", "b", "without a row"]
    path, told = tmp_path / "a.safetensors", {"class_names": json.dumps(names)}
    save_file(tensors(FEATURES, LABELS), path, metadata=told)
    assert imported(path).class_names == tuple(names)
    (tmp_path / "names.txt").write_text("x\ny\nz\n")
    config = ImportConfig(backbone="clip", classes=tmp_path / "names.txt")
    assert import_features(path, None, tmp_path / "o", config).class_names == ("x", "y", "z")


@pytest.mark.parametrize("text", ["a, b", "{}", '["a", "a"]', "[]", "[1]", '["' + "x" * 4097])
def test_class_names_that_are_none_are_refused(tmp_path: Path, text: str) -> None:
    save_file(tensors(FEATURES, LABELS), tmp_path / "a.safetensors", metadata={"class_names": text})
    with pytest.raises(CacheError, match="are no JSON list of different texts") as caught:
        imported(tmp_path / "a.safetensors")
    assert "--classes FILE" in caught.value.remedy


@pytest.mark.parametrize("name", ["a.pt", "a.PTH"])
def test_a_file_of_pytorch_is_refused_and_nothing_of_it_is_run(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"cos\nabort\n(tR.")
    with pytest.raises(CacheError, match=f"{name} is a file of PyTorch") as caught:
        imported(tmp_path / name)
    assert "safetensors" in caught.value.remedy


@pytest.mark.parametrize("kind", WRITERS)
def test_half_of_a_file_is_refused(tmp_path: Path, kind: str) -> None:
    name, write = WRITERS[kind]
    write(tmp_path / name, FEATURES, LABELS)
    whole = (tmp_path / name).read_bytes()
    for size in (0, 10, len(whole) // 2, len(whole) - 1):
        (tmp_path / name).write_bytes(whole[:size])
        with pytest.raises(CacheError, match=f"cannot read .*{name}"):
            imported(tmp_path / name)
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("kind", WRITERS)
def test_arrays_of_another_content_are_refused(tmp_path: Path, kind: str) -> None:
    name, write = WRITERS[kind]
    path = tmp_path / name
    write(path, FEATURES, LABELS - 1)
    with pytest.raises(CacheError, match=r"labels from -1 to|holds labels from -1"):
        imported(path)
    write(path, FEATURES, LABELS)
    with pytest.raises(CacheError, match=r"of shape \(23,\), expected floats \(rows, dim\)"):
        imported(path, features_name="label" if "parquet" in kind else "labels")
    with pytest.raises(CacheError, match="expected integers"):
        imported(path, labels_name="features")


def test_missing_values_and_rows_of_different_lengths_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    whole = FEATURES[:3].astype(np.float32).tolist()
    for rows, message in (
        ([*whole, None], "`features` has missing values"),
        ([*whole, [1.0, None, 1.0, 1.0, 1.0]], "`features` has missing values"),
        ([*whole, [1.0]], "cannot read .* as a table of features"),
    ):
        pl.DataFrame(
            {"features": pl.Series(rows, dtype=pl.List(pl.Float32)), "label": [0, 1, 2, 2]}
        ).write_parquet(path)
        with pytest.raises(CacheError, match=message):
            imported(path)
    table = pl.DataFrame({"features": pl.Series(whole), "label": [0, None, 1]})
    table.write_parquet(path)
    with pytest.raises(CacheError, match="`label` has missing values"):
        imported(path)


def test_an_archive_that_unpacks_to_gigabytes_is_refused_before_it_is_written(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("features.npy", "w") as file:
            header = {"descr": "<f4", "fortran_order": False, "shape": (2**16, 1100)}
            np.lib.format.write_array_header_1_0(file, header)  # type: ignore[arg-type]
            for _ in range(275):
                file.write(bytes(2**20))
        with archive.open("labels.npy", "w") as file:
            np.save(file, np.zeros(2**16, int))
    with pytest.raises(CacheError, match=r"a\.npz .*`features` declares 288,358,400 bytes"):
        imported(path)


def test_columns_stored_one_after_the_other_are_refused_in_an_archive(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", features=np.asfortranarray(FEATURES), labels=LABELS)
    with pytest.raises(CacheError, match="`features` is stored column by column"):
        imported(tmp_path / "a.npz")


def test_an_unknown_suffix_is_refused_with_those_that_are_known(tmp_path: Path) -> None:
    with pytest.raises(CacheError, match=r"suffix '.csv', expected one of \.npy, \.npz, \.parq"):
        imported(tmp_path / "a.csv")
    with pytest.raises(CacheError, match="no file at"):
        imported(tmp_path / "a.npy")


def test_a_killed_import_leaves_no_copy_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SHARD_ROWS", 4)
    parquet(tmp_path / "a.parquet", FEATURES, LABELS)
    leftover = tmp_path / "cache" / "train" / ".features.tmp-0123456789abcdef"
    leftover.parent.mkdir(parents=True)
    leftover.write_bytes(b"half")
    check(imported(tmp_path / "a.parquet"))
    assert not leftover.exists()


def test_the_command_takes_one_file_of_everything(tmp_path: Path) -> None:
    parquet(tmp_path / "a.parquet", FEATURES, LABELS, x="emb")
    words = ["cache", "import", str(tmp_path / "a.parquet"), "--backbone", "clip"]
    words += ["--out", str(tmp_path / "c"), "--features-name", "emb"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.exception
    assert done.stdout.startswith("23 rows of 3 classes, 5 x float16")


EMPTY: dict[str, Callable[[Path], object]] = {
    "a.npz": lambda path: np.savez(path),
    "a.safetensors": lambda path: save_file({}, path),
}


@pytest.mark.parametrize("name", EMPTY)
def test_a_file_without_any_array_is_refused_beside_another(tmp_path: Path, name: str) -> None:
    EMPTY[name](tmp_path / name)
    np.save(tmp_path / "x.npy", FEATURES)
    np.save(tmp_path / "y.npy", LABELS)
    files = ((tmp_path / name, tmp_path / "y.npy"), (tmp_path / "x.npy", tmp_path / name))
    for features, labels in files:
        with pytest.raises(CacheError, match=f"{name} holds no array") as caught:
            imported(features, labels)
        assert "Save the" in caught.value.remedy


@pytest.mark.parametrize("block_bytes", [1, 100, 2**24])
def test_features_of_a_table_are_read_in_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int
) -> None:
    monkeypatch.setattr(parquet_module, "_BLOCK_BYTES", block_bytes)
    parquet(tmp_path / "a.parquet", FEATURES, LABELS)
    check(imported(tmp_path / "a.parquet"))


def npy(shape: object, descr: str = "'<f4'", data: bytes = bytes(64), version: int = 1) -> bytes:
    """A file as numpy writes it, with any header."""
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    length = struct.pack("<H" if version == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes([version, 0]) + length + text + data


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["float16", "float64", ">f4", "int64", "<U3"])
def test_an_array_is_what_numpy_saved(tmp_path: Path, order: str, dtype: str) -> None:
    array = np.arange(12).reshape(4, 3).astype(dtype, order=order)  # type: ignore[call-overload]
    np.save(tmp_path / "a.npy", array)
    assert read_npy_header(tmp_path / "a.npy") == NpyHeader((4, 3), array.dtype)
    for mmap in (True, False):
        np.testing.assert_array_equal(open_npy(tmp_path / "a.npy", mmap=mmap), array)


def test_version_2_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.npy").write_bytes(npy((4, 4), version=2))
    assert read_npy_header(tmp_path / "a.npy").shape == (4, 4)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (npy((2**60, 6)), r"float32 of shape \(1152921504606846976, 6\) takes 27,670,116,110"),
        (npy((17,)), r"float32 of shape \(17,\) takes [0-9]+ bytes, it has [0-9]+$"),
        (npy((-1,)), r"it declares float32 of shape \(-1,\)"),
        (npy((2**62,), "'<U0'"), r"it declares <U0 of shape"),
        (npy((3,), "'|O'"), "it holds Python objects"),
        (npy((3,), "[('a', '|O')]"), "it holds Python objects"),
        (npy("(3,", "'<f4'"), "its header is damaged$"),
        (npy((3,), "'zz'"), "its header is damaged$"),
        (npy("(" * 9000), "its header is damaged$"),
        (npy("-" * 9000 + "1"), "its header is damaged$"),
        (npy((3,), version=3), "its version is 3.0, expected 1.0 or 2.0"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff{}", "its header is 4,294,967,295 bytes long"),
        (b"\x93NUMPY\x01\x00", "its header is damaged$"),
        (b"PK\x03\x04 an archive", "it does not begin as one$"),
        (b"", "it does not begin as one$"),
    ],
)
def test_what_is_no_array_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "a.npy"
    path.write_bytes(content)
    with pytest.raises(
        CacheError, match=rf"^cannot read .*a\.npy as a \.npy file: .*{message}"
    ) as caught:
        read_npy_header(path)
    assert "numpy.save" in caught.value.remedy


LITTLE = """
import resource, sys
from pathlib import Path
from clinit.errors import CacheError
from clinit.extract.arrays.numpy_files import read_npy_header
limit = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize() + 2**26
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
for path in sys.argv[1:]:
    try:
        read_npy_header(Path(path))
    except CacheError:
        print("refused")
"""


def test_nothing_is_reserved_for_what_a_header_declares(tmp_path: Path) -> None:
    (tmp_path / "rows").write_bytes(npy((2**31,)))
    (tmp_path / "header").write_bytes(b"\x93NUMPY\x02\x00\x00\x00\x00\x40{}")
    paths = [tmp_path / "rows", tmp_path / "header"]
    done = subprocess.run([sys.executable, "-c", LITTLE, *paths], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("refused\nrefused\n", "")


def test_an_absent_file_and_one_that_cannot_be_read_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CacheError, match=r"^no file at .*a\.npy$"):
        read_npy_header(tmp_path / "a.npy")

    def refuse(*arguments: object, **options: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    np.save(tmp_path / "a.npy", np.zeros(3))
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(StorageError, match=r"^cannot read .*a\.npy: Input/output error$"):
        read_npy_header(tmp_path / "a.npy")
    monkeypatch.setattr(np, "load", refuse)
    with pytest.raises(StorageError, match=r"^cannot read .*a\.npy: Input/output error$"):
        open_npy(tmp_path / "a.npy", mmap=True)
