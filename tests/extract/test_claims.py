"""Claims: one worker per file; those of the dead and of the silent are taken over."""

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from clinit.errors import ClinitError
from clinit.extract import claims as claims_module
from clinit.extract.claims import Claims
from clinit.extract.holder import Holder, myself

NAME = "shard-00000.h5"
HOLD = """
import sys
from pathlib import Path
from clinit.extract.claims import Claims
with Claims(Path(sys.argv[1])) as claims:
    assert claims.take(sys.argv[2])
    print("held", flush=True)
    sys.stdin.readline()
"""


@contextmanager
def held_elsewhere(folder: Path, name: str = NAME) -> Iterator[subprocess.Popen[str]]:
    """Let another process hold a claim."""
    command = [sys.executable, "-c", HOLD, str(folder), name]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def elsewhere(tmp_path: Path) -> Callable[[], Path]:
    """Write the claim of a worker on a host that cannot be seen from here."""

    def write() -> Path:
        path = tmp_path / f".{NAME}.claim"
        holder = {"host": "far", "processes": "there", "pid": 7, "begun": "1", "token": "t"}
        path.write_text(json.dumps(holder))
        return path

    return write


def test_one_of_many_workers_gets_a_claim(tmp_path: Path) -> None:
    workers = [Claims(tmp_path) for _ in range(8)]
    barrier, won = threading.Barrier(8), list[int]()

    def work(index: int) -> None:
        with workers[index] as claims:
            for number in range(20):
                barrier.wait()
                if claims.take(f"shard-{number:05d}.h5"):
                    won.append(number)
                barrier.wait()

    threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == list(range(20))
    assert list(tmp_path.iterdir()) == []


def test_a_claim_of_a_living_process_is_respected_and_of_a_killed_one_taken_over(
    tmp_path: Path,
) -> None:
    draft = tmp_path / f".{NAME}.tmp-0123456789abcdef"
    with held_elsewhere(tmp_path) as process, Claims(tmp_path) as claims:
        draft.touch()
        assert not claims.take(NAME)
        assert not claims.take(NAME)
        assert draft.exists(), "its holder is writing it"
        process.kill()
        process.wait()
        assert claims.take(NAME)
        assert not draft.exists()
    assert list(tmp_path.iterdir()) == []


def test_what_killed_workers_left_is_removed_by_the_next_one(tmp_path: Path) -> None:
    with held_elsewhere(tmp_path) as process:
        (tmp_path / f".{NAME}.tmp-0123456789abcdef").touch()
        (tmp_path / ".plan.json.tmp-0123456789abcdef").touch()
        with Claims(tmp_path):
            assert sorted(path.name for path in tmp_path.iterdir()) == [
                f".{NAME}.claim",
                f".{NAME}.tmp-0123456789abcdef",
            ]
        process.kill()
        process.wait()
        with Claims(tmp_path):
            assert list(tmp_path.iterdir()) == []


def test_an_identifier_that_is_used_again_is_not_the_holder(tmp_path: Path) -> None:
    """Containers and long runs give the number of a dead process to another one."""
    with Claims(tmp_path) as claims:
        assert claims.take(NAME)
        told = json.loads((tmp_path / f".{NAME}.claim").read_text())
    holder = Holder(**told)
    assert holder.pid == os.getpid()
    assert not holder.is_gone()
    assert Holder(**{**told, "begun": told["begun"] + "1"}).is_gone()
    assert not Holder(**{**told, "begun": "0", "processes": "of another host"}).is_gone()


def test_a_worker_that_cannot_be_seen_is_given_up_after_it_was_silent(
    tmp_path: Path, elsewhere: Callable[[], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    with Claims(tmp_path) as claims:
        path = elsewhere()
        assert not claims.take(NAME)
        clock[0] = claims_module.STALE_S - 1
        assert not claims.take(NAME)
        os.utime(path, ns=(1, 1))  # it lives, whatever its clock says
        clock[0] = 2 * claims_module.STALE_S - 2
        assert not claims.take(NAME)
        clock[0] += claims_module.STALE_S
        assert claims.take(NAME)


def test_a_claim_whose_holder_was_killed_before_it_wrote_its_name_becomes_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    with Claims(tmp_path) as claims:
        (tmp_path / f".{NAME}.claim").touch()
        assert not claims.take(NAME)
        clock[0] = claims_module.STALE_S
        assert claims.take(NAME)


def test_a_held_claim_is_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims_module, "HEARTBEAT_S", 0.01)
    with Claims(tmp_path) as claims:
        assert claims.take(NAME)
        path = tmp_path / f".{NAME}.claim"
        os.utime(path, ns=(1, 1))
        deadline = time.monotonic() + 10
        while path.stat().st_mtime_ns == 1 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert path.stat().st_mtime_ns > 1


def test_a_worker_that_slept_does_not_remove_the_claim_of_its_successor(
    tmp_path: Path, elsewhere: Callable[[], Path]
) -> None:
    with Claims(tmp_path) as claims:
        assert claims.take(NAME)
        (tmp_path / f".{NAME}.claim").unlink()
        path = elsewhere()
        claims.release(NAME)
        assert path.exists()


def test_a_claim_that_was_renewed_in_the_last_moment_is_put_back(
    tmp_path: Path, elsewhere: Callable[[], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    with Claims(tmp_path) as claims:
        path = elsewhere()
        assert not claims.take(NAME)
        clock[0] = claims_module.STALE_S
        look = claims_module._look
        renewed = json.dumps({**json.loads(path.read_text()), "token": "successor"})

        def late(at: Path) -> object:
            found = look(at)
            if at == path:  # another one takes it over after this look
                path.unlink()
                path.write_text(renewed)
            return found

        monkeypatch.setattr(claims_module, "_look", late)
        assert not claims.take(NAME)
        assert path.read_text() == renewed


def test_who_waits_says_for_whom_and_gets_the_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims_module, "POLL_S", 0.01)
    told: list[str] = []
    with held_elsewhere(tmp_path) as process:

        def on_wait(who: str) -> None:
            told.append(who)
            process.send_signal(signal.SIGKILL)
            process.wait()

        with Claims(tmp_path, on_wait=on_wait) as claims, claims.holding(NAME):
            assert told == [f"process {process.pid} on {os.uname().nodename}"]


def test_one_claim_that_was_lost_does_not_keep_others_from_being_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims_module, "HEARTBEAT_S", 0.01)
    touch, lost = os.utime, list[int]()

    def utime(descriptor: int, *arguments: object, **options: object) -> None:
        if not lost:
            lost.append(descriptor)
        if descriptor == lost[0]:
            raise OSError(errno.ESTALE, "Stale file handle")
        touch(descriptor)

    with Claims(tmp_path) as claims:
        assert claims.take("a")
        assert claims.take("b")
        second = tmp_path / ".b.claim"
        touch(second, ns=(1, 1))
        monkeypatch.setattr(os, "utime", utime)
        deadline = time.monotonic() + 10
        while second.stat().st_mtime_ns == 1 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert lost
        assert second.stat().st_mtime_ns > 1


def test_a_process_that_the_system_hides_has_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where /proc is mounted with `hidepid`, processes of other users are not seen there."""
    other = Holder(**{**asdict(myself()), "pid": 1, "begun": "1", "token": "t"})
    assert other.is_gone(), "process 1 began at another time"
    read = Path.read_text

    def hidden(path: Path, *arguments: Any, **options: Any) -> str:
        if path == Path("/proc/1/stat"):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory")
        return read(path, *arguments, **options)

    def kill(pid: int, number: int) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(Path, "read_text", hidden)
    monkeypatch.setattr(os, "kill", kill)
    assert not other.is_gone()


@pytest.mark.parametrize("function", ["open", "read"])
def test_a_claim_that_another_host_gives_back_in_this_moment_is_free(
    tmp_path: Path,
    elsewhere: Callable[[], Path],
    monkeypatch: pytest.MonkeyPatch,
    function: str,
) -> None:
    with Claims(tmp_path) as claims:
        path = elsewhere()
        real = getattr(os, function)

        def stale(*arguments: Any) -> Any:
            if function == "read" or arguments[1] & os.O_CREAT == 0:
                raise OSError(errno.ESTALE, "Stale file handle")
            return real(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(os, function, stale)
            assert not claims.take(NAME)
        path.unlink()
        assert claims.take(NAME)


def test_a_claim_that_may_not_be_read_is_stale_when_it_is_not_touched(
    tmp_path: Path, elsewhere: Callable[[], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, real = [0.0], os.open
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    with Claims(tmp_path) as claims:
        elsewhere()

        def refuse(name: Any, flags: int, *arguments: int) -> int:
            if ".claim" in str(name) and not flags & os.O_CREAT:
                raise PermissionError(errno.EACCES, "Permission denied")
            return real(name, flags, *arguments)

        monkeypatch.setattr(os, "open", refuse)
        assert not claims.take(NAME)
        clock[0] = claims_module.STALE_S
        assert claims.take(NAME)


def test_a_disk_that_is_full_leaves_no_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(descriptor: int, content: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with Claims(tmp_path) as claims:
        monkeypatch.setattr(os, "write", write)
        with pytest.raises(ClinitError, match="No space left on device"):
            claims.take(NAME)
        assert list(tmp_path.iterdir()) == []


def test_many_holders_are_told_in_few_words(
    tmp_path: Path, elsewhere: Callable[[], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims_module, "POLL_S", 0.001)
    told: list[str] = []
    with Claims(tmp_path, on_wait=told.append) as claims:
        content = json.loads(elsewhere().read_text())
        for number in range(12):
            name = f"shard-{number:05d}.h5"
            holder = json.dumps({**content, "pid": 7 + number})
            (tmp_path / f".{name}.claim").write_text(holder)
            assert not claims.take(name)
        claims.wait([f"shard-{number:05d}.h5" for number in range(12)])
        claims.wait(["never.h5"])
    assert told == ["process 7 on far and 11 more", "another worker"]


@pytest.mark.parametrize("kind", ["link", "folder"])
def test_what_is_no_claim_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f".{NAME}.claim"
    with Claims(tmp_path) as claims:
        if kind == "link":
            path.symlink_to(tmp_path / "elsewhere")
        else:
            path.mkdir()
        with pytest.raises(ClinitError) as caught:
            claims.take(NAME)
        assert (
            str(caught.value) == f"{path} is a link or no regular file: it is not a claim of clinit"
        )
        assert not (tmp_path / "elsewhere").exists()


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    with Claims(folder) as claims:
        folder.rmdir()
        with pytest.raises(ClinitError, match=f"cannot write into {folder}: No such file"):
            claims.take(NAME)
