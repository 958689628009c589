"""Commits: whole or not at all, under names that nobody else has."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from clinit.errors import ClinitError
from clinit.files.commit import commit_file, commit_folder


def test_a_failed_write_leaves_what_was_there_and_the_drafts_of_others(tmp_path: Path) -> None:
    path, other = tmp_path / "a.json", tmp_path / ".a.json.tmp-0123456789abcdef"
    path.write_text("old")
    other.write_text("of another process")

    def full(draft: Path) -> None:
        draft.write_text("half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(ClinitError, match="No space left on device"):
        commit_file(path, full)
    assert path.read_text() == "old"
    assert {each.name for each in tmp_path.iterdir()} == {path.name, other.name}


@pytest.mark.parametrize(
    ("commit", "flushed"),
    [
        (commit_file, [("draft", False), ("folder", True)]),
        (commit_folder, [("a", False), ("draft", False), ("folder", True)]),
    ],
)
def test_the_content_is_flushed_before_the_rename_and_the_name_after_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    commit: Callable[..., None],
    flushed: list[tuple[str, bool]],
) -> None:
    place, seen = tmp_path / "folder" / "there", list[tuple[str, bool]]()

    def flush(path: Path) -> None:
        seen.append(("draft" if ".tmp-" in path.name else path.name, place.exists()))

    for name in ("flush_file", "flush_folder"):
        monkeypatch.setattr(f"clinit.files.commit.{name}", flush)
    commit(place, lambda draft: (draft if commit is commit_file else draft / "a").write_text("new"))
    assert seen == flushed


def test_a_draft_is_never_written_through_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("dear")
    guessed = tmp_path / ".a.json.tmp-00"
    guessed.symlink_to(victim)
    monkeypatch.setattr("clinit.files.commit.draft_of", lambda path: guessed)
    with pytest.raises(ClinitError, match="a folder is needed"):
        commit_file(tmp_path / "a.json", lambda draft: draft.write_text("new"))
    assert victim.read_text() == "dear"


def test_a_link_at_the_path_is_replaced_and_not_followed(tmp_path: Path) -> None:
    victim, path = tmp_path / "victim", tmp_path / "a.json"
    victim.write_text("dear")
    path.symlink_to(victim)
    commit_file(path, lambda draft: draft.write_text("new"))
    assert (path.read_text(), victim.read_text()) == ("new", "dear")
    assert not path.is_symlink()


def write_a(path: Path) -> None:
    commit_file(path, lambda draft: draft.write_text("a"))


def test_a_pipe_or_a_device_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(os.devnull)
    for name in ("pipe", "link"):
        with pytest.raises(ClinitError) as caught:
            write_a(tmp_path / name)
        assert str(caught.value) == f"cannot write {tmp_path / name}: it is a device or a pipe"
        assert caught.value.remedy == "Give a file name."
    assert (tmp_path / "pipe").is_fifo()
    assert (tmp_path / "link").is_symlink()
    with pytest.raises(ClinitError, match=r"cannot write .*: it is a folder"):
        write_a(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["link", "pipe"]  # noqa: PTH208
    write_a(tmp_path / "file")
    write_a(tmp_path / "file")


def test_a_name_that_cannot_be_is_refused_in_a_sentence_before_anything_is_written(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").touch()
    for path, reason in (
        (tmp_path / ("n" * 256), "File name too long"),
        (tmp_path / "file" / "a", "a file is where a folder is needed"),
        (tmp_path / "file" / "b" / "a", "a file is where a folder is needed"),
    ):
        with pytest.raises(ClinitError) as caught:
            commit_file(path, lambda draft: pytest.fail("written"))
        assert str(caught.value) == f"cannot write {path}: {reason}"
    assert os.listdir(tmp_path) == ["file"]  # noqa: PTH208
