""""""

import ctypes
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import clinit
from clinit.errors import ClinitError, HeadError, StorageError
from clinit.extract.cache.head import Head, foreign_to_head, read_head, write_head
from clinit.extract.cache.read import open_cache
from clinit.extract.dataset.manifest import read_manifest
from clinit.files.commit import commit_folder
from clinit.files.lock import claim_folder
from clinit.files.paths import check_free, check_writable, instead_of, is_folder, own_folder
from clinit.headtrain.model.storage import read_facts
from clinit.headtrain.protocol.record.format import read_record


@contextmanager
def without_rights(path: Path) -> Iterator[None]:
    """Take the right to read `path` away, and from this thread what lets root pass."""
    libc, version_and_thread = ctypes.CDLL(None), (ctypes.c_uint32 * 2)(0x20080522, 0)
    held = (ctypes.c_uint32 * 6)()  # two words each: effective, permitted, inheritable
    libc.capget(version_and_thread, held)
    path.chmod(0)
    libc.capset(version_and_thread, (ctypes.c_uint32 * 6)(0, *held[1:3], 0, *held[4:]))
    try:
        yield
    finally:
        libc.capset(version_and_thread, held)


HEAD = Head(np.ones((2, 3), np.float32), np.zeros(2, np.float32), ("a", "b"), origin={"run": "r"})


def check(path: Path, *, overwrite: bool | None = None) -> None:
    check_free(path, "head", foreign_to_head, HeadError, overwrite=overwrite)


def refusal(path: Path, *, overwrite: bool | None) -> tuple[str, str]:
    with pytest.raises(HeadError) as caught:
        check(path, overwrite=overwrite)
    return str(caught.value), caught.value.remedy


@pytest.mark.parametrize("name", ["head.safetensors", "head.npz"])
def test_a_result_is_replaced_where_that_is_asked_for_alone(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    write_head(HEAD, path)
    message, remedy = refusal(path, overwrite=False)
    assert message == f"there is already a head at {path}"
    assert remedy == "Choose another --out, or replace it with --overwrite."
    message, remedy = refusal(path, overwrite=None)
    assert remedy == "Choose another --out, or move it away."
    check(path, overwrite=True)


def test_what_clinit_has_not_written_is_never_replaced(tmp_path: Path) -> None:
    head = tmp_path / "own" / "head.safetensors"
    write_head(HEAD, head)
    (tmp_path / "link.safetensors").symlink_to(head)
    (tmp_path / "text.safetensors").write_text("precious")
    (tmp_path / "folder.safetensors").mkdir()
    np.savez(tmp_path / "theirs.npz", weight=np.ones((2, 3)), bias=np.zeros(2))
    for name in ("text.safetensors", "folder.safetensors", "theirs.npz", "link.safetensors"):
        message, remedy = refusal(tmp_path / name, overwrite=True)
        assert message.startswith(f"{tmp_path / name} exists and is never replaced")
        assert message.endswith(
            "it is a link" if "link" in name else "it is not a head written by clinit"
        )
        assert remedy == "Choose another --out, or move it away."


def test_a_lock_that_is_held_is_in_the_way_and_one_that_is_left_is_not(tmp_path: Path) -> None:
    with claim_folder(tmp_path / "outer" / "inner"):
        refusal(tmp_path / "outer", overwrite=True)
    check(tmp_path / "outer")
    assert not (tmp_path / "outer").exists()
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / ".lock").write_text("not of clinit")
    refusal(tmp_path / "own", overwrite=True)
    (tmp_path / "own" / ".lock").write_text("")
    (tmp_path / "own" / "precious").touch()
    refusal(tmp_path / "own", overwrite=True)
    assert [path.name for path in (tmp_path / "own").iterdir()] == ["precious"]


def test_a_folder_is_replaced_as_a_whole_or_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "model"
    commit_folder(folder, lambda draft: (draft / "old").write_text("1"))

    def broken(draft: Path) -> None:
        (draft / "new").write_text("2")
        raise RuntimeError

    with pytest.raises(RuntimeError):
        commit_folder(folder, broken, overwrite=True)
    assert [path.name for path in tmp_path.rglob("*")] == ["model", "old"]
    monkeypatch.setattr(Path, "rename", None)  # one step: no kill can fall between two renames
    commit_folder(folder, lambda draft: (draft / "new").write_text("2"), overwrite=True)
    monkeypatch.undo()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["model", "new"]
    monkeypatch.setattr("clinit.files.commit._exchanged", lambda *_: False)  # as on NFS
    commit_folder(folder, lambda draft: (draft / "newer").write_text("3"), overwrite=True)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["model", "newer"]


def test_a_missing_path_is_answered_by_a_similar_one_of_its_kind(tmp_path: Path) -> None:
    for name in ("scenes/train", "scenes-features", "closed"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "scene.txt").touch()
    assert instead_of(tmp_path / "scene", "Other.", Path.is_dir).endswith("/scenes?")
    assert instead_of(tmp_path / "scene", "Other.", Path.is_symlink) == "Other."
    assert instead_of(tmp_path / "nowhere" / "scenes", "Other.", Path.exists) == "Other."
    with without_rights(tmp_path / "closed"):
        assert instead_of(tmp_path / "scnes" / "train", "", is_folder).endswith("/scenes/train?")
    assert instead_of(tmp_path / "scnes" / "ant", "", Path.is_dir) == ""


@pytest.mark.parametrize("hostile", ["none", "open", "link", "above", "group", "file", "no home"])
def test_programs_are_kept_only_where_no_other_user_can_have_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hostile: str
) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative" if hostile == "no home" else str(cache))
    (cache / "clinit").mkdir(parents=True)
    folder = cache / "clinit" / "programs"
    match hostile:
        case "open":
            folder.mkdir()
            folder.chmod(0o777)
        case "link":
            (cache / "elsewhere").mkdir(mode=0o700)
            folder.symlink_to(cache / "elsewhere")
        case "above":
            cache.chmod(0o777)
        case "group":
            if os.geteuid():
                pytest.skip("only root may give a folder to another group")
            os.chown(cache, 0, 1)
            cache.chmod(0o775)
        case "file":
            folder.touch()
    found = own_folder("programs")
    assert (found == folder) == (hostile == "none")
    assert found.stat().st_mode & 0o777 == 0o700


BARE = re.compile(r"\.(exists|is_file|is_dir)\(\)")
BELOW = ("files/commit.py", "files/lock.py", "files/paths.py", "doctor.py", "machine.py", "tree.py")
LATER = ("headtrain/model",)


def test_only_one_function_asks_what_is_at_a_path() -> None:
    """pathlib raises, or answers no, for what is below a folder that may not be entered."""
    package = Path(clinit.__file__).parent
    rooms = [package, *(each for each in package.iterdir() if each.is_symlink())]
    found = [
        f"{path}: {line}"
        for room in rooms
        for path in sorted(room.rglob("*.py"))
        for line in path.read_text().splitlines()
        if BARE.search(line) and not str(path).endswith(BELOW)
        if not any(room in str(path) for room in LATER)
    ]
    assert found == []


OF_FOLDERS = (open_cache, read_record, check_writable, check)


@pytest.mark.parametrize("read", [read_facts, read_manifest, read_head, *OF_FOLDERS])
def test_a_file_that_may_not_be_read_is_not_told_absent(
    tmp_path: Path, read: Callable[[Path], object]
) -> None:
    file = tmp_path / "closed" / "file.safetensors"
    write_head(HEAD, file)
    for closed in (file, file.parent)[read in OF_FOLDERS :]:
        with without_rights(closed), pytest.raises(StorageError) as caught:
            read(file)
        assert "Permission denied" in str(caught.value)
        assert caught.value.remedy.startswith("Check its permissions")
        closed.chmod(0o700)


@pytest.mark.parametrize(
    ("files", "what"),
    [
        ({"train/plan.json": b""}, "feature cache"),
        ({"run.json": b""}, "run record"),
        (
            {"config.json": b"", "model.safetensors": bytes([16, *[0] * 7]) + b'{"clinit_model":'},
            "model",
        ),
        ({"config.json": b"", "model.safetensors": bytes(99)}, None),
        ({"plan.json": b"", "config.json": b""}, None),
    ],
)
def test_nothing_is_written_into_another_result(
    tmp_path: Path, files: dict[str, bytes], what: str | None
) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    for place in (tmp_path / "table.csv", tmp_path / "deep" / "er" / "page.html"):
        if what is None:
            check_writable(place, "--csv")
        else:
            with pytest.raises(ClinitError, match=f"part of the {what}"):
                check_writable(place, "--csv")
