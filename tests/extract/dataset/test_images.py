"""Images of files and of containers by row, whole and damaged."""

import os
import random
import tarfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import polars as pl
import pytest
from hypothesis import given, strategies as st

from clinit.errors import ClinitError, ImageError, MachineError, ManifestError
from clinit.extract.dataset import parquet as parquet_images
from clinit.extract.dataset.images import ContainedImages, ImageFiles, Images, images_of
from clinit.extract.dataset.manifest import CONTAINED_SCHEMA, SCHEMA, Manifest
from clinit.extract.dataset.scan import scan
from clinit.extract.dataset.tar import index_tar
from tests.extract.dataset.made import make_parquet, make_tar

CONTENT = [bytes([65 + number]) * (number * 100 + 1) for number in range(5)]
Row = tuple[str, int, str, int, str, str, int, int]


def table(rows: Sequence[Row]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=CONTAINED_SCHEMA, orient="row")


def tar_rows(path: Path, members: Sequence[tuple[str, bytes]]) -> list[Row]:
    found, size = index_tar(make_tar(path, members, tarfile.PAX_FORMAT)).table, path.stat().st_size
    return [
        (f"{path.name}/{name}", 0, "a", length, path.name, "", start, size)
        for name, start, length in found.select("member", "position", "size_bytes").iter_rows()
    ]


def parquet_rows(path: Path, count: int) -> list[Row]:
    size = path.stat().st_size
    return [
        (f"{path.name}/{row}", 0, "a", 0, path.name, "image", row, size) for row in range(count)
    ]


@pytest.fixture
def tar(tmp_path: Path) -> list[Row]:
    return tar_rows(tmp_path / "x.tar", [(f"{i}.jpg", each) for i, each in enumerate(CONTENT)])


@pytest.fixture
def parquet(tmp_path: Path) -> list[Row]:
    make_parquet(tmp_path / "x.parquet", CONTENT, [0] * 5, row_group_size=2)
    return parquet_rows(tmp_path / "x.parquet", 5)


def contents(images: Images, rows: int) -> list[bytes]:
    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(images.read, range(rows)))


def test_rows_are_read_in_any_order(tmp_path: Path, tar: list[Row], parquet: list[Row]) -> None:
    (tmp_path / "a.jpg").write_bytes(b"12345")
    files = images_of(pl.DataFrame([("a.jpg", 0, "a", 5)], schema=SCHEMA, orient="row"), tmp_path)
    assert files == ImageFiles(tmp_path, ["a.jpg"], [5])
    assert (files.read(0), files.place(0)) == (b"12345", tmp_path / "a.jpg")
    rows = [*tar, *parquet]
    order = np.random.default_rng(0).permutation(len(rows)).tolist()
    images = images_of(table([rows[i] for i in order]), tmp_path)
    assert isinstance(images, ContainedImages)
    assert contents(images, len(rows)) == [CONTENT[i % 5] for i in order]
    assert images.place(0) == tmp_path / rows[order[0]][0]


def test_parquet_rows_are_read_block_by_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 3 * parquet_images.BLOCK_ROWS + 5
    content = [str(row).encode() for row in range(count)]
    make_parquet(tmp_path / "x.parquet", content, [0] * count, row_group_size=50)
    asked, read = [], parquet_images.read_images

    def spy(path: Path, column: str, first: int, rows: int) -> list[bytes | None]:
        asked.append((first, rows))
        return read(path, column, first, rows)

    monkeypatch.setattr(parquet_images, "read_images", spy)
    monkeypatch.setattr(parquet_images, "BLOCKS_KEPT", 4)
    images = ContainedImages(tmp_path, table(parquet_rows(tmp_path / "x.parquet", count)))
    assert contents(images, count) == content
    assert sorted(asked) == [(0, 64), (64, 64), (128, 64), (192, 5)]


@pytest.mark.parametrize(
    "members",
    [
        [("9.jpg", CONTENT[0]), ("1.jpg", CONTENT[1])],
        [("0.jpg", CONTENT[0] + b"x"), ("1.jpg", CONTENT[1])],
        [("cls", b"0"), ("0.jpg", CONTENT[0])],
    ],
    ids=["name", "size", "place"],
)
def test_another_tar_of_the_same_size_is_not_that_of_the_manifest(
    tmp_path: Path, members: list[tuple[str, bytes]]
) -> None:
    rows = tar_rows(tmp_path / "x.tar", [("0.jpg", CONTENT[0]), ("1.jpg", CONTENT[1])])
    make_tar(tmp_path / "x.tar", members)
    assert (tmp_path / "x.tar").stat().st_size == rows[0][-1]
    with pytest.raises(ManifestError, match=r"x\.tar does not contain 0\.jpg at its position"):
        ContainedImages(tmp_path, table(rows)).read(0)


@pytest.mark.parametrize(
    ("place", "by"),
    [(0, b"x"), (99, b"x"), (124, b"1"), (130, b"\0"), (0, bytes(512))],
    ids=["name", "behind the name", "size-begins", "size-cut", "all"],
)
def test_a_damaged_header_of_a_member_is_one_bad_image(
    tmp_path: Path, tar: list[Row], place: int, by: bytes
) -> None:
    start, content = tar[1][6] - 512 + place, bytearray((tmp_path / "x.tar").read_bytes())
    content[start : start + len(by)] = by
    (tmp_path / "x.tar").write_bytes(content)
    images = ContainedImages(tmp_path, table(tar))
    with pytest.raises(ImageError, match=r"^its header in the tar file is damaged$") as caught:
        images.read(1)
    assert "another folder" in caught.value.remedy
    assert [images.read(row) for row in (0, 2)] == [CONTENT[0], CONTENT[2]]


def test_a_row_with_the_path_of_an_image_alone_tells_how_to_embed_it(tmp_path: Path) -> None:
    make_parquet(tmp_path / "x.parquet", [None], [0])
    with pytest.raises(ImageError, match="embed_table_storage"):
        ContainedImages(tmp_path, table(parquet_rows(tmp_path / "x.parquet", 1))).read(0)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def longer(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"x")


def outside(path: Path) -> None:
    path.symlink_to(path.rename(path.parent.parent / "elsewhere"))


@pytest.mark.parametrize("name", ["x.tar", "x.parquet"])
@pytest.mark.parametrize(
    ("change", "fact"),
    [
        (pipe, r"does not contain 0\.jpg|has 0 bytes"),
        (longer, r"has ([0-9,]+) bytes, not ([0-9,]+) as in the manifest: it was changed"),
        (Path.unlink, "there is no file"),
        (outside, "is a link that leaves"),
    ],
)
def test_a_container_that_is_not_that_of_the_manifest_stops_everything(
    tmp_path: Path,
    tar: list[Row],
    parquet: list[Row],
    name: str,
    change: Callable[[Path], None],
    fact: str,
) -> None:
    change(tmp_path / name)
    with pytest.raises(ManifestError, match=rf"{name} {fact}|{fact} .*{name}"):
        ContainedImages(tmp_path, table(tar if name == "x.tar" else parquet)).read(0)


@pytest.mark.parametrize(
    ("error", "fact"),
    [
        (PermissionError(13, "Permission denied"), "no permission to read"),
        (MemoryError(), "not enough memory to decode"),
    ],
)
def test_a_machine_that_fails_stops_everything(
    tmp_path: Path,
    tar: list[Row],
    parquet: list[Row],
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    fact: str,
) -> None:
    monkeypatch.setattr(parquet_images, "read_images", Mock(side_effect=error))
    images = ContainedImages(tmp_path, table(parquet))
    for row in (0, 1):  # the second waits for the first, or finds what came of it
        with pytest.raises(MachineError, match=rf"{fact} .*x\.parquet"):
            images.read(row)
    monkeypatch.setattr(os, "open", Mock(side_effect=error))
    with pytest.raises(MachineError, match=rf"{fact} .*x\.tar"):
        ContainedImages(tmp_path, table(tar)).read(0)


@given(
    position=st.integers(0, 2**63 - 1) | st.integers(0, 12_000),
    size=st.integers(0, 2**63 - 1) | st.integers(0, 12_000),
    is_parquet=st.booleans(),
)
def test_no_place_of_a_hostile_manifest_is_read_or_reserved(
    tmp_path_factory: pytest.TempPathFactory, position: int, size: int, is_parquet: bool
) -> None:
    root = tmp_path_factory.getbasetemp() / "hostile"
    if not root.exists():
        make_tar(root / "x.tar", [(f"{i}.jpg", each) for i, each in enumerate(CONTENT)])
        make_parquet(root / "x.parquet", CONTENT, [0] * 5)
    name, column = ("x.parquet", "image") if is_parquet else ("x.tar", "")
    row = (f"{name}/0.jpg", 0, "a", size, name, column, position, (root / name).stat().st_size)
    try:
        content = ContainedImages(root, table([row])).read(0)
    except ClinitError:
        return
    assert content in CONTENT


def damages(whole: bytes) -> Iterator[bytes]:
    """Yield copies with flipped bits, a block of zeros, or without their end."""
    rng = random.Random(0)
    for _ in range(150):
        content = bytearray(whole)
        place, sort = rng.randrange(len(whole)), rng.random()
        if sort < 0.1:
            del content[place:]
        elif sort < 0.3:
            size = min(rng.choice((16, 512)), len(whole) - place)
            content[place : place + size] = bytes(size)
        else:
            for _ in range(rng.choice((1, 1, 3))):
                content[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
        yield bytes(content)


def survivors(root: Path, manifest: Manifest) -> list[bytes | None] | ClinitError:
    """Return the images, None for an invalid row; or what stops the extraction."""
    images, found = images_of(manifest.table, root), list[bytes | None]()
    for row in range(len(manifest.table)):
        try:
            found.append(images.read(row))
        except ImageError:
            found.append(None)
        except ClinitError as error:
            return error
    return found


@pytest.mark.parametrize("kind", ["webdataset", "huggingface"])
def test_damage_to_a_container_is_told_or_spoils_no_other_row(tmp_path: Path, kind: str) -> None:
    rng = np.random.default_rng(0)
    pictures, labels = [rng.bytes(150) for _ in range(6)], list("abcdef")
    if kind == "webdataset":
        members = [(f"{i}.png", image) for i, image in enumerate(pictures)]
        told = [(f"{i}.cls", label.encode()) for i, label in enumerate(labels)]
        path = make_tar(tmp_path / "train.tar", [*members, *told])
    else:
        path = make_parquet(
            tmp_path / "train.parquet", pictures, labels, row_group_size=3, compression="gzip"
        )
    whole, manifest = path.read_bytes(), scan(kind, tmp_path, "train").manifest
    places, outcomes = manifest.table.select("position", "size_bytes").rows(), set[str]()
    for content in damages(whole):
        path.write_bytes(content)
        try:
            scan(kind, tmp_path, "train")
            outcomes.add("scanned")
        except ClinitError:
            outcomes.add("scan told")
        found = survivors(tmp_path, manifest)
        if isinstance(found, ClinitError):
            assert kind == "huggingface" or len(content) != len(whole)
            outcomes.add("stopped")
            continue
        outcomes.add("invalid" if None in found else "read")
        if kind == "webdataset":
            for image, (start, size) in zip(found, places, strict=True):
                assert image in (None, content[start : start + size])
    assert outcomes == {"scan told", "scanned", "stopped", "invalid", "read"}
