"""Faults: commands that are killed, files that are damaged, hostile input, processes in pairs.

    python benchmarks/faults.py --out benchmarks/
    python benchmarks/faults.py --only damage --match evaluations.parquet

Some thousands of trials with real processes, forked from one that has loaded PyTorch; see the
modules of `fault_trials` for what is done and when a trial has failed. Every trial is told by its
title, which `--match` chooses again. `tests/faults` takes a sample of the same trials.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

from fault_trials.damage import damages
from fault_trials.hostile import hostiles
from fault_trials.kills import kills
from fault_trials.pairs import pairs
from fault_trials.server import Server
from fault_trials.trial import KINDS, Place, Tally, Trial, campaign_folder, perform, spread
from fault_trials.workload import make_work
from turns import processor

COUNTS = {"kills": 660, "damage": 828, "hostile": 2150, "pairs": 250}
"""Trials of each part."""
SHOWN = 120
"""Letters of what went wrong, in the list below the table."""


def trials_of(part: str, place: Place, options: argparse.Namespace) -> Iterator[Trial]:
    """Return the trials of a part."""
    count, seed = round(options.scale * COUNTS[part]), options.seed
    made: dict[str, Callable[[], Iterator[Trial]]] = {
        "kills": lambda: kills(place, count=count, seed=seed),
        "damage": lambda: damages(count=count, seed=seed),
        "hostile": lambda: hostiles(count=count, seed=seed),
        "pairs": lambda: pairs(count=count),
    }
    return made[part]()


def chosen(place: Place, options: argparse.Namespace) -> list[Trial]:
    """Return the trials that are asked for."""
    found = []
    for part in options.only:
        every = list(trials_of(part, place, options))
        matching = [each for each in every if all(word in each.title for word in options.match)]
        found += list(spread(matching, options.limit))
    return found


def show_progress(total: int) -> Callable[[Trial, Tally], None]:
    """Return what is told of each trial: a line that is written over, or one in a hundred."""
    alone = sys.stderr.isatty()

    def told(trial: Trial, tally: Tally) -> None:
        done, failed = sum(tally.trials.values()), len({each.title for each, _ in tally.failures})
        if alone or done % 100 == 0 or done == total:
            line = f"{done:,} of {total:,} trials, {failed:,} failed, {tally.seconds:,.0f} s"
            end = "\r" if alone else "\n"
            print(f"{line}: {trial.title[:60]:60}"[:110], end=end, file=sys.stderr, flush=True)

    return told


def rows_of(tally: Tally, parts: Sequence[str]) -> list[list[str]]:
    """Return the lines of the table: a group, then each part, then all."""
    lines = []
    for part in parts:
        groups = [group for group in tally.trials if group.startswith(f"{part}: ")]
        for group in sorted(groups):
            lines.append([group, *_counts(tally, [group])])
        lines.append([f"**{part}**", *(f"**{cell}**" for cell in _counts(tally, groups))])
    return [*lines, ["**all**", *(f"**{cell}**" for cell in _counts(tally, list(tally.trials)))]]


def _counts(tally: Tally, groups: Sequence[str]) -> list[str]:
    failed = [sum(tally.failed[group, kind] for group in groups) for kind in KINDS]
    return [f"{count:,}" for count in (sum(tally.trials[group] for group in groups), *failed)]


def report(tally: Tally, options: argparse.Namespace) -> str:
    """Return the dated Markdown result."""
    names = ("torch", "timm", "numpy", "h5py", "polars", "safetensors", "optuna", "pillow")
    versions = ", ".join(f"{name} {version(name)}" for name in (*names, "torchcodec"))
    lines = [
        f"# Faults, {datetime.date.today()}",
        "",
        f"{processor()}, {os.cpu_count()} cores, Linux {platform.release()}, Python"
        f" {platform.python_version()}. {versions}. Commit {commit()}.",
        f"Command: `python {shlex.join(sys.argv)}`; {tally.seconds / 60:,.0f} minutes.",
        "",
        "Trials, and in how many of them rows or records were *lost*; a result was *silently"
        " changed*; there was a *traceback* or a crash; no end within time or memory (*hang*); code"
        " of the input was *run or* a foreign file or the terminal *touched*; or *other*: a second"
        " run refused, drafts left for good, no sentence. A trial may count in several columns.",
        "",
        "| | trials | " + " | ".join(KINDS) + " |",
        "|---|" + "---:|" * (len(KINDS) + 1),
        *("| " + " | ".join(line) + " |" for line in rows_of(tally, options.only)),
        "",
    ]
    if tally.failures:
        lines += ["## Failures", "", f"Again: `python {sys.argv[0]} --seed {options.seed}"]
        lines[-1] += f"{f' --scale {options.scale:g}' if options.scale != 1 else ''} --match TITLE`"
        lines[-1] += ", with the title of a line. Places in files that hold times may move."
        lines += ["", *(_line(trial.title, each.kind, each.what) for trial, each in tally.failures)]
        lines.append("")
    return "\n".join(lines)


def _line(title: str, kind: str, what: str) -> str:
    told = " ".join(what.encode("unicode_escape").decode().split())
    return f"* `{printable(title)}`: {kind}: {told[:SHOWN]}".replace("|", "\\|")


def printable(text: str) -> str:
    """Return a title without what does not belong into a document."""
    return text.encode("unicode_escape").decode().replace("`", "'")[:160]


def commit() -> str:
    """Return the commit that is tried, and whether the tree differs from it."""
    folder = Path(__file__).parent

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True)
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no")
    return f"{git('rev-parse', '--short', 'HEAD') or 'unknown'}{' and changes' if changed else ''}"


def main() -> None:
    """Try, print and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="Folder of the dated result, faults_*.md.")
    parser.add_argument("--only", nargs="+", choices=COUNTS, default=list(COUNTS))
    parser.add_argument("--limit", type=int, help="Most trials of each part.")
    parser.add_argument("--seed", type=int, default=0, help="Of what is left to chance.")
    parser.add_argument("--scale", type=float, default=1, help="Times as many trials.")
    parser.add_argument(
        "--match", action="append", default=[], help="Only trials with this in their title."
    )
    parser.add_argument("--keep", type=Path, help="Work here, and leave it for a look.")
    options = parser.parse_args()
    folder = options.keep or campaign_folder()
    started = time.perf_counter()
    try:
        with Server() as server:
            place = Place(server, folder / "work", folder / "scratch")
            place.scratch.mkdir(parents=True, exist_ok=True)
            if not (place.work / "kept").is_dir():
                print("Making the workload …", file=sys.stderr)
                make_work(server, place.work)
            trials = chosen(place, options)
            tally = perform(trials, place, show_progress(len(trials)))
    finally:
        if options.keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    text = report(tally, options)
    print(text)
    print(f"{time.perf_counter() - started:.0f} s in all", file=sys.stderr)
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        machine = f"{os.cpu_count()}-core-{processor()}".lower().replace(" ", "-")
        path = options.out / f"faults_{machine}_{datetime.date.today()}.md"
        path.write_text(text, encoding="utf-8")
        print(f"Written to {path}", file=sys.stderr)
    sys.exit(1 if tally.failures else 0)


if __name__ == "__main__":
    main()
