"""Whether two checkouts write the same bits: caches, heads, records, checkpoints' runs, exports.

    git worktree add /elsewhere/before COMMIT
    python benchmarks/same_bits.py /elsewhere/before
    CLINIT_REALDATA=/photographs python benchmarks/same_bits.py /elsewhere/before

Both run the same commands, on the embedded digits and, where there are photographs, on these. Every
array, table and setting is compared; times are not, nor files that one of the checkouts alone
writes. The exit code is 1 where something differs.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from fault_trials.results import Results, results

SMALL = ("--tasks", "2", "--iterations", "20", "--eval-every", "10", "--device", "cpu")


def commands(out: Path, photographs: Path | None) -> Iterator[tuple[str, ...]]:
    """Yield the commands, in an order in which each finds what it reads."""
    yield ("demo", "--out", f"{out}/demo")
    if photographs is None:
        return
    weights = photographs / "weights" / "vit_tiny_patch16_224.safetensors"
    names = ("--head-classes", "dataset")
    for name, data, own in (("base", "imagenet_mini", names), ("new", "places50", ())):
        yield (
            *("extract", "--dataset", "folder", "--root", f"{photographs}/{data}"),
            *("--backbone", "vit_tiny_patch16_224", "--weights", str(weights)),
            *("--mean", "0.5", "--std", "0.5", "--limit-per-class", "8", "--device", "cpu"),
            *("--out", f"{out}/{name}", *own),
        )
    sides = ("--base", f"{out}/base", "--new", f"{out}/new", *SMALL)
    for method in ("rehearsal", "naive", "joint"):
        words = ("--method", method, "--loss", "ce", "--scale", "norm", "--scale", "calibrated")
        yield ("train-head", *sides, *words, "--out", f"{out}/heads-{method}")
    for method in ("ncm", "ridge", "lda"):
        few = ("--tasks", "2", "--device", "cpu", "--method", method)
        yield ("train-head", *sides[:4], *few, "--out", f"{out}/heads-{method}")
    grid = ("init=random,lda,class-mean", "loss=ce,mse,sqen", "seed=0:2", "device=cpu")
    short = ("iterations=10", "eval_every=5", "tasks=2", "buffer=500")
    yield ("sweep", *sides[:4], *grid, *short, "--out", f"{out}/sweep")
    brief = ("--tasks", "2", "--iterations", "3", "--eval-every", "3", "--buffer", "40")
    few = (*sides[:4], *brief, "--batch-size", "8", "--device", "cpu", "--init", "least-square")
    for method in ("rehearsal", "ewc", "derpp"):
        words = ("--method", method, "--trunk-budget", "1GB", "--no-probe")
        yield ("train-top", *few, *words, "--out", f"{out}/top-{method}")
    yield (
        "align",
        f"{out}/base",
        "--epochs",
        "2",
        "--device",
        "cpu",
        "--out",
        f"{out}/mse.safetensors",
    )
    run = f"{out}/heads-rehearsal/least-square-calibrated"
    yield ("export", run, "--out", f"{out}/model.safetensors")


def written(checkout: Path, out: Path, photographs: Path | None) -> Results:
    """Run the commands of a checkout; return the digests of what they have written."""
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "1"}
    for words in commands(out, photographs):
        command = [sys.executable, "-m", "clinit", *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(
                f"`clinit {' '.join(words)}` of {checkout}:\n{done.stdout}{done.stderr}"
            )
    return results(out)


def main() -> None:
    """Compare two checkouts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", type=Path, help="The other checkout.")
    before = parser.parse_args().before
    told = os.environ.get("CLINIT_REALDATA")
    photographs = Path(told) if told else None
    now = Path(__file__).resolve().parents[1]
    found = []
    for checkout in (before, now):
        with tempfile.TemporaryDirectory(prefix="clinit-bits-") as folder:
            found.append(written(checkout, Path(folder), photographs))
    both = found[0].keys() & found[1].keys()
    other = sorted(name for name in both if found[0][name] != found[1][name])
    alone = sorted(found[0].keys() ^ found[1].keys())
    print(f"{len(both)} files are compared, {len(both) - len(other)} are the same")
    for name in other:
        print(f"differs: {name}")
    for name in alone:
        print(f"in one alone: {name}")
    sys.exit(1 if other else 0)


if __name__ == "__main__":
    main()
