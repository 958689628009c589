"""What a hostile trial is made of, and when it has failed."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import random
import re
import shutil
import signal
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fault_trials.damage import READERS, find
from fault_trials.server import Done, Job
from fault_trials.trial import Failure, Place, Trial, manners
from fault_trials.workload import COMMANDS, Command

MORE_MEMORY = 3 << 30
CPU_S = 20
TIMEOUT_S = 40.0
_MEMORY = re.compile(r"can't allocate|allocate|[Oo]ut of memory|not enough memory|MemoryError")
Argv = Sequence[str]


@dataclass(slots=True)
class Scene:
    """The folder of a trial: a workload of links, something to be harmed, and the --out."""

    place: Place
    folder: Path
    rng: random.Random
    shim: dict[str, Any] | None = None
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.work.mkdir()
        self.out.mkdir()
        for entry in self.place.work.iterdir():
            (self.work / entry.name).symlink_to(entry)
        self.victim.parent.mkdir()
        self.victim.write_bytes(b"what somebody has worked on for years\n")

    @property
    def work(self) -> Path:
        """A folder that reads like the workload."""
        return self.folder / "work"

    @property
    def out(self) -> Path:
        """Where the command may write."""
        return self.folder / "out"

    @property
    def victim(self) -> Path:
        """A file that nobody may change."""
        return self.folder / "victims" / "precious"

    @property
    def marker(self) -> Path:
        """A file that is made by code that must not run."""
        return self.folder / "victims" / "marker"

    def own(self, path: str) -> Path:
        """Return a file of the workload, in a copy that may be changed."""
        relative = find(self.place.work, path).relative_to(self.place.work)
        top = self.work / relative.parts[0]
        if top.is_symlink():
            source = top.resolve()
            top.unlink()
            if source.is_dir():
                shutil.copytree(source, top)
            else:
                shutil.copy(source, top)
        return self.work / relative

    def reader(self, name: str) -> list[str]:
        """Return a command of `fault_trials.damage` that reads this workload."""
        return Command(name, READERS[name], "").argv(self.work, self.out)

    def writer(self, name: str) -> list[str]:
        """Return a command of `fault_trials.workload` that writes into this folder."""
        return COMMANDS[name].argv(self.work, self.out)

    def evil_pickle(self) -> Path:
        """Write a pickle that makes the marker when it is loaded."""
        path = self.folder / "evil.pth"

        class Evil:
            def __reduce__(self_) -> tuple[Any, ...]:  # noqa: N805
                return (os.mkdir, (str(self.marker),))

        path.write_bytes(pickle.dumps({"state_dict": Evil()}))
        return path


Make = Callable[[Scene], Argv]


def trial(
    group: str,
    name: str,
    make: Make,
    *,
    seed: str,
    refused: bool = False,
    more_memory: int = MORE_MEMORY,
) -> Trial:
    """Return a trial.

    Args:
        group: Kind of input.
        name: Of this one.
        make: Prepares the scene; returns the command line.
        seed: Of its choices.
        refused: Whether exit 0 is a failure.
        more_memory: Bytes of address space beyond what a command that does nothing has.
    """

    def run(place: Place, folder: Path) -> list[Failure]:
        scene = Scene(place, folder, random.Random(f"{seed} {group} {name}"))
        argv = make(scene)
        before = _untouched(scene)
        done = place.server.run(
            Job(
                argv=argv,
                out=folder,
                name="hostile",
                shim=scene.shim,
                more_memory=more_memory,
                cpu_s=CPU_S,
                timeout_s=TIMEOUT_S,
                environment=scene.environment,
            )
        )
        found = _judged(done, refused=refused)
        if scene.marker.exists():
            found.append(Failure("run or touched", "the input has made its marker"))
        elif _untouched(scene) != before:
            found.append(Failure("run or touched", "a file outside --out was changed"))
        return [Failure(each.kind, f"{argv[0]}: {each.what}") for each in found]

    return Trial("hostile", group, name, run)


def _judged(done: Done, *, refused: bool) -> list[Failure]:
    """Return what is wrong with the answer to a hostile input."""
    if done.code in (-signal.SIGKILL, -signal.SIGXCPU) and not done.stopped:
        return [Failure("hang", f"more than {CPU_S} s of CPU time")]
    if found := manners(done):
        return found
    if done.code != 0 and _MEMORY.search(done.stderr):
        return [Failure("hang", f"more memory than its limit: {done.said[-160:]}")]
    if done.code == 0 and refused:
        return [Failure("silently changed", f"taken: {done.stdout.strip()[-160:]!r}")]
    if done.code == 0 and re.search(r"\bnan\b", done.stdout, re.IGNORECASE):
        return [Failure("silently changed", "says nan, exit 0")]
    return []


def _untouched(scene: Scene) -> dict[str, tuple[bytes, int]]:
    return {
        str(path): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(scene.victim.parent.rglob("*"))
        if path.is_file()
    }


def beside(scene: Scene, path: str) -> None:
    """Put files where the command looks for them."""
    if path.endswith(".checkpoint"):
        (scene.out / "top").mkdir()
        shutil.copy(scene.work / path, scene.out / "top" / "random.checkpoint")


def header_of(content: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the header of a safetensors file, and what comes after it."""
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def joined(header: str, rest: bytes) -> bytes:
    """Return a safetensors file with this header."""
    written = header.encode("utf-8", "surrogatepass")
    written += b" " * (-len(written) % 8)
    return struct.pack("<Q", len(written)) + written + rest


def sha256(content: bytes) -> str:
    """Return the SHA-256 of some bytes."""
    return hashlib.sha256(content).hexdigest()
