import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from clinit.errors import ManifestError
from clinit.extract.dataset.manifest import (
    CONTAINED_SCHEMA,
    SCHEMA,
    Manifest,
    read_manifest,
    write_manifest,
)
from clinit.files.documents import content_sha256

NAMES = ("ant", "bee", "cat")
Row = tuple[str | int | None, ...]
ROWS: list[Row] = [
    ("train/ant/1.png", 0, "ant", 10),
    ("train/ant/2.png", 0, "ant", 20),
    ("train/ant/3.png", 0, "ant", 0),
    ("train/cat/É[1].png", 2, "cat", 40),
]
CONTAINED: list[Row] = [
    ("train/0.tar/b.jpg", 1, "bee", 10, "train/0.tar", "", 512, 20480),
    ("train/0.tar/É.jpg", 0, "ant", 0, "train/0.tar", "", 2048, 20480),
    ("train/1.parquet/0", 2, "cat", 0, "train/1.parquet", "image", 0, 700),
    ("train/1.parquet/4", 0, "ant", 0, "train/1.parquet", "image", 4, 700),
]


def make(rows: list[Row] = ROWS) -> Manifest:
    return Manifest("folder", "train", NAMES, pl.DataFrame(rows, schema=SCHEMA, orient="row"))


def in_containers(rows: list[Row] = CONTAINED) -> Manifest:
    table = pl.DataFrame(rows, schema=CONTAINED_SCHEMA, orient="row")
    return Manifest("webdataset", "train", NAMES, table)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_manifest(make(), tmp_path / "m.parquet")
    return tmp_path / "m.parquet"


def naive_digest(manifest: Manifest) -> str:
    """The digest, as the docstring words it, one row after the other."""
    rows = list(manifest.table.iter_rows())
    parts = [
        json.dumps(list(manifest.class_names), ensure_ascii=False).encode(),
        b"\0".join(row[0].encode() for row in rows),
        b"".join(row[1].to_bytes(8, "little") for row in rows),
        b"".join(row[3].to_bytes(8, "little") for row in rows),
    ]
    if len(rows[0]) > 4:
        containers = dict.fromkeys((row[4], row[5], row[7]) for row in rows)
        counts = [[*each, sum(row[4] == each[0] for row in rows)] for each in containers]
        parts.append(json.dumps(counts, ensure_ascii=False).encode())
        parts.append(b"".join(row[6].to_bytes(8, "little") for row in rows))
    return hashlib.sha256(b"".join(len(p).to_bytes(8, "little") + p for p in parts)).hexdigest()


@pytest.mark.parametrize("manifest", [make(), in_containers()], ids=["files", "containers"])
def test_what_is_written_is_read_again(tmp_path: Path, manifest: Manifest) -> None:
    path, again = tmp_path / "a [b]*" / "manifest.parquet", tmp_path / "again.parquet"
    write_manifest(manifest, path)
    found = read_manifest(path)
    assert found.table.equals(manifest.table)
    assert found.table.schema == manifest.table.schema
    assert (found.dataset, found.split) == (manifest.dataset, manifest.split)
    assert found.class_names == NAMES
    assert found.digest == manifest.digest == naive_digest(manifest)
    write_manifest(found, again)
    assert again.read_bytes() == path.read_bytes()  # equal manifests give equal bytes


def test_the_digest_depends_on_content_and_order_alone() -> None:
    last = ("train/cat/É[1].png", 2, "cat", 41)
    others = [
        make([*ROWS[:3], last]),
        make(ROWS[:3]),
        make([*ROWS[:3], ("x.png", 2, "cat", 40)]),
        replace(make(), class_names=(*NAMES, "dog")),
    ]
    shifted = [*CONTAINED[:1], (*CONTAINED[1][:6], 4096, 20480), *CONTAINED[2:]]
    larger = [*CONTAINED[:2], *((*row[:7], 701) for row in CONTAINED[2:])]
    contained = [in_containers(), in_containers(shifted), in_containers(larger)]
    digests = {each.digest for each in (make(), *others, *contained)}
    assert len(digests) == 1 + len(others) + len(contained)
    assert replace(make(), dataset="other", split="val").digest == make().digest


def test_parts_of_a_manifest_are_counted() -> None:
    limited = make().limit_per_class(2)
    assert limited.table.rows() == [ROWS[0], ROWS[1], ROWS[3]]
    assert limited.class_names == NAMES
    assert make().empty_classes == ["bee"]
    contained = in_containers()
    files = [make().file_of(0), contained.file_of(0), contained.file_of(3)]
    assert files == ["train/ant/1.png", "train/0.tar", "train/1.parquet"]
    containers = [("train/0.tar", "", 20480, 2), ("train/1.parquet", "image", 700, 2)]
    assert contained.containers().rows() == containers


def changed(**values: object) -> list[Row]:
    """Return rows in containers, of which the first has other values."""
    first = dict(zip(CONTAINED_SCHEMA, CONTAINED[0], strict=True)) | values
    return [tuple(first.values()), *CONTAINED[1:]]  # type: ignore[arg-type]


LEAVING = ("/etc/passwd", "../x", "a/../../x", "a/..", "C:\\x", "a\\..\\..\\x", "")


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
        ([("a.png", 1, None, 1)], "missing values"),
        *(([(bad, 0, "ant", 1)], "leaves the root") for bad in LEAVING),
        (changed(container="train/2.tar"), "'train/0.tar/b.jpg': is not in its container"),
        (changed(container=""), "is not in its container"),
        (changed(path="train/0.tar/../../b.jpg"), "leaves the root"),
        (changed(path="train/0.tar/É.jpg"), "a path occurs twice"),
        (changed(position=2048), r"not sorted by \(container, position\)"),
        (changed(position=4096), r"not sorted by \(container, position\)"),
        (changed(container=None), "missing values"),
    ],
)
def test_a_table_that_is_no_manifest_is_refused(rows: list[Row], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        (make if len(rows[0]) == 4 else in_containers)(rows)


def tamper(path: Path, change: Callable[[pl.DataFrame], pl.DataFrame], **metadata: str) -> None:
    """Change table and metadata; `sha256=""` seals them again, of version 1 none stays."""
    known = pl.read_parquet_metadata(path) | metadata
    del known["ARROW:schema"]
    if metadata.get("sha256") == "":
        sealed = ("format", "dataset", "split", "class_names", "digest")
        known["sha256"] = content_sha256({name: known[name] for name in sealed})
    if known["format"] == "clinit-manifest/1" and "sha256" not in metadata:
        del known["sha256"]
    change(pl.read_parquet(path)).write_parquet(path, metadata=known)


def same(table: pl.DataFrame) -> pl.DataFrame:
    return table


def outside(table: pl.DataFrame) -> pl.DataFrame:
    return table.with_columns(path=pl.lit("../x.png")).head(1)


V1 = {"format": "clinit-manifest/1"}


@pytest.mark.parametrize(
    ("change", "metadata", "fact"),
    [
        (lambda old: old.with_columns(pl.col("size_bytes") + 1), {}, "its digest is"),
        (outside, {}, "leaves the root"),
        (same, {"dataset": "golder"}, "metadata were changed"),
        (same, {"split": "val"}, "metadata were changed"),
        (same, {**V1, "sha256": "x"}, "metadata were changed"),
        (same, {"format": "clinit-manifest/4", "sha256": ""}, "clinit-manifest/4"),
        (same, {"format": "clinit-manifest/3", "sha256": ""}, "the columns are"),
        *(
            (same, {**V1, "class_names": names}, "cannot be read as a manifest")
            for names in ("ant", '"ant"', "{}", "[1]", '["a", null]', "[" * 5000, '["\\ud800"]')
        ),
        (same, {**V1, "class_names": f'["{"a" * 4097}"]'}, "cannot be read as a manifest"),
    ],
)
def test_a_changed_manifest_is_refused(
    path: Path, change: Callable[[pl.DataFrame], pl.DataFrame], metadata: dict[str, str], fact: str
) -> None:
    tamper(path, change, **metadata)
    with pytest.raises(ManifestError, match=fact) as refusal:
        read_manifest(path)
    assert "clinit manifest build" in refusal.value.remedy


def test_a_manifest_of_an_earlier_version_is_read(path: Path) -> None:
    tamper(path, same, **V1)
    assert read_manifest(path).digest == make().digest


def test_what_is_no_manifest_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.parquet"
    with pytest.raises(ManifestError, match="no manifest file at") as refusal:
        read_manifest(path)
    assert "clinit manifest build" in refusal.value.remedy
    make().table.write_parquet(path)
    with pytest.raises(ManifestError, match="its format is 'not given'"):
        read_manifest(path)
    for content in (b"", b"PAR1", b"path,label\na,1\n"):
        path.write_bytes(content)
        with pytest.raises(ManifestError, match="cannot be read as a manifest"):
            read_manifest(path)
