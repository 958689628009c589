"""Claims: one writer, no link followed, nothing of others removed, leftovers swept."""

import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from clinit.errors import ClinitError
from clinit.files.lock import claim_file, claim_folder

HOLD = """
import sys
from pathlib import Path
from clinit.files import lock
with getattr(lock, sys.argv[1])(Path(sys.argv[2])):
    print("held", flush=True)
    sys.stdin.readline()
"""


@contextmanager
def held_elsewhere(kind: str, path: Path) -> Iterator[subprocess.Popen[str]]:
    """Let another process hold a claim."""
    command = [sys.executable, "-c", HOLD, kind, str(path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


def test_a_folder_has_one_writer(tmp_path: Path) -> None:
    with held_elsewhere("claim_folder", tmp_path) as process:
        with pytest.raises(ClinitError) as caught, claim_folder(tmp_path):
            pass
        assert str(caught.value) == f"another process is writing into {tmp_path}"
        assert caught.value.remedy.startswith("Wait until it has finished")
        process.kill()
        process.wait()
        with claim_folder(tmp_path):
            pass  # the kernel has given it back


def test_who_waits_for_a_file_gets_it_after_its_lock_was_removed(tmp_path: Path) -> None:
    path = tmp_path / "head.safetensors"
    with held_elsewhere("claim_file", path) as process:
        assert process.stdin is not None
        stdin = process.stdin
        with claim_file(path, on_busy=lambda: print("go", file=stdin, flush=True)):
            lock = tmp_path / ".head.safetensors.lock"
            descriptor = os.open(lock, os.O_RDWR)  # it is there, and it is this process's
            with pytest.raises(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.close(descriptor)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("claim", [claim_folder, claim_file])
def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path, claim: object) -> None:
    victim = tmp_path / "victim"
    victim.write_text("dear")
    target = tmp_path / "cache"
    target.mkdir()
    name = ".lock" if claim is claim_folder else ".head.lock"
    (target / name).symlink_to(victim)
    with pytest.raises(ClinitError) as caught, ExitStack() as stack:
        stack.enter_context(
            claim_folder(target) if claim is claim_folder else claim_file(target / "head")
        )
    assert str(caught.value) == (
        f"{target / name} is a link or not a regular file, so it is not a lock of clinit"
    )
    assert victim.read_text() == "dear"


def drafts(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ".a.json.tmp-0123456789abcdef").write_text("half")
    (folder / ".run.tmp-0123456789abcdef").mkdir()
    (folder / ".run.tmp-0123456789abcdef" / "run.json").write_text("half")


def test_a_claimed_folder_is_swept_of_drafts_alone(tmp_path: Path) -> None:
    drafts(tmp_path)
    kept = {"a.json", ".hidden", ".b.tmp-notes", "c.tmp-0123456789abcdef"}
    for name in kept:
        (tmp_path / name).write_text("mine")
    with claim_folder(tmp_path):
        assert {path.name for path in tmp_path.iterdir()} == {*kept, ".lock"}


def test_a_claimed_file_is_swept_of_its_own_drafts(tmp_path: Path) -> None:
    drafts(tmp_path)
    with claim_file(tmp_path / "a.json"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == [".run.tmp-0123456789abcdef"]


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_storage_that_cannot_lock_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def flock(descriptor: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    drafts(tmp_path)
    before = {path.name for path in tmp_path.iterdir()}
    monkeypatch.setattr(fcntl, "flock", flock)
    with claim_folder(tmp_path):
        # Whose drafts these are nobody can say: they stay.
        assert {path.name for path in tmp_path.iterdir()} == {*before, ".lock"}


def test_a_refused_command_leaves_a_folder_as_it_was(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "new"):
        with pytest.raises(KeyError), claim_folder(folder):
            raise KeyError
    assert [*tmp_path.iterdir()] == []


def replace_while_claimed(folder: Path) -> None:
    with claim_folder(folder):
        (folder / ".lock").unlink()
        folder.rmdir()
        folder.mkdir()


def test_a_folder_that_is_replaced_while_it_is_claimed_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    with pytest.raises(ClinitError) as caught:
        replace_while_claimed(folder)
    assert str(caught.value) == f"{folder} was removed or replaced while this command wrote into it"
