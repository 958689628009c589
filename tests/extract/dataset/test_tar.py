import gzip
import io
import json
import os
import re
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clinit.errors import ManifestError, StorageError
from clinit.extract.dataset.tar import TarIndex, index_tar
from tests.extract.dataset.made import make_tar

SAMPLES = [("a.jpg", b"first"), ("a.cls", b"1"), ("b.jpg", b"second image"), ("b.cls", b"0\n")]


def indexed(path: Path, *members: tuple[str, bytes], kind: int = tarfile.USTAR_FORMAT) -> TarIndex:
    return index_tar(make_tar(path / "x.tar", members, kind))


def test_an_image_lies_where_the_index_says(tmp_path: Path) -> None:
    found = indexed(tmp_path, *SAMPLES)
    content = (tmp_path / "x.tar").read_bytes()
    assert found.table.select("member", "index", "name").rows() == [
        ("a.jpg", 1, None),
        ("b.jpg", 0, None),
    ]
    for (_, image), (start, size) in zip(
        SAMPLES[::2], found.table.select("position", "size_bytes").rows(), strict=True
    ):
        assert content[start : start + size] == image
    assert (found.others, found.second, found.is_ended) == ((), (), True)


NAMES = [
    "plain.jpg",
    "a folder/" + "long" * 40 + "/" + "name" * 30 + ".jpg",
    "ünï/cödé " + "é" * 120 + ".jpg",
    "deep/" * 60 + "x.jpg",
]


@pytest.mark.parametrize("kind", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_of_gnu_and_pax_are_read(tmp_path: Path, kind: int) -> None:
    members = [(name, name.encode()) for name in NAMES]
    found = indexed(tmp_path, *members, kind=kind)
    content = (tmp_path / "x.tar").read_bytes()
    assert found.table["member"].to_list() == NAMES
    for name, start, size in found.table.select("member", "position", "size_bytes").iter_rows():
        assert content[start : start + size] == name.encode()


@pytest.mark.parametrize(
    ("extension", "content", "label"),
    [
        ("cls", b" 7\n", (7, None)),
        ("cls", b"-1", (-1, None)),
        ("cls", "bücherei".encode(), (None, "bücherei")),
        ("CLS", b"7", (7, None)),
        ("txt", b"tabby cat\n", (None, "tabby cat")),
        ("json", b'{"label": 3}', (3, None)),
        ("json", b'{"cls": "3", "class_name": "cat"}', (3, "cat")),
        ("json", b'{"class": "cat"}', (None, "cat")),
        ("json", b'{"class_name": "cat"}', (None, "cat")),
        ("json", b'{"label": true}', (None, None)),
        ("json", b'{"label": [1]}', (None, None)),
        ("json", b"{", (None, None)),
        ("json", b"[" * 10_000, (None, None)),
        ("cls", b"", (None, None)),
        ("txt", b"x" * 10_000, (None, None)),
        ("caption", b"7", (None, None)),
    ],
)
def test_the_label_is_read_from_its_member(
    tmp_path: Path, extension: str, content: bytes, label: tuple[int | None, str | None]
) -> None:
    found = indexed(tmp_path, ("a.png", b"x"), (f"a.{extension}", content))
    assert found.table.select("index", "name").row(0) == label


def test_cls_comes_before_json_and_json_before_txt(tmp_path: Path) -> None:
    found = indexed(
        tmp_path,
        *[("a.txt", b"a cat on a mat"), ("a.json", b'{"label": 3, "class_name": "cat"}')],
        *[("a.jpg", b"x"), ("a.cls", b"3")],
        *[("b.jpg", b"x"), ("b.cls", b"4"), ("b.json", b'{"label": 3, "class_name": "cat"}')],
        *[("c.jpg", b"x"), ("c.txt", b"a dog"), ("c.json", b'{"class": "dog"}')],
    )
    assert found.table.select("index", "name").rows() == [(3, "cat"), (4, None), (None, "dog")]


def test_the_key_ends_at_the_first_dot_of_the_base_name(tmp_path: Path) -> None:
    found = indexed(
        tmp_path,
        *[("v1.0/a.jpg", b"x"), ("v1.0/a.cls", b"1")],
        *[("./b.seg.png", b"x"), ("./b.jpg", b"x"), ("./b.cls", b"2")],
    )
    assert found.table.select("member", "index").rows() == [("v1.0/a.jpg", 1), ("b.jpg", 2)]


def test_what_is_no_sample_is_told(tmp_path: Path) -> None:
    found = indexed(
        tmp_path,
        *[("README", b"x"), (".hidden.jpg", b"x"), ("c.cls", b"1")],
        *[("a.png", b"x"), ("a.jpg", b"x"), ("a.cls", b"1")],
    )
    assert found.table["member"].to_list() == ["a.png"]
    assert found.others == ("README", ".hidden.jpg", "c")
    assert found.second == ("a.jpg",)


def test_links_in_a_tar_are_no_images(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w") as tar:
        for name, kind in (("a.jpg", tarfile.SYMTYPE), ("b.jpg", tarfile.LNKTYPE)):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "/etc/passwd"
            tar.addfile(member)
    found = index_tar(path)
    assert found.table.is_empty()
    assert found.others == ("a.jpg", "b.jpg")


def test_a_member_that_occurs_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"x\.tar is not a whole tar file: the member a\.jpg"):
        indexed(tmp_path, ("a.jpg", b"1"), ("./a.jpg", b"2"))


@pytest.mark.parametrize("kept", [700, 2_000, 2_300])
def test_a_tar_that_is_cut_off_is_refused(tmp_path: Path, kept: int) -> None:
    path = make_tar(tmp_path / "x.tar", SAMPLES)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ManifestError, match=r"x\.tar is not a whole tar file: ") as caught:
        index_tar(path)
    assert caught.value.remedy.startswith("Copy or pack the file again")


def test_a_tar_without_the_mark_of_its_end_is_told(tmp_path: Path) -> None:
    path = make_tar(tmp_path / "x.tar", SAMPLES)
    path.write_bytes(path.read_bytes()[: 8 * 512])
    found = index_tar(path)
    assert len(found.table) == 2
    assert not found.is_ended


def test_a_damaged_header_does_not_end_the_index_silently(tmp_path: Path) -> None:
    path = make_tar(tmp_path / "x.tar", SAMPLES)
    content = bytearray(path.read_bytes())
    content[4 * 512 + 150] ^= 1
    path.write_bytes(content)
    with pytest.raises(ManifestError, match=r"not a whole tar file: the header at byte 2,048"):
        index_tar(path)


MANY = [(f"{row:03}.jpg", bytes([row + 1]) * 3_000) for row in range(30)]


def test_members_that_an_early_end_hides_are_not_lost(tmp_path: Path) -> None:
    whole = make_tar(tmp_path / "whole.tar", MANY).read_bytes()
    half = len(whole) // 1024 * 512
    for name, content in {
        "half": whole[:half] + bytes(len(whole) - half),
        "zeros": bytes(20_480),
        "joined": whole + whole,
    }.items():
        path = tmp_path / f"{name}.tar"
        path.write_bytes(content)
        with pytest.raises(ManifestError, match=f"{name}.tar is not a whole tar file"):
            index_tar(path)


@pytest.mark.parametrize("factor", [1, 7, 20, 32, 128, 512, 2048])
def test_zeros_to_the_end_of_a_record_are_part_of_an_archive(tmp_path: Path, factor: int) -> None:
    content = make_tar(tmp_path / "x.tar", MANY).read_bytes().rstrip(b"\0")
    members = -len(content) % 512 + len(content)
    record = factor * 512
    (tmp_path / "x.tar").write_bytes(content.ljust(-(-(members + 1024) // record) * record, b"\0"))
    assert len(index_tar(tmp_path / "x.tar").table) == len(MANY)


def test_what_is_no_tar_is_refused(tmp_path: Path) -> None:
    for content in (b"", b"nothing of a tar" * 100):
        (tmp_path / "x.tar").write_bytes(content)
        with pytest.raises(ManifestError, match=r"x\.tar is not a whole tar file: "):
            index_tar(tmp_path / "x.tar")


def test_a_compressed_tar_is_refused_whatever_its_name(tmp_path: Path) -> None:
    path = make_tar(tmp_path / "x.tar", SAMPLES)
    path.write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(ManifestError, match=r"x\.tar is compressed \(gzip\): an image") as caught:
        index_tar(path)
    assert "gunzip" in caught.value.remedy


def test_a_tar_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"cannot read .*: it is a folder"):
        index_tar(tmp_path)
    with pytest.raises(StorageError, match=r"cannot read .*: No such file"):
        index_tar(tmp_path / "x.tar")


@pytest.mark.parametrize("kind", [tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE])
def test_what_a_header_of_a_name_declares_is_not_reserved(tmp_path: Path, kind: bytes) -> None:
    header = tarfile.TarInfo("long")
    header.type, header.size = kind, 6 * 2**30
    path = tmp_path / "x.tar"
    path.write_bytes(header.tobuf())
    os.truncate(path, 512 + header.size)  # a sparse file: nothing of it is on the disk
    with pytest.raises(ManifestError, match="not a whole tar file: a header declares a name"):
        index_tar(path)


def test_image_data_are_not_read_whatever_the_blocks_of_the_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_tar(tmp_path / "x.tar", [(f"{number}.jpg", bytes(2**20)) for number in range(8)])
    plain = Path.open

    def open_as_on_network_storage(
        path: Path, mode: str = "r", buffering: int = -1, **more: Any
    ) -> Any:
        return plain(path, mode, 2**20 if buffering == -1 else buffering, **more)

    monkeypatch.setattr(Path, "open", open_as_on_network_storage)
    before = bytes_read()
    assert len(index_tar(path).table) == 8
    assert bytes_read() - before < 2**18


def bytes_read() -> int:
    """Return what this process has read by system calls."""
    found = re.search(r"rchar: (\d+)", Path("/proc/self/io").read_text())
    assert found is not None
    return int(found[1])


WHOLE = io.BytesIO()
with tarfile.open(fileobj=WHOLE, mode="w", format=tarfile.PAX_FORMAT) as writer:
    for name, content in [*SAMPLES, ("é.jpg", b"x"), ("é.json", json.dumps({"cls": 1}).encode())]:
        info = tarfile.TarInfo(name)
        info.size = len(content)
        writer.addfile(info, io.BytesIO(content))


@given(st.lists(st.tuples(st.integers(0, 8_000), st.integers(0, 255)), min_size=1, max_size=4))
def test_no_damage_goes_beyond_an_error_that_is_told(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]]
) -> None:
    content = bytearray(WHOLE.getvalue())
    for place, value in changes:
        content[place] = value
    path = tmp_path_factory.getbasetemp() / "damaged.tar"
    path.write_bytes(content)
    try:
        found = index_tar(path)
    except ManifestError:
        return
    ends = found.table["position"] + found.table["size_bytes"]
    assert (ends <= len(content)).all()
