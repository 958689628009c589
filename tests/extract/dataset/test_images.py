import io
import os
import re
import tarfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clinit.errors import ClinitError, ImageError, MachineError, ManifestError
from clinit.extract.dataset import parquet as parquet_images
from clinit.extract.dataset.images import ContainedImages, ImageFiles, Images, images_of
from clinit.extract.dataset.manifest import CONTAINED_SCHEMA, SCHEMA
from clinit.extract.dataset.tar import index_tar
from tests.extract.dataset.made import make_parquet, make_tar

CONTENT = [bytes([65 + number]) * (number * 100 + 1) for number in range(5)]
Row = tuple[str, int, str, int, str, str, int, int]


def table(rows: Sequence[Row]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=CONTAINED_SCHEMA, orient="row")


def tar_rows(path: Path, members: Sequence[tuple[str, bytes]]) -> list[Row]:
    found = index_tar(make_tar(path, members, tarfile.PAX_FORMAT)).table
    size = path.stat().st_size
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


def test_files_of_a_manifest_are_read_as_files(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"12345")
    images = images_of(pl.DataFrame([("a.jpg", 0, "a", 5)], schema=SCHEMA, orient="row"), tmp_path)
    assert images == ImageFiles(tmp_path, ["a.jpg"], [5])
    assert images.read(0) == b"12345"
    assert images.place(0) == tmp_path / "a.jpg"


def test_rows_of_containers_are_read_in_any_order(
    tmp_path: Path, tar: list[Row], parquet: list[Row]
) -> None:
    rows = [*tar, *parquet]
    order = np.random.default_rng(0).permutation(len(rows)).tolist()
    images = images_of(table([rows[i] for i in order]), tmp_path)
    assert isinstance(images, ContainedImages)
    assert contents(images, len(rows)) == [CONTENT[i % 5] for i in order]
    assert images.place(0) == tmp_path / rows[order[0]][0]


def test_names_of_any_length_and_alphabet_are_read(tmp_path: Path) -> None:
    names = ["é.jpg", "x/" + "y" * 300 + ".png", "a b//c.jpg", "./dot.jpg", "z" * 97 + ".png"]
    rows = tar_rows(tmp_path / "x.tar", [(name, name.encode()) for name in names])
    found = contents(ContainedImages(tmp_path, table(rows)), len(names))
    assert found == [name.encode() for name in names]


def test_parquet_rows_are_read_block_by_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 3 * parquet_images.BLOCK_ROWS + 5
    content = [str(row).encode() for row in range(count)]
    make_parquet(tmp_path / "x.parquet", content, [0] * count, row_group_size=50)
    asked = []
    read = parquet_images.read_images

    def spy(path: Path, column: str, first: int, rows: int) -> pl.Series:
        asked.append((first, rows))
        return read(path, column, first, rows)

    monkeypatch.setattr(parquet_images, "read_images", spy)
    images = ContainedImages(tmp_path, table(parquet_rows(tmp_path / "x.parquet", count)))
    assert contents(images, count) == content
    assert sorted(asked) == [(0, 64), (64, 64), (128, 64), (192, 5)]


def test_few_blocks_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_images, "BLOCK_ROWS", 1)
    monkeypatch.setattr(parquet_images, "BLOCKS_KEPT", 2)
    make_parquet(tmp_path / "x.parquet", CONTENT, [0] * 5)
    images = ContainedImages(tmp_path, table(parquet_rows(tmp_path / "x.parquet", 5)))
    assert contents(images, 5) == CONTENT
    assert len(images._parquet._blocks) == 2


def test_an_empty_image_is_one_bad_image(tmp_path: Path) -> None:
    rows = tar_rows(tmp_path / "x.tar", [("a.jpg", b""), ("b.jpg", b"1")])
    images = ContainedImages(tmp_path, table(rows))
    with pytest.raises(ImageError, match="the file is empty"):
        images.read(0)
    assert images.read(1) == b"1"


def test_an_image_without_bytes_is_one_bad_image(tmp_path: Path) -> None:
    make_parquet(tmp_path / "x.parquet", [b"1", None, b"", b"2"], [0] * 4)
    images = ContainedImages(tmp_path, table(parquet_rows(tmp_path / "x.parquet", 4)))
    assert (images.read(0), images.read(3)) == (b"1", b"2")
    with pytest.raises(ImageError, match="the Parquet file holds no bytes for it"):
        images.read(1)
    with pytest.raises(ImageError, match="the file is empty"):
        images.read(2)


def test_damage_in_a_parquet_file_is_as_many_bad_images_as_it_spoils(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    rng = np.random.default_rng(0)
    content = [rng.bytes(50) * 20 for _ in range(6)]
    make_parquet(path, content, [0] * 6, row_group_size=2, compression="gzip")
    damaged = bytearray(path.read_bytes())
    streams = [found.start() for found in re.finditer(rb"\x1f\x8b\x08", damaged)]
    second = streams[len(streams) // 3]  # the content of rows 2 and 3
    damaged[second + 20 : second + 40] = bytes(20)
    path.write_bytes(damaged)
    images = ContainedImages(tmp_path, table(parquet_rows(path, 6)))
    for row in (2, 3):
        with pytest.raises(ImageError, match=r"^cannot be read from the Parquet file: "):
            images.read(row)
    assert [images.read(row) for row in (0, 1, 4, 5)] == [content[i] for i in (0, 1, 4, 5)]


def test_a_container_of_another_size_is_not_that_of_the_manifest(
    tmp_path: Path, tar: list[Row], parquet: list[Row]
) -> None:
    for name, rows in (("x.tar", tar), ("x.parquet", parquet)):
        with (tmp_path / name).open("ab") as file:
            file.write(b"x")
        size = rows[0][-1]
        text = rf"{name} has {size + 1:,} bytes, the manifest says {size:,}: it was changed"
        with pytest.raises(ManifestError, match=text) as caught:
            ContainedImages(tmp_path, table(rows)).read(0)
        assert "build the manifest again" in caught.value.remedy


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
    with pytest.raises(ManifestError, match=r"x\.tar does not hold 0\.jpg where the manifest says"):
        ContainedImages(tmp_path, table(rows)).read(0)


@pytest.mark.parametrize(
    ("place", "by"),
    [(0, b"x"), (2, b"x"), (124, b"1"), (130, b"\0"), (134, b"1"), (0, bytes(512))],
    ids=["name", "suffix", "size-begins", "size-cut", "size-ends", "all"],
)
def test_a_damaged_header_of_a_member_is_one_bad_image(
    tmp_path: Path, tar: list[Row], place: int, by: bytes
) -> None:
    start = tar[1][6] - 512 + place
    content = bytearray((tmp_path / "x.tar").read_bytes())
    content[start : start + len(by)] = by
    (tmp_path / "x.tar").write_bytes(content)
    images = ContainedImages(tmp_path, table(tar))
    with pytest.raises(ImageError, match=r"^its header in the tar file is damaged$") as caught:
        images.read(1)
    assert "--retry-invalid" in caught.value.remedy
    assert [images.read(row) for row in (0, 2)] == [CONTENT[0], CONTENT[2]]


def test_what_stands_behind_the_end_of_a_name_does_not_count(
    tmp_path: Path, tar: list[Row]
) -> None:
    content = bytearray((tmp_path / "x.tar").read_bytes())
    content[tar[1][6] - 512 + 99] = 1
    (tmp_path / "x.tar").write_bytes(content)
    assert ContainedImages(tmp_path, table(tar)).read(1) == CONTENT[1]


def test_a_container_that_is_not_there_says_where_to_look(
    tmp_path: Path, tar: list[Row], parquet: list[Row]
) -> None:
    for rows in (tar, parquet):
        with pytest.raises(
            ManifestError, match=r"there is no file .*, which holds images"
        ) as caught:
            ContainedImages(tmp_path / "elsewhere", table(rows)).read(0)
        assert "--root" in caught.value.remedy


def test_a_container_may_not_be_a_link_out_of_the_root(
    tmp_path: Path, tar: list[Row], parquet: list[Row]
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    for name, rows in (("x.tar", tar), ("x.parquet", parquet)):
        (root / name).symlink_to(tmp_path / name)
        with pytest.raises(ManifestError, match=f"{name} is a link that leaves"):
            ContainedImages(root, table(rows)).read(0)


def test_a_container_that_may_not_be_read_stops_everything(
    tmp_path: Path, tar: list[Row], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(MachineError, match=r"no permission to read .*x\.tar"):
        ContainedImages(tmp_path, table(tar)).read(0)


def test_want_of_memory_stops_everything(
    tmp_path: Path, parquet: list[Row], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> pl.Series:
        raise MemoryError

    monkeypatch.setattr(parquet_images, "read_images", fail)
    images = ContainedImages(tmp_path, table(parquet))
    for row in (0, 1):  # the second waits for the first, or finds what came of it
        with pytest.raises(MachineError, match=r"not enough memory to decode .*x\.parquet"):
            images.read(row)


def test_a_device_in_the_place_of_a_tar_is_not_waited_for(tmp_path: Path, tar: list[Row]) -> None:
    (tmp_path / "x.tar").unlink()
    os.mkfifo(tmp_path / "x.tar")
    with pytest.raises(ManifestError, match=r"x\.tar does not hold 0\.jpg"):
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


@settings(deadline=None, max_examples=25)  # polars may panic, which takes its time
@given(st.lists(st.tuples(st.integers(0, 1_499), st.integers(0, 255)), min_size=1, max_size=4))
def test_no_damage_of_a_parquet_file_goes_beyond_an_error_that_is_told(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]]
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.parquet"
    make_parquet(path, CONTENT, [0] * 5, names="ab", row_group_size=3)
    content = bytearray(path.read_bytes())
    for place, value in changes:
        content[place % len(content)] = value
    path.write_bytes(content)
    images = ContainedImages(path.parent, table(parquet_rows(path, 5)))
    for row in range(5):
        try:
            images.read(row)
        except ClinitError:
            continue


def test_every_image_of_a_tar_can_be_read_at_its_place(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as writer:
        for number, each in enumerate(CONTENT):
            for name in (f"{number}.jpg", f"{number}.cls"):
                info = tarfile.TarInfo(name)
                info.size, info.mtime = len(each), number
                writer.addfile(info, io.BytesIO(each))
    (tmp_path / "x.tar").write_bytes(buffer.getvalue())
    found = index_tar(tmp_path / "x.tar").table
    rows = [
        (f"x.tar/{name}", 0, "a", size, "x.tar", "", start, len(buffer.getvalue()))
        for name, start, size in found.select("member", "position", "size_bytes").iter_rows()
    ]
    assert contents(ContainedImages(tmp_path, table(rows)), 5) == CONTENT
