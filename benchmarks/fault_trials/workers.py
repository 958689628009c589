"""Workers: three processes extract into one cache, one of them is killed, the others complete it.

What they write must be, to the bit, what one process writes, and no shard may be written twice.
After one more command neither drafts nor claims may be left. In every other trial no lock service
answers.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fault_trials.results import Results, litter, results
from fault_trials.server import Done, Job
from fault_trials.trial import Failure, Place, Trial, manners
from fault_trials.workload import COMMANDS

COMMAND = COMMANDS["extract --views"]
MODES = ("kill", "after")
BEFORE_ALL = -1
"""The place of no operation, so that nothing but locks fails."""
TIMEOUT_S = 150.0
"""A claim whose holder was killed before it wrote its name into it is taken over after 90 s."""
SLOW_S = 0.02
"""What each operation of the other two waits: the first must not be left without work."""


def workers(*, count: int) -> Iterator[Trial]:
    """Yield trials in which the first of three is killed at one operation after another."""
    for number in range(count):
        share, mode = (number + 0.5) / count, MODES[number // 2 % len(MODES)]
        yield worker_killed(share, mode, locks=number % 2 == 0)


def worker_killed(share: float, mode: str, *, locks: bool) -> Trial:
    """Return the trial of a worker that is killed.

    Args:
        share: Where, as a share in [0, 1] of a quarter of the operations of one process: three
            share the work.
        mode: `kill` before the operation, `after` it.
        locks: Whether the storage can lock for the other two.
    """
    name = f"{mode} at {share:.3f}{'' if locks else ', no locks'}"
    return Trial("workers", "three extractions", name, _run(share, mode, locks=locks))


def _run(share: float, mode: str, *, locks: bool) -> Callable[[Place, Path], list[Failure]]:
    def run(place: Place, folder: Path) -> list[Failure]:
        wanted, operations = _alone(place)
        out = folder / "out"
        at = 1 + round(share * (len(operations) / 4 - 1))
        others: dict[str, Any] = {"slow": SLOW_S}
        if not locks:
            others |= {"mode": "enolck", "at": BEFORE_ALL}
        shims = [{"mode": mode, "at": at}, others, others]
        jobs = [
            place.server.start(
                Job(
                    argv=COMMAND.argv(place.work, out),
                    out=folder,
                    name=f"worker{number}",
                    shim={"scope": str(out), **shim},
                    timeout_s=TIMEOUT_S,
                )
            )
            for number, shim in enumerate(shims)
        ]
        done = [place.server.wait(job) for job in jobs]
        # Once more: a claim may have been left where nobody came by any more.
        again = place.server.run(Job(argv=COMMAND.argv(place.work, out), out=folder, name="again"))
        return [*_verdict(done, out, wanted, mode), *manners(again, ends=(0,))]

    return run


_ALONE: dict[Path, tuple[Results, tuple[str, ...]]] = {}


def _alone(place: Place) -> tuple[Results, tuple[str, ...]]:
    """Return what one process writes, and its file operations."""
    if place.work not in _ALONE:
        folder = place.scratch / "one-worker"
        shutil.rmtree(folder, ignore_errors=True)
        out = folder / "out"
        job = Job(argv=COMMAND.argv(place.work, out), out=folder, shim={"scope": str(out)})
        done = place.server.run(job)
        if done.code != 0:
            raise RuntimeError(f"`clinit {' '.join(job.argv)}` failed:\n{done.stderr}")
        _ALONE[place.work] = results(out), done.log
    return _ALONE[place.work]


def _verdict(done: list[Done], out: Path, wanted: Results, mode: str) -> list[Failure]:
    found = [] if done[0].code == -9 else [Failure("other", "worker 0 ended before the kill")]
    for number, each in enumerate(done):
        ends = (0, -9) if number == 0 else (0,)
        found += [
            Failure(bad.kind, f"worker {number}: {bad.what}") for bad in manners(each, ends=ends)
        ]
    there = results(out)
    if absent := [path for path in wanted if path not in there]:
        found.append(Failure("lost", f"{len(absent)} missing, {absent[0]}"))
    if other := [path for path in there if there[path] != wanted.get(path)]:
        found.append(Failure("silently changed", f"{len(other)} other, {other[0]}"))
    if twice := [shard for shard, times in _written(done, mode).items() if times > 1]:
        found.append(Failure("other", f"{len(twice)} shards written twice, {twice[0]}"))
    if left := [*litter(out), *(str(path) for path in out.rglob(".*.claim"))]:
        found.append(Failure("other", f"left: {left[0]}"))
    return found


def _written(done: list[Done], mode: str) -> Counter[str]:
    """Return how often each shard was given its name."""
    logs = [list(each.log) for each in done]
    if done[0].code == -9 and mode == "kill":
        logs[0] = logs[0][:-1]  # it was about to
    return Counter(
        line for log in logs for line in log if line.startswith("rename ") and line.endswith(".h5")
    )
