import errno
import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from clinit.errors import ManifestError, StorageError
from clinit.extract.dataset import parquet
from clinit.extract.dataset.manifest import (
    CONTAINED_SCHEMA,
    SCHEMA,
    Manifest,
    read_manifest,
    write_manifest,
)
from clinit.files.documents import content_sha256

NAMES = ("ant", "bee", "cat")
ROWS = [
    ("train/ant/1.png", 0, "ant", 10),
    ("train/ant/2.png", 0, "ant", 20),
    ("train/ant/3.png", 0, "ant", 0),
    ("train/cat/É[1].png", 2, "cat", 40),
]


def table(rows: list[tuple[str, int, str, int]]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def make(rows: list[tuple[str, int, str, int]] = ROWS) -> Manifest:
    return Manifest("folder", "train", NAMES, table(rows))


CONTAINED = [
    ("train/0.tar/b.jpg", 1, "bee", 10, "train/0.tar", "", 512, 20480),
    ("train/0.tar/É.jpg", 0, "ant", 0, "train/0.tar", "", 2048, 20480),
    ("train/1.parquet/0", 2, "cat", 0, "train/1.parquet", "image", 0, 700),
    ("train/1.parquet/4", 0, "ant", 0, "train/1.parquet", "image", 4, 700),
]
Contained = tuple[str, int, str, int, str, str, int, int]


def in_containers(rows: list[Contained] = CONTAINED) -> Manifest:
    table = pl.DataFrame(rows, schema=CONTAINED_SCHEMA, orient="row")
    return Manifest("webdataset", "train", NAMES, table)


def naive_digest(manifest: Manifest) -> str:
    """The digest, as the docstring words it, one row after the other."""
    names = json.dumps(list(manifest.class_names), ensure_ascii=False).encode()
    rows = list(manifest.table.iter_rows())
    paths = b"\0".join(path.encode() for path, *_ in rows)
    labels = b"".join(label.to_bytes(8, "little") for _, label, _, _ in rows)
    sizes = b"".join(size.to_bytes(8, "little") for *_, size in rows)
    parts = (names, paths, labels, sizes)
    return hashlib.sha256(b"".join(len(p).to_bytes(8, "little") + p for p in parts)).hexdigest()


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "a [b]*" / "manifest.parquet"
    write_manifest(make(), path)
    manifest = read_manifest(path)
    assert manifest.table.equals(make().table)
    assert manifest.table.schema == SCHEMA
    assert (manifest.dataset, manifest.split) == ("folder", "train")
    assert manifest.class_names == NAMES
    assert manifest.digest == make().digest


def test_the_digest_agrees_with_a_naive_one() -> None:
    assert make().digest == naive_digest(make())


def test_the_digest_of_files_is_that_of_earlier_versions() -> None:
    digest = "0cd5c6af4000362fbb6dc5cb744cf4d3f93dc930f605b023c48b5652a311d5d3"
    assert make().digest == digest


def test_the_digest_of_containers_agrees_with_a_naive_one() -> None:
    manifest = in_containers()
    places = [
        json.dumps(
            [["train/0.tar", "", 20480, 2], ["train/1.parquet", "image", 700, 2]],
            ensure_ascii=False,
        ).encode(),
        b"".join(position.to_bytes(8, "little") for *_, position, _ in CONTAINED),
    ]
    parts = [
        json.dumps(list(NAMES), ensure_ascii=False).encode(),
        b"\0".join(path.encode() for path, *_ in CONTAINED),
        b"".join(label.to_bytes(8, "little") for _, label, *_ in CONTAINED),
        b"".join(size.to_bytes(8, "little") for _, _, _, size, *_ in CONTAINED),
        *places,
    ]
    joined = b"".join(len(part).to_bytes(8, "little") + part for part in parts)
    assert manifest.digest == hashlib.sha256(joined).hexdigest()


def test_a_manifest_of_containers_is_read_again(tmp_path: Path) -> None:
    write_manifest(in_containers(), tmp_path / "m.parquet")
    manifest = read_manifest(tmp_path / "m.parquet")
    assert manifest.table.equals(in_containers().table)
    assert manifest.digest == in_containers().digest
    assert pl.read_parquet_metadata(tmp_path / "m.parquet")["format"] == "clinit-manifest/3"
    assert [manifest.file_of(row) for row in (0, 3)] == ["train/0.tar", "train/1.parquet"]
    assert make().file_of(0) == "train/ant/1.png"
    assert manifest.containers().rows() == [
        ("train/0.tar", "", 20480, 2),
        ("train/1.parquet", "image", 700, 2),
    ]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"container": "train/2.tar"}, "'train/0.tar/b.jpg' is not in its container"),
        ({"container": ""}, "is not in its container"),
        ({"path": "train/0.tar/../../b.jpg"}, "leaves the root"),
        ({"path": "/train/0.tar/b.jpg"}, "leaves the root"),
        ({"path": "train/0.tar/É.jpg"}, "a path occurs twice"),
        ({"position": -1}, "a position or the size of a container is negative"),
        ({"container_bytes": -1}, "a position or the size of a container is negative"),
        ({"container_bytes": 9}, "a container has two sizes or two columns"),
        ({"column": "image"}, "a container has two sizes or two columns"),
        ({"position": 2048}, r"not sorted by \(container, position\)"),
        ({"position": 4096}, r"not sorted by \(container, position\)"),
        ({"container": None}, "missing values"),
    ],
)
def test_a_table_of_places_that_are_none_is_refused(
    change: dict[str, object], problem: str
) -> None:
    first = dict(zip(CONTAINED_SCHEMA, CONTAINED[0], strict=True)) | change
    with pytest.raises(ValueError, match=problem):
        in_containers([tuple(first.values()), *CONTAINED[1:]])  # type: ignore[list-item]


def test_the_format_says_whether_images_lie_in_containers(tmp_path: Path) -> None:
    for manifest, other in ((make(), "clinit-manifest/3"), (in_containers(), "clinit-manifest/2")):
        path = tmp_path / "m.parquet"
        write_manifest(manifest, path)
        known = pl.read_parquet_metadata(path) | {"format": other}
        known["sha256"] = content_sha256(
            {n: known[n] for n in ("format", "dataset", "split", "class_names", "digest")}
        )
        known.pop("ARROW:schema")
        pl.read_parquet(path).write_parquet(path, metadata=known)
        with pytest.raises(ManifestError, match="is not a valid manifest: the columns are"):
            read_manifest(path)


def test_the_digest_does_not_depend_on_the_names_of_data_set_and_split() -> None:
    assert Manifest("other", "val", NAMES, make().table).digest == make().digest


def test_limiting_keeps_the_first_images_of_each_class() -> None:
    limited = make().limit_per_class(2)
    assert limited.table.rows() == [ROWS[0], ROWS[1], ROWS[3]]
    assert limited.class_names == NAMES
    assert make().limit_per_class(3).digest == make().digest


def test_a_limit_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 image per class, got 0"):
        make().limit_per_class(0)


def test_class_counts_name_classes_without_images() -> None:
    assert make().class_counts().rows() == [(0, "ant", 3), (1, "bee", 0), (2, "cat", 1)]


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([ROWS[1], ROWS[0]], r"not sorted by \(label, path\)"),
        ([ROWS[3], ROWS[0]], r"not sorted by \(label, path\)"),
        ([ROWS[0], ROWS[0]], r"not sorted by \(label, path\)"),
        ([ROWS[0], ("train/ant/1.png", 2, "cat", 10)], "a path occurs twice"),
        ([("a.png", 3, "dog", 1)], r"labels must lie in \[0, 3\)"),
        ([("a.png", -1, "dog", 1)], r"labels must lie in \[0, 3\)"),
        ([("a.png", 1, "cat", 1)], "class_name and label disagree"),
        ([("a.png", 1, "bee", -1)], "a size is negative"),
        ([("a.png", 1, None, 1)], "missing values"),
    ],
)
def test_a_table_that_is_no_manifest_is_refused(
    rows: list[tuple[str, int, str, int]], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        make(rows)


def test_two_classes_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two classes have the same name"):
        Manifest("folder", "train", ("ant", "ant", "cat"), make().table)


def tamper(path: Path, change: Callable[[pl.DataFrame], pl.DataFrame], **metadata: str) -> None:
    known = pl.read_parquet_metadata(path)
    known.pop("ARROW:schema")
    change(pl.read_parquet(path)).write_parquet(path, metadata=known | metadata)


def as_of_version_1(path: Path, **metadata: str) -> None:
    known = pl.read_parquet_metadata(path)
    del known["ARROW:schema"], known["sha256"]
    known |= {"format": "clinit-manifest/1"} | metadata
    pl.read_parquet(path).write_parquet(path, metadata=known)


@pytest.mark.parametrize(
    "bad",
    ["/etc/passwd", "../x.png", "a/../../x.png", "a/..", "..", "C:\\x.png", "a\\..\\..\\x", ""],
)
def test_a_path_that_leaves_the_root_is_refused(tmp_path: Path, bad: str) -> None:
    path = tmp_path / "m.parquet"
    write_manifest(make(), path)
    tamper(path, lambda _: table([(bad, 0, "ant", 1)]))
    with pytest.raises(ManifestError, match="leaves the root"):
        read_manifest(path)


@pytest.mark.parametrize("fine", ["a/..b.png", "a../b.png", "...", "a b/ü.png"])
def test_dots_inside_of_names_are_allowed(fine: str) -> None:
    assert make([(fine, 0, "ant", 1)]).table["path"].to_list() == [fine]


def test_a_changed_table_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.parquet"
    write_manifest(make(), path)
    tamper(path, lambda old: old.with_columns(size_bytes=pl.col("size_bytes") + 1))
    with pytest.raises(ManifestError, match="was changed after it was written: its digest is"):
        read_manifest(path)


@pytest.mark.parametrize(
    "names",
    ["ant", '"ant"', "{}", "[1]", '["a", null]', "[" * 5000, '["\\ud800"]', f'["{"a" * 4097}"]'],
)
def test_class_names_that_are_no_list_of_names_are_refused(tmp_path: Path, names: str) -> None:
    path = tmp_path / "m.parquet"
    write_manifest(make(), path)
    as_of_version_1(path, class_names=names)
    with pytest.raises(ManifestError, match="is not a valid manifest"):
        read_manifest(path)


def test_a_manifest_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    path = tmp_path / "m.parquet"
    write_manifest(make(), path)
    as_of_version_1(path)
    assert read_manifest(path).digest == make().digest


@pytest.mark.parametrize("name", ["dataset", "split", "format"])
def test_no_name_in_the_metadata_can_be_exchanged(tmp_path: Path, name: str) -> None:
    path = tmp_path / "m.parquet"
    write_manifest(make(), path)
    other = {"dataset": "golder", "split": "val", "format": "clinit-manifest/1"}
    tamper(path, lambda old: old, **{name: other[name]})
    with pytest.raises(ManifestError, match=r"the metadata of .* were changed after it"):
        read_manifest(path)


def test_a_manifest_that_declares_more_than_it_holds_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*arguments: object) -> None:
        raise AssertionError("polars must not see it")

    path = tmp_path / "m.parquet"
    write_manifest(make(), path)
    monkeypatch.setattr(pl, "read_parquet_metadata", read)
    monkeypatch.setattr(parquet, "_FREE_ROWS", 3)
    monkeypatch.setattr(parquet, "_ROWS_PER_BYTE", 0)
    with pytest.raises(ManifestError, match=r"it declares 4 rows in [0-9,]+ bytes"):
        read_manifest(path)


def test_a_manifest_that_cannot_be_read_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    path = tmp_path / "m.parquet"
    write_manifest(make(), path)
    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(StorageError, match=f"^cannot read {path}: Input/output error$") as caught:
        read_manifest(path)
    assert "disk" in caught.value.remedy


FULL_DISK = """
import resource, sys
from pathlib import Path
from clinit.errors import ClinitError
from clinit.extract.dataset.manifest import read_manifest, write_manifest
manifest = read_manifest(Path(sys.argv[1]))
sys.dont_write_bytecode = True  # a bytecode file that is cut short breaks every later import
resource.setrlimit(resource.RLIMIT_FSIZE, (512, 512))  # no file grows beyond 512 bytes
try:
    write_manifest(manifest, Path(sys.argv[2]))
except ClinitError as error:
    print(error, "|", error.remedy)
"""


def test_a_full_disk_leaves_the_manifest_that_was_there(tmp_path: Path) -> None:
    path = tmp_path / "m.parquet"
    write_manifest(make(), path)
    before = path.read_bytes()
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, path, path], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(f"cannot write {path}: File too large | Free space")
    assert (done.stderr, path.read_bytes()) == ("", before)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("seed", range(2))
def test_no_damage_to_a_manifest_is_read_as_another_one(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "m.parquet"
    write_manifest(make(), path)
    whole, rng = path.read_bytes(), np.random.default_rng(seed)
    refused = 0
    for _ in range(60):
        damaged = bytearray(whole)
        damaged[int(rng.integers(len(whole)))] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        try:
            found = read_manifest(path)
        except ManifestError:
            refused += 1
            continue
        assert found.table.equals(make().table)
        assert (found.dataset, found.split, found.class_names) == ("folder", "train", NAMES)
    assert refused > 20


def test_any_other_parquet_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.parquet"
    make().table.write_parquet(path)
    with pytest.raises(ManifestError, match="its format is 'not given'") as refusal:
        read_manifest(path)
    assert "clinit manifest build" in refusal.value.remedy


@pytest.mark.parametrize("content", [b"", b"PAR1", b"path,label\na,1\n"])
def test_a_file_that_is_not_parquet_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.parquet"
    path.write_bytes(content)
    with pytest.raises(ManifestError, match="cannot be read as a Parquet file"):
        read_manifest(path)


def test_an_absent_manifest_is_reported_with_the_command_that_writes_it(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="no manifest file at") as refusal:
        read_manifest(tmp_path / "m.parquet")
    assert "clinit manifest build" in refusal.value.remedy


def test_a_split_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"the split is '\.\./out', expected train or val"):
        Manifest("folder", "../out", NAMES, table(ROWS))
