"""Claims: several workers share the shards of a folder, and none is computed twice.

A claim on `shard-00012.h5` is the file `.shard-00012.h5.claim`, which says who holds it. It is
created exclusively, which network file systems guarantee between hosts; they need no service for
locks. Its holder touches it every ten seconds. A claim is stale, and is taken over, once its
process is seen to be gone, or once it has not been touched for ninety seconds by the clock of the
one who waits: clocks of hosts differ.

A claim only saves work. Whoever loses one while it sleeps computes the same bits as its successor,
and writes its draft again where that was swept; that no reader sees half a shard and no finished
one is lost rests on the renames of `commit`.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

import msgspec

from clinit.errors import LOOK_AT_STORAGE, ClinitError, StorageError
from clinit.extract.holder import Holder, myself
from clinit.files.commit import DRAFT, draft_of, hidden_stem

HEARTBEAT_S = 10.0
"""Seconds between two touches of a claim that is held."""
STALE_S = 90.0
"""Seconds without a touch after which a claim is taken over; NFS shows a file up to 60 s late."""
POLL_S = 1.0
"""Seconds between two looks at the claims of others, at first."""
_MOST_BYTES = 4096
_SUFFIX = ".claim"


@dataclass(slots=True)
class _Held:
    """A claim of this worker."""

    path: Path
    descriptor: int


@dataclass(frozen=True, slots=True)
class _Seen:
    """A claim of somebody else, when it was last seen to change."""

    state: tuple[int, int]
    """Number and time of the file."""
    at: float
    holder: Holder | None
    """None where it does not say (yet)."""


class Claims:
    """The claims of one worker on files of a folder, which exists; all end with the context."""

    def __init__(
        self,
        folder: Path,
        *,
        of: str | None = None,
        on_wait: Callable[[str], None] = lambda who: None,
    ) -> None:
        """Claim nothing yet.

        Args:
            folder: Where the files are.
            of: The one file that this worker writes there; None for any, in a folder that holds
                nothing but what is claimed so.
            on_wait: Told every few seconds whom this worker waits for.
        """
        self._stem = None if of is None else hidden_stem(of)
        self._folder = folder
        self._on_wait = on_wait
        self._held: dict[str, _Held] = {}
        self._seen: dict[str, _Seen] = {}
        self._guard = threading.Lock()
        self._ended = threading.Event()
        self._heart: threading.Thread | None = None
        self._waits = 0
        """How often in a row this worker has waited."""

    def __enter__(self) -> Claims:
        """Remove what killed workers left."""
        self.sweep()
        return self

    def sweep(self) -> None:
        """Remove the claims of killed workers, and drafts that nobody will finish."""
        with os.scandir(self._folder) as entries:
            stem = self._stem
            starts = (".",) if stem is None else (f".{stem}.", f"..{stem}{_SUFFIX}.")
            names = [entry.name for entry in entries if entry.name.startswith(starts)]
        for name in names:
            if name.endswith(_SUFFIX) and (found := _look(self._folder / name)) is not None:
                state, holder = found
                if holder is not None and holder.is_gone():
                    _break(self._folder / name, _Seen(state, 0.0, holder))
        for name in names:
            # A draft is written under a claim. Had its writer finished between these two looks,
            # it would bear another name by now.
            if (draft := DRAFT.fullmatch(name)) is not None:
                claim = self._folder / f".{draft['stem']}{_SUFFIX}"
                if not os.path.lexists(claim):
                    _remove(self._folder / name)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Give all claims back."""
        self._ended.set()
        for name in list(self._held):
            self.release(name)
        if self._heart is not None:
            self._heart.join()

    def take(self, name: str) -> bool:
        """Claim a file; return False where somebody else works on it.

        Raises:
            ClinitError: If the folder cannot be written, or what is there is no claim.
        """
        path = self._path(name)
        if self._create(name, path):
            return True
        if not self._is_stale(name, path):
            return False
        _break(path, self._seen.pop(name))
        return self._create(name, path, sweep=True)

    def release(self, name: str) -> None:
        """Give a claim back, unless somebody has taken it over."""
        with self._guard:
            held = self._held.pop(name)
        with suppress(OSError):
            if os.path.samestat(held.path.lstat(), os.fstat(held.descriptor)):
                held.path.unlink()
        os.close(held.descriptor)

    @contextmanager
    def holding(self, name: str) -> Iterator[None]:
        """Claim a file, after others if need be."""
        while not self.take(name):
            self.wait([name])
        with ExitStack() as stack:
            stack.callback(self.release, name)
            yield

    def wait(self, names: list[str]) -> None:
        """Wait a moment for the holders of `names`, which could not be claimed."""
        holders = [seen.holder for name in names if (seen := self._seen.get(name)) is not None]
        who = list(dict.fromkeys(map(str, filter(None, holders)))) or ["another worker"]
        self._on_wait(who[0] if len(who) == 1 else f"{who[0]} and {len(who) - 1} more")
        # Many workers wait for the last shards: they look less often the longer that takes.
        time.sleep(POLL_S * min(1.2**self._waits, 8))
        self._waits += 1

    def _path(self, name: str) -> Path:
        return self._folder / f".{hidden_stem(name)}{_SUFFIX}"

    def _create(self, name: str, path: Path, *, sweep: bool = False) -> bool:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            descriptor = os.open(path, flags, 0o666)
        except FileExistsError:
            return False
        except OSError as error:
            raise _cannot_write(self._folder, error) from error
        try:
            os.write(descriptor, msgspec.json.encode(asdict(myself())))
        except OSError as error:
            os.close(descriptor)
            _remove(path)
            raise _cannot_write(self._folder, error) from error
        self._waits = 0
        with self._guard:
            self._held[name] = _Held(path, descriptor)
        self._seen.pop(name, None)
        if sweep:
            for draft in self._folder.glob(f".{hidden_stem(name)}.tmp-*"):
                _remove(draft)
        if self._heart is None:
            self._heart = threading.Thread(target=self._beat, name="claims", daemon=True)
            self._heart.start()
        return True

    def _beat(self) -> None:
        while not self._ended.wait(HEARTBEAT_S):
            with self._guard:
                for held in self._held.values():
                    with suppress(OSError):  # taken over, or gone with its storage
                        os.utime(held.descriptor)

    def _is_stale(self, name: str, path: Path) -> bool:
        """Look at the claim of somebody else; remember when it was last seen to change."""
        found = _look(path)
        if found is None:  # given back in this moment
            self._seen.pop(name, None)
            return False
        state, holder = found
        before, now = self._seen.get(name), time.monotonic()
        if before is None or before.state != state or before.holder != holder:
            self._seen[name] = before = _Seen(state, now, holder)
        return (holder is not None and holder.is_gone()) or now - before.at >= STALE_S


def _look(path: Path) -> tuple[tuple[int, int], Holder | None] | None:
    """Return the state of a claim and its holder; None where there is none (any more).

    It is opened, because network file systems show the attributes of a closed file late.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return _unopened(path, error)
    try:
        status = os.fstat(descriptor)
        content = os.read(descriptor, _MOST_BYTES) if stat.S_ISREG(status.st_mode) else None
    except OSError as error:
        if error.errno == errno.ESTALE:  # it was given back on another host
            return None
        raise _cannot_read(path, error) from error
    finally:
        os.close(descriptor)
    if content is None:
        raise _no_claim(path)
    holder = None
    with suppress(msgspec.MsgspecError):  # its holder is about to write it, or was killed then
        holder = msgspec.json.decode(content, type=Holder)
    return _state(status), holder


def _unopened(path: Path, error: OSError) -> tuple[tuple[int, int], None] | None:
    """Return what is known of a claim that cannot be opened."""
    if error.errno in (errno.ENOENT, errno.ESTALE):
        return None
    if error.errno in (errno.ELOOP, errno.EMLINK, errno.EISDIR, errno.ENXIO):
        raise _no_claim(path) from error
    if error.errno != errno.EACCES:
        raise _cannot_read(path, error) from error
    with suppress(FileNotFoundError):
        return _state(path.lstat()), None  # another user's: it is stale when it is not touched
    return None


def _state(status: os.stat_result) -> tuple[int, int]:
    return status.st_ino, status.st_mtime_ns


def _break(path: Path, stale: _Seen) -> None:
    """Remove a stale claim, unless it is another one by now."""
    aside = draft_of(path)
    with suppress(FileNotFoundError):  # somebody was faster
        if _look(path) != (stale.state, stale.holder):
            return
        path.rename(aside)
        if _look(aside) != (stale.state, stale.holder):
            with suppress(OSError):  # it was another worker's new one: back to its place
                os.link(aside, path, follow_symlinks=False)
        aside.unlink()


def _remove(draft: Path) -> None:
    with suppress(OSError):
        draft.unlink()


def _no_claim(path: Path) -> ClinitError:
    return ClinitError(
        f"{path} is a link or no regular file: it is not a claim of clinit",
        remedy="Look where this folder is from; remove this file if you trust the rest.",
    )


def _cannot_read(path: Path, error: OSError) -> StorageError:
    return StorageError(f"cannot read {path}: {error.strerror or error}", remedy=LOOK_AT_STORAGE)


def _cannot_write(path: Path, error: OSError) -> ClinitError:
    return ClinitError(
        f"cannot write into {path}: {error.strerror or error}",
        remedy="Free space or choose a folder you can write, then run the same command again.",
    )
