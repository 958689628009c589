"""Kill workers and nodes of a Ray cluster in the midst of extractions, and compare the features.

    python benchmarks/ray_kills.py --moments 20

Two nodes of one processor each, in a network namespace that has nothing but loopback. At each
moment one extraction runs, and in turn a worker gets SIGKILL or a node loses all its processes:
before the first shard is there at the first moment, near the end at the last. What is written must
be, to the bit, what one process writes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from extract_images import write_images

SHARDS = 48
NETWORK = (
    *("--dataset=folder", "--backbone=convnextv2_atto", "--model-arg=depths=(1,1,1,1)"),
    *("--model-arg=dims=(4,8,8,12)", "--input-size=32", "--batch-size=2", "--shard-rows=4"),
    "--device=cpu",
)
APART = ("unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")
"""Runs a command in a network namespace that has nothing but loopback."""
VICTIMS = ("worker", "node")
_LOOK_S = 0.002


def why_not() -> str | None:
    """Say why a cluster cannot be started apart from the network; None where it can."""
    import importlib.util

    if importlib.util.find_spec("ray") is None:
        return "Ray is not installed"
    if not (shutil.which("unshare") and shutil.which("ip")):
        return "needs the commands unshare and ip"
    tried = subprocess.run(["unshare", "--net", "true"], capture_output=True)
    return None if tried.returncode == 0 else "may not make a network namespace"


def workers() -> list[int]:
    """Return the processes of clinit's workers on this machine, in ascending order."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes().startswith(b"ray::_extract_on_node"):
                found.append(int(path.parent.name))
        except OSError:  # it has just ended
            pass
    return sorted(found)


def shards(out: Path) -> int:
    """Return how many shards there are."""
    return sum(1 for _ in out.glob("train/shard-*.h5"))


def contents(folder: Path) -> dict[str, bytes]:
    """Return what a cache holds but for its summaries, which say how long it took."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "cache.json" and not path.name.endswith(".lock")
    }


class Trouble(threading.Thread):
    """Kills a worker or a node as soon as so many shards are there."""

    def __init__(self, cluster: Any, second: Any, out: Path, victim: str, at: int) -> None:
        super().__init__(daemon=True)
        self.cluster, self.second, self.out = cluster, second, out
        self.victim, self.at = victim, at
        self.when: int | None = None
        """The number of shards when it happened."""
        self.is_over = threading.Event()

    def run(self) -> None:
        """Wait for the moment, then kill."""
        while not self.is_over.is_set():
            there = workers()
            if there and shards(self.out) >= self.at:
                self.when = shards(self.out)
                if self.victim == "node":
                    self.cluster.remove_node(self.second, allow_graceful=False)
                else:
                    os.kill(there[self.at % len(there)], signal.SIGKILL)
                return
            time.sleep(_LOOK_S)


def moments(arguments: list[str], alone: Path, folder: Path, count: int) -> list[str]:
    """Extract on a cluster, `count` times; return what went wrong, as sentences."""
    from ray.cluster_utils import Cluster
    from typer.testing import CliRunner

    from clinit.cli.main import app

    wanted, wrong = contents(alone), []
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    second = cluster.add_node(num_cpus=1)
    try:
        for number in range(count):
            victim, at = VICTIMS[number % 2], round(number * (SHARDS - 4) / max(count - 1, 1))
            out = folder / f"moment-{number}"
            trouble = Trouble(cluster, second, out, victim, at)
            trouble.start()
            began = time.perf_counter()
            asked = [*arguments, f"--out={out}", f"--ray={cluster.address}"]
            result = CliRunner().invoke(app, asked)
            trouble.is_over.set()
            trouble.join()
            bad = verdict(result, trouble.when, contents(out) == wanted)
            line = (
                f"{number + 1:2d}: {victim} killed with {trouble.when} of {SHARDS} shards there,"
                f" {time.perf_counter() - began:.0f} s"
            )
            print(line + "".join(f"\n    WRONG: {each}" for each in bad), flush=True)
            wrong += [f"{line}: {each}" for each in bad]
            shutil.rmtree(out, ignore_errors=True)
            if victim == "node" and trouble.when is not None:
                second = cluster.add_node(num_cpus=1)
    finally:
        cluster.shutdown()
    return wrong


def verdict(result: Any, when: int | None, is_same: bool) -> list[str]:
    """Return what is wrong with an extraction."""
    wrong = []
    if result.exit_code != 0:
        wrong.append(f"the extraction ended with {result.exit_code}: {result.output[-500:]}")
    if when is None or when >= SHARDS:
        wrong.append("nothing was killed within the run")
    if not is_same:
        wrong.append("the features differ from those of one process")
    return wrong


def prepare(folder: Path) -> list[str]:
    """Write images and weights; return the arguments of the command without its output."""
    import timm
    import torch
    from safetensors.torch import save_file

    write_images(folder / "images", SHARDS * 4, 64, 48)
    torch.manual_seed(0)
    network = timm.create_model("convnextv2_atto", depths=(1, 1, 1, 1), dims=(4, 8, 8, 12))
    save_file(network.state_dict(), folder / "weights.safetensors")
    places = [f"--root={folder / 'images'}", f"--weights={folder / 'weights.safetensors'}"]
    return ["extract", *places, *NETWORK]


def main() -> None:
    """Extract alone, then on a cluster apart from the network, and compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--moments", type=int, default=20)
    parser.add_argument("--inside", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside is not None:
        folder = Path(options.inside["folder"])
        arguments = options.inside["arguments"]
        wrong = moments(arguments, folder / "alone", folder, options.moments)
        print(f"{options.moments} moments, {len(wrong)} faults")
        sys.exit(bool(wrong))
    if reason := why_not():
        sys.exit(f"No cluster: {reason}.")
    with tempfile.TemporaryDirectory() as name:
        arguments = prepare(Path(name))
        clinit = [sys.executable, "-m", "clinit"]
        subprocess.run([*clinit, *arguments, f"--out={name}/alone"], check=True)
        inside = json.dumps({"folder": name, "arguments": arguments})
        again = [sys.executable, "-W", "ignore", __file__, f"--moments={options.moments}"]
        environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
        done = subprocess.run([*APART, *again, f"--inside={inside}"], env=environment)
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
