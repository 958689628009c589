"""Trials of the fault campaign: what a failure is, and how one is told again."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fault_trials.server import Done, Server

KINDS = ("lost", "silently changed", "traceback", "hang", "run or touched", "other")
"""Columns of the table: rows or records lost, other results without a word, a traceback or crash,
no end within time or memory, code run or a foreign file touched, and all else: a rerun that is
refused, drafts left for good, a message that is none, control characters in the output."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One thing that went wrong in a trial."""

    kind: str
    """One of `KINDS`."""
    what: str


@dataclass(frozen=True, slots=True)
class Place:
    """Where trials find things."""

    server: Server
    work: Path
    """What there is to read; see `fault_trials.workload`."""
    scratch: Path
    """A folder a trial, below it."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One trial; `run` makes it in a fresh folder and returns what went wrong."""

    part: str
    group: str
    """The row of the table: a command, a file, a kind of input."""
    name: str
    """What tells it from the others of its group; with both a trial can be chosen again."""
    run: Callable[[Place, Path], list[Failure]]

    @property
    def title(self) -> str:
        """Part, group and name: what `--match` is compared with."""
        return f"{self.part}: {self.group}: {self.name}"


@dataclass(slots=True)
class Tally:
    """What has been found so far."""

    trials: Counter[str] = field(default_factory=Counter)
    failed: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Trials by group and kind; one trial may count in several kinds, once in each."""
    failures: list[tuple[Trial, Failure]] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, trial: Trial, found: Sequence[Failure]) -> None:
        """Count a trial."""
        group = f"{trial.part}: {trial.group}"
        self.trials[group] += 1
        for kind in dict.fromkeys(failure.kind for failure in found):
            self.failed[group, kind] += 1
        self.failures += [(trial, failure) for failure in found]


def perform(
    trials: Iterable[Trial], place: Place, on_trial: Callable[[Trial, Tally], None]
) -> Tally:
    """Run trials one after the other, each in a folder that is removed afterwards."""
    tally, started = Tally(), time.perf_counter()
    for number, trial in enumerate(trials):
        folder = place.scratch / f"t{number:05d}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        tally.add(trial, trial.run(place, folder))
        shutil.rmtree(folder, ignore_errors=True)
        tally.seconds = time.perf_counter() - started
        on_trial(trial, tally)
    return tally


def campaign_folder() -> Path:
    """Make a folder for a campaign, in memory where there is such a place; anybody may enter it."""
    memory = Path("/dev/shm")
    inside = memory if os.access(memory, os.W_OK | os.X_OK) else None
    folder = Path(tempfile.mkdtemp(prefix="clinit-faults-", dir=inside))
    folder.chmod(0o755)
    return folder


def spread(trials: Sequence[Trial], limit: int | None) -> Iterator[Trial]:
    """Yield at most `limit` trials, taken evenly from all."""
    if limit is None or limit >= len(trials):
        yield from trials
        return
    for index in range(limit):
        yield trials[index * len(trials) // limit]


def manners(done: Done, *, ends: Sequence[int] = (0, 1, 2)) -> list[Failure]:
    """Return what is wrong with how a command ended, whatever it has done."""
    found = []
    if done.stopped:
        return [Failure("hang", f"no end after {done.seconds:.0f} s")]
    if done.traceback:
        found.append(Failure("traceback", done.traceback))
    elif done.code not in ends:
        found.append(Failure("other", f"exit {done.code}: {done.said or 'nothing said'}"))
    elif done.code == 1 and not is_told(done):
        found.append(Failure("other", f"exit 1 without an error: {done.said or 'nothing said'}"))
    return found + raw_controls(done)


def is_told(done: Done) -> bool:
    """Return whether the error is a sentence that says more than `Error:`."""
    after = done.stderr.partition("Error:")[2].strip()
    warned = "Warning:" in done.stderr or "Error" in done.stderr
    return bool(after) or (warned and "Error:" not in done.stderr)


def raw_controls(done: Done) -> list[Failure]:
    """Return a failure where the output holds a control character, which a terminal obeys."""
    for stream in (done.stdout, done.stderr):
        for where, character in enumerate(stream):
            code = ord(character)
            if (code < 32 and character not in "\n\t") or 127 <= code < 160:
                around = stream[max(0, where - 20) : where + 20]
                return [Failure("run or touched", f"control character in the output: {around!r}")]
    return []
