from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from clinit.errors import ClinitError
from clinit.extract.writable import check_writable, obstacle


def test_what_can_be_made_has_no_obstacle_and_is_not_made(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "new", tmp_path / "a" / "b" / "c.safetensors"):
        assert obstacle(path) is None
        check_writable(path)
    assert list(tmp_path.iterdir()) == []


def test_a_relative_path_is_looked_for_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    assert obstacle(Path("new")) is None
    assert obstacle(Path("file/new")) == f"{tmp_path}/file is not a folder you can write to"


def test_a_file_in_the_way_is_an_obstacle(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ClinitError) as caught:
        check_writable(tmp_path / "file" / "cache" / "train", "--csv")
    assert str(caught.value) == (
        f"cannot write {tmp_path}/file/cache/train: {tmp_path}/file is not a folder you can"
        " write to"
    )
    assert caught.value.remedy == "Choose a place that you can write to with `--csv`."


def test_a_link_to_nowhere_is_an_obstacle(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "absent")
    assert obstacle(tmp_path / "link" / "x") == f"{tmp_path}/link is not a folder you can write to"


def test_rights_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Path] = []

    def refuse(path: Path, mode: int) -> bool:
        assert mode == os.W_OK | os.X_OK
        asked.append(path)
        return False

    monkeypatch.setattr(os, "access", refuse)
    assert obstacle(tmp_path / "a" / "b") == f"{tmp_path} is not a folder you can write to"
    assert obstacle(tmp_path) is not None
    assert asked == [tmp_path, tmp_path]


@pytest.mark.parametrize(
    ("blocks", "left", "expected"),
    [(100, 0, "no space is left on its storage"), (100, 1, None), (0, 0, None)],
)
def test_a_full_disk_is_an_obstacle(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    blocks: int,
    left: int,
    expected: str | None,
) -> None:
    """Storage that counts no blocks, such as of some networks, is not full."""
    room = SimpleNamespace(f_blocks=blocks, f_bavail=left)
    monkeypatch.setattr(os, "statvfs", lambda path: room)
    assert obstacle(tmp_path / "new") == expected
