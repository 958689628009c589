"""Pairs: two processes on one --out, at once.

The first is held at one of its file operations while the second runs; or both run freely. With
`one pid` both believe that they have the same process number, as in two containers. What a process
that ends well has made must be there, whole, as when it runs alone. The other is refused in a
sentence, before it computes; extractions share the work instead, and do nothing twice.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from fault_trials.results import Results, litter, results
from fault_trials.server import Done, Job
from fault_trials.shim import COMPUTED
from fault_trials.trial import Failure, Place, Trial, manners
from fault_trials.workload import COMMANDS, Command

PID = 4242
HOLD_S = 4.0
"""How long the first is held while the second does not end: it may be waiting for the first."""
SHARES = (None, 0.0, 0.15, 0.5, 0.9, 0.3, 0.7, 0.05, 1.0)
"""Where the first is held, as a share of its file operations; None: nowhere."""
REPLACED = (
    *("manifest build", "export", "export of another", "report --plot", "report --html"),
    "predict --csv",
)
"""Commands whose file is replaced by the next: the last one wins."""
SHARED = ("extract", "extract --manifest", "extract --views")
"""Commands that two processes do together."""


def _changed(name: str, command: str, *more: str, without: Sequence[str] = ()) -> Command:
    base = COMMANDS[command]
    words = tuple(word for word in base.words if word not in without)
    return Command(name, (*words, *more), base.target)


OTHERS: Mapping[str, Command] = {
    command.name: command
    for command in (
        _changed("train-head, random", "train-head", "--init", "random"),
        _changed("train-head, class-mean", "train-head", "--init", "class-mean"),
        _changed("train-head, seed 1", "train-head", "--seed", "1"),
        _changed("align, cross entropy", "align", "--loss", "ce"),
        _changed("extract, train", "extract", "--split", "train"),
        _changed("extract, val", "extract", "--split", "val"),
        _changed("extract, float32", "extract", "--dtype", "float32"),
        _changed("import, val", "cache import", "--split", "val"),
        _changed("sweep, seed 3", "sweep", "seed=3", without=["seed=0:2"]),
        _changed("train-top, seed 1", "train-top", "--seed", "1"),
    )
} | {
    "export of another": Command(
        "export of another",
        tuple(w.replace("/random", "/class-mean-calibrated") for w in COMMANDS["export"].words),
        COMMANDS["export"].target,
    ),
    "train-head beside train-top": Command(
        "train-head beside train-top",
        tuple(w.replace("{out}/runs", "{out}/top") for w in COMMANDS["train-head"].words),
        "top",
    ),
    "sweep beside train-head": Command(
        "sweep beside train-head",
        tuple(w.replace("{out}/sweep", "{out}/runs") for w in COMMANDS["sweep"].words),
        "runs",
    ),
}  # fmt: skip
DIFFERENT = (
    *(("train-head, random", "train-head, class-mean"), ("train-head", "train-head, seed 1")),
    *(("align", "align, cross entropy"), ("extract, train", "extract, val")),
    *(("extract", "extract, float32"), ("extract", "cache import"), ("sweep", "sweep, seed 3")),
    *(("cache import", "import, val"), ("export", "export of another")),
    *(("train-top", "train-head beside train-top"), ("train-head", "sweep beside train-head")),
    ("train-top", "train-top, seed 1"),
)


def command_named(name: str) -> Command:
    """Return a command of the workload or of this module."""
    return COMMANDS[name] if name in COMMANDS else OTHERS[name]


def pairs(*, count: int) -> Iterator[Trial]:
    """Yield about `count` trials: every pair freely, then held at one operation after another."""
    couples = [*((name, name) for name in COMMANDS), *DIFFERENT]
    rounds = -(-count // (2 * len(couples)))
    for share in SHARES[:rounds]:
        for first, second in couples:
            for pid in (None, PID):
                yield pair(first, second, share, pid)


def pair(first: str, second: str, share: float | None, pid: int | None = None) -> Trial:
    """Return the trial of two commands.

    Args:
        first: Name of the command that is held.
        second: That of the other.
        share: Where it is held, as a share in [0, 1] of its file operations; None: nowhere.
        pid: The process number that both have; None: each has its own.
    """
    held = "freely" if share is None else f"held at {share:.2f}"
    name = f"{first} and {second}, {held}{', one pid' if pid else ''}"
    group = first if first == second else "two different commands"
    return Trial("pairs", group, name, _run(first, second, share, pid))


def _run(
    first: str, second: str, share: float | None, pid: int | None
) -> Callable[[Place, Path], list[Failure]]:
    def run(place: Place, folder: Path) -> list[Failure]:
        alone = [_alone(place, name) for name in (first, second)]
        out, paused, go = folder / "out", folder / "paused", folder / "go"
        shim = {"scope": str(out), "computing": True, **({"pid": pid} if pid else {})}
        hold = {}
        if share is not None:
            at = 1 + round(share * (alone[0][1] - 1))
            hold = {"mode": "pause", "at": at, "paused": str(paused), "go": str(go)}

        def start(name: str, command: str, more: Mapping[str, object]) -> int:
            argv = command_named(command).argv(place.work, out)
            return place.server.start(Job(argv=argv, out=folder, name=name, shim={**shim, **more}))

        one = start("first", first, hold)
        while share is not None and not paused.exists():
            if place.server.ended(one, within_s=0.005):
                break
        two = start("second", second, {})
        if share is not None:
            place.server.ended(two, within_s=HOLD_S)
        go.touch()
        done = [place.server.wait(one), place.server.wait(two)]
        found = _verdict((first, second), done, out, [each[0] for each in alone])
        both = all(each.code == 0 and _computed(each) for each in done)
        if both and paused.exists() and first == second and first not in (*REPLACED, *SHARED):
            found.append(Failure("other", "both have computed, one of them in vain"))
        in_vain = sum(map(_computed, done)) - alone[0][2]
        if both and first == second and first in SHARED and in_vain:
            found.append(Failure("other", f"{in_vain} images were computed twice"))
        return found

    return run


_ALONE: dict[tuple[Path, str], tuple[Results, int, int]] = {}


def _alone(place: Place, name: str) -> tuple[Results, int, int]:
    """Return what a command makes alone, its file operations, and what it computes."""
    key = (place.work, name)
    if key not in _ALONE:
        folder = place.scratch / "alone"
        shutil.rmtree(folder, ignore_errors=True)
        out = folder / "out"
        argv = command_named(name).argv(place.work, out)
        shim = {"scope": str(out), "computing": True}
        done = place.server.run(Job(argv=argv, out=folder, shim=shim))
        if done.code != 0:
            raise RuntimeError(f"`clinit {' '.join(argv)}` failed:\n{done.stderr}")
        operations = [line for line in done.log if not line.startswith(f"{COMPUTED} ")]
        _ALONE[key] = (results(out), len(operations), _computed(done))
    return _ALONE[key]


def _verdict(
    commands: tuple[str, str], done: Sequence[Done], out: Path, alone: Sequence[Results]
) -> list[Failure]:
    found = []
    for which, each in zip(("first", "second"), done, strict=True):
        found += [Failure(bad.kind, f"{which}: {bad.what}") for bad in manners(each, ends=(0, 1))]
        computed = _computed(each)
        if each.code == 1 and computed:
            found.append(
                Failure("other", f"{which}: refused after computing {computed:,}: {each.said}")
            )
    if all(each.code != 0 for each in done):
        found.append(Failure("lost", f"both are refused: {done[0].said} / {done[1].said}"))
    found += _missing(commands, done, results(out) if out.exists() else {}, alone)
    if out.exists() and (left := litter(out)):
        found.append(Failure("other", f"draft left: {left[0]}"))
    return found


def _computed(done: Done) -> int:
    """Return the number of updates and images."""
    return sum(line.startswith(f"{COMPUTED} ") for line in done.log)


def _missing(
    commands: tuple[str, str], done: Sequence[Done], there: Results, alone: Sequence[Results]
) -> list[Failure]:
    """Return what a process that ended well has made and is not there as it made it."""
    same = commands[0] == commands[1]
    found = []
    for each, name, wanted in zip(done, commands, alone, strict=True):
        if each.code != 0:
            continue
        if same:
            absent = [path for path in wanted if path not in there]
            other = [path for path in there if there[path] != wanted.get(path)]
        else:
            # Names depend on what was there before; the rest, on which runs were together.
            left = (".json", ".db", "points.parquet")
            kept = {k: v for k, v in wanted.items() if not k.endswith(left)}
            names = {path.rsplit("/", 1)[-1] for path in there}
            absent = [path for path in kept if path.rsplit("/", 1)[-1] not in names]
            own = [path for path in kept if kept[path] not in there.values()]
            other = [] if name in REPLACED else [path for path in own if path not in absent]
        if absent:
            found.append(Failure("lost", f"{name}: {len(absent)} missing, {absent[0]}"))
        if other:
            found.append(Failure("silently changed", f"{name}: {len(other)} other, {other[0]}"))
    return found[:2]
