"""Tar shards: what their index holds, and which damage it sees."""

import gzip
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from clinit.errors import ManifestError
from clinit.extract.dataset.manifest import Contents
from clinit.extract.dataset.tar import index_tar
from tests.extract.dataset.made import make_tar

SAMPLES = [("a.jpg", b"first"), ("a.cls", b"1"), ("b.jpg", b"second image"), ("b.cls", b"0\n")]
MANY = [(f"{row:03}.jpg", bytes([row + 1]) * 3_000) for row in range(30)]
OTHERS = "members left out, not part of a sample with an image"
SECOND = "images left out, because their sample already has an image"


def indexed(path: Path, *members: tuple[str, bytes], kind: int = tarfile.USTAR_FORMAT) -> Contents:
    return index_tar(make_tar(path / "x.tar", members, kind))


NAMES = [
    "plain.jpg",
    "a folder/" + "long" * 40 + "/" + "name" * 30 + ".jpg",
    "ünï/cödé " + "é" * 120 + ".jpg",
    "deep/" * 60 + "x.jpg",
]


@pytest.mark.parametrize("kind", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_an_image_lies_where_the_index_says_whatever_its_name(tmp_path: Path, kind: int) -> None:
    found = indexed(tmp_path, *((name, name.encode()) for name in NAMES), kind=kind)
    content = (tmp_path / "x.tar").read_bytes()
    assert found.table["member"].to_list() == NAMES
    for name, start, size in found.table.select("member", "position", "size_bytes").iter_rows():
        assert content[start : start + size] == name.encode()
    assert not any(found.left_out.values())


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
        *[("README", b"x"), (".hidden.jpg", b"x"), ("c.cls", b"1")],
        *[("d.png", b"x"), ("d.jpg", b"x"), ("d.cls", b"1")],
    )
    listed = found.table.select("member", "index").rows()
    assert listed == [("v1.0/a.jpg", 1), ("b.jpg", 2), ("d.png", 1)]
    assert found.left_out[OTHERS] == ["README", ".hidden.jpg", "c"]
    assert found.left_out[SECOND] == ["b.seg.png", "d.jpg"]


def test_images_with_several_dots_alone_are_split_at_the_last(tmp_path: Path) -> None:
    names = ["img.v2.001", "img.v2.002"]
    members = [(f"{name}.{end}", b"7") for name in names for end in ("jpg", "cls")]
    found = indexed(tmp_path, *members, ("@eaDir/a.jpg", b"x"), ("__MACOSX/a.jpg", b"x"))
    assert found.table["member"].to_list() == ["img.v2.001.jpg", "img.v2.002.jpg"]
    assert found.table["index"].to_list() == [7, 7]
    assert found.left_out["images whose names were split at the last of several dots"]
    assert found.left_out[OTHERS] == ["@eaDir/a.jpg", "__MACOSX/a.jpg"]


def test_links_in_a_tar_are_no_images(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        member = tarfile.TarInfo("a.jpg")
        member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(member)
    assert index_tar(tmp_path / "x.tar").left_out[OTHERS] == ["a.jpg"]


@pytest.mark.parametrize(
    ("members", "damage", "fact"),
    [
        ([("a.jpg", b"1"), ("./a.jpg", b"2")], lambda whole: whole, "a.jpg occurs twice"),
        (SAMPLES, lambda whole: b"", "not a complete tar file"),
        (SAMPLES, lambda whole: b"nothing of a tar" * 100, "not a complete tar file"),
        *((SAMPLES, lambda whole, kept=kept: whole[:kept], "") for kept in (700, 2_000, 2_300)),
        (SAMPLES, lambda whole: whole[:2198] + b"\1" + whole[2199:], "header at byte 2,048"),
        (SAMPLES, gzip.compress, "compressed"),
        (MANY, lambda whole: whole[: len(whole) // 1024 * 512].ljust(len(whole), b"\0"), "lost"),
        (MANY, lambda whole: bytes(20_480), "no members"),
        (MANY, lambda whole: whole + whole, "bytes follow its end at byte"),
    ],
)
def test_a_tar_that_is_not_whole_is_refused(
    tmp_path: Path, members: list[tuple[str, bytes]], damage: Callable[[bytes], bytes], fact: str
) -> None:
    path = make_tar(tmp_path / "x.tar", members)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ManifestError, match=rf"x\.tar is .*{fact}"):
        index_tar(path)


@pytest.mark.parametrize("factor", [1, 7, 20, 128, 2048])
def test_zeros_to_the_end_of_a_record_are_part_of_an_archive(tmp_path: Path, factor: int) -> None:
    content = make_tar(tmp_path / "x.tar", MANY).read_bytes().rstrip(b"\0")
    members, record = -len(content) % 512 + len(content), factor * 512
    (tmp_path / "x.tar").write_bytes(content.ljust(-(-(members + 1024) // record) * record, b"\0"))
    assert len(index_tar(tmp_path / "x.tar").table) == len(MANY)
