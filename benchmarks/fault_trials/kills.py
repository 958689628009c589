"""Kills: every writing command is killed, or fails, at one of its file operations, and run again.

After the second run everything that counts must be there, to the bit as from a run that nobody
disturbed, and no draft may be left. A second run that is refused is right only where the first
had finished. What a command says when an operation fails is an error of one sentence.
"""

from __future__ import annotations

import random
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fault_trials.results import compare, litter, results
from fault_trials.server import Done, Job
from fault_trials.shim import KINDS as KINDS_OF_MODE
from fault_trials.trial import Failure, Place, Trial, manners
from fault_trials.workload import COMMANDS, Command

SHARES = {
    "kill": 8,
    "after": 6,
    "enospc": 3,
    "short": 2,
    "eio": 2,
    "eacces": 2,
    "edquot": 1,
    "emfile": 1,
    "term": 3,
    "int": 3,
}
"""How often each mode is tried, of their sum."""
DEADLY = ("kill", "after")
POLITE = {"term": 128 + signal.SIGTERM, "int": 128 + signal.SIGINT}
"""Exit codes of a command that is asked to end."""
READS = ("eio", "enomem", "emfile")
"""How the reading of an image fails."""
MEMORY = ("runtime", "memory")
LOCKS = ("enolck", "enosys", "eopnotsupp")


@dataclass(frozen=True, slots=True)
class Undisturbed:
    """What a command does where nothing happens to it."""

    operations: tuple[str, ...]
    reads: int
    decodes: int
    results: dict[str, str]


def kills(place: Place, *, count: int, seed: int) -> Iterator[Trial]:
    """Yield about `count` trials, evenly over the commands and over the operations of each.

    Every third of those that are killed is killed once more as it goes on.

    Args:
        place: Used to look at each command once, undisturbed.
        count: Of all commands.
        seed: Of the choice of operations.
    """
    each = -(-count // len(COMMANDS))
    for command in COMMANDS.values():
        whole = undisturbed(place, command)
        rng = random.Random(f"{seed} {command.name}")
        yield from _special(command, whole, rng)
        modes = [mode for mode, share in SHARES.items() for _ in range(share)]
        rng.shuffle(modes)
        for index in range(each):
            mode = modes[index % len(modes)]
            possible = _operations(whole.operations, mode)
            if not possible:
                continue
            # A stratum of the run for each trial, so that no stretch of it is left out.
            low, high = index * len(possible) // each, (index + 1) * len(possible) // each
            at = possible[rng.randrange(low, max(high, low + 1))]
            then = rng.randrange(1, len(whole.operations) + 1)
            again = {"mode": "kill", "at": then} if mode in DEADLY and index % 3 == 0 else None
            yield _trial(command, whole, {"mode": mode, "at": at}, again)


def kill(place: Place, name: str, mode: str, share: float) -> Trial:
    """Return the trial of a command at a share, in [0, 1], of the operations that `mode` is for."""
    whole = undisturbed(place, COMMANDS[name])
    possible = _operations(whole.operations, mode)
    at = possible[round(share * (len(possible) - 1))]
    return _trial(COMMANDS[name], whole, {"mode": mode, "at": at})


def broken_decoding(place: Place, name: str, mode: str) -> Trial:
    """Return the trial of a command that runs out of memory at its third image."""
    shim = {"mode": mode, "at": 3, "watch": "decode"}
    return _trial(COMMANDS[name], undisturbed(place, COMMANDS[name]), shim)


def _special(command: Command, whole: Undisturbed, rng: random.Random) -> Iterator[Trial]:
    """Yield the trials of images that cannot be read, of memory, and of locks."""
    for mode in READS if whole.decodes else ():
        at = rng.randrange(1, whole.reads + 1)
        shim = {"mode": mode, "at": at, "watch": "reads"}
        yield _trial(command, whole, shim)
    for mode in MEMORY if whole.decodes else ():
        shim = {"mode": mode, "at": rng.randrange(1, whole.decodes + 1), "watch": "decode"}
        yield _trial(command, whole, shim)
    locks = [i for i, line in enumerate(whole.operations, start=1) if line.startswith("lock ")]
    for mode in LOCKS if locks else ():
        yield _trial(command, whole, {"mode": mode, "at": locks[0]})
    if "{work}/images/base" in command.words:
        for name, rights in (("a class folder without rights", 0), ("one to list only", 0o444)):
            yield Trial("kills", command.name, name, _without_rights(command, whole, rights))


def _operations(operations: Sequence[str], mode: str) -> list[int]:
    wanted = KINDS_OF_MODE.get(mode)
    return [
        number
        for number, line in enumerate(operations, start=1)
        if wanted is None or line.split(" ", 1)[0] in wanted
    ]


_UNDISTURBED: dict[tuple[Path, str], Undisturbed] = {}


def undisturbed(place: Place, command: Command) -> Undisturbed:
    """Run a command that nothing happens to; count what it does.

    Raises:
        RuntimeError: If it fails, or is not the same when it is run again.
    """
    key = (place.work, command.name)
    if key not in _UNDISTURBED:
        folder = place.scratch / "undisturbed" / command.name.replace(" ", "-")
        shutil.rmtree(folder, ignore_errors=True)
        found = {
            watch: _counted(place, command, folder, watch)
            for watch in ("writes", *(("reads", "decode") if command.sees_images else ()))
        }
        first, *others = (results(folder / watch) for watch in found)
        for other in others:
            if other != first:
                differing = compare(other, first)
                raise RuntimeError(f"`clinit {command.name}` twice is not the same: {differing}")
        logs = [done.log for done in found.values()]
        reads, decodes = [len(log) for log in logs[1:]] or [0, 0]
        _UNDISTURBED[key] = Undisturbed(logs[0], reads, decodes, first)
        shutil.rmtree(folder)
    return _UNDISTURBED[key]


def _counted(place: Place, command: Command, folder: Path, watch: str) -> Done:
    out = folder / watch
    scope = out if watch != "reads" else place.work / "images"
    argv = command.argv(place.work, out)
    shim = {"scope": str(scope), "watch": watch}
    done = place.server.run(Job(argv=argv, out=folder, name=watch, shim=shim))
    if done.code != 0:
        raise RuntimeError(f"`clinit {' '.join(argv)}` failed:\n{done.stderr}")
    return done


def _trial(
    command: Command,
    whole: Undisturbed,
    shim: dict[str, Any],
    then: dict[str, Any] | None = None,
) -> Trial:
    """Return the trial of one disturbance, and another as the command is run again."""
    name = f"{shim['mode']} at {shim['at']}"
    if watch := shim.get("watch"):
        name += f" of {watch}"
    else:
        kind, _, path = whole.operations[shim["at"] - 1].partition(" ")
        file = path.rsplit("/", 1)[-1].partition(".tmp")[0]  # the rest differs from run to run
        name += f" ({kind} {file})".replace(" )", ")")
    if then is not None:
        name += f", then {then['mode']} at {then['at']}"
    return Trial("kills", command.name, name, _run(command, whole, shim, then))


def _run(
    command: Command, whole: Undisturbed, shim: dict[str, Any], then: dict[str, Any] | None
) -> Callable[[Place, Path], list[Failure]]:
    def run(place: Place, folder: Path) -> list[Failure]:
        out = folder / "out"
        argv = command.argv(place.work, out)
        scope = place.work / "images" if shim.get("watch") == "reads" else out
        job = Job(argv=argv, out=folder, name="first", shim={**shim, "scope": str(scope)})
        first = place.server.run(job)
        found = _first(first, shim["mode"], out, whole)
        if then is not None:
            killed = Job(argv=argv, out=folder, name="then", shim={**then, "scope": str(out)})
            place.server.run(killed)
        again = place.server.run(Job(argv=argv, out=folder, name="again"))
        return _merged(found, _again(again, out, whole))

    return run


def _without_rights(
    command: Command, whole: Undisturbed, mode: int
) -> Callable[[Place, Path], list[Failure]]:
    """Take the rights of a class folder away; give them back for the second run."""

    def run(place: Place, folder: Path) -> list[Failure]:
        out, images = folder / "out", folder / "images"
        shutil.copytree(place.work / "images" / "base", images)
        words = [str(images) if w == "{work}/images/base" else w for w in command.words]
        argv = Command(command.name, tuple(words), command.target).argv(place.work, out)
        for closed in images.glob("*/b"):
            closed.chmod(mode)
        folder.chmod(0o777)
        first = place.server.run(Job(argv=argv, out=folder, name="first", unprivileged=True))
        for closed in images.glob("*/b"):
            closed.chmod(0o755)
        found = _first(first, "eacces", out, whole)
        again = place.server.run(Job(argv=argv, out=folder, name="again"))
        return _merged(found, _again(again, out, whole))

    return run


def _merged(first: list[Failure], then: list[Failure]) -> list[Failure]:
    """Return both, but one a kind: what was wrong at first is still wrong afterwards."""
    kinds = {failure.kind for failure in first}
    return first + [failure for failure in then if failure.kind not in kinds]


def _first(done: Done, mode: str, out: Path, whole: Undisturbed) -> list[Failure]:
    """Return what is wrong with the disturbed run."""
    if mode in DEADLY:
        return []
    allowed = (0, 1) if mode not in POLITE else (POLITE[mode], 0)
    found = manners(done, ends=allowed)
    if left := litter(out) if out.exists() and not found else []:
        found.append(Failure("other", f"draft left by a run that could remove it: {left[0]}"))
    if done.code == 0:
        found += differences(out, whole.results, "the disturbed run, exit 0:")
    return found


def _again(done: Done, out: Path, whole: Undisturbed) -> list[Failure]:
    """Return what is wrong after the second run."""
    found = manners(done, ends=(0, 1))
    different = differences(out, whole.results, "after the second run:")
    if done.code != 0 and different and not found:
        return [Failure("other", f"the second run is refused: {done.said}")]
    found += different
    if left := litter(out) if out.exists() else []:
        found.append(Failure("other", f"draft left for good: {left[0]}"))
    return found


def differences(out: Path, wanted: dict[str, str], when: str) -> list[Failure]:
    """Return what is missing or other than wanted."""
    missing, other = compare(results(out) if out.exists() else {}, wanted)
    found = []
    if missing:
        found.append(Failure("lost", f"{when} {len(missing)} missing, {missing[0]}"))
    if other:
        found.append(Failure("silently changed", f"{when} {len(other)} other, {other[0]}"))
    return found
