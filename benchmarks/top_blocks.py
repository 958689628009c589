"""Training the top of a backbone: clinit, plain PyTorch and Avalanche on one network.

    python benchmarks/top_blocks.py --out benchmarks/

The last blocks and the head of a timm network learn new classes, by low-rank updates or as a whole.
The rest is frozen and the same for all contenders. Contenders take turns, with a block of steps or
an evaluation per turn, so that they run under the same load of the machine. In the same rounds, the
parts of a step are measured alone on a batch in memory: the forward pass of the frozen part, and
the forward and backward pass of the top. This is the limit of the arithmetic. Weights and
photographs are random, because times do not depend on them.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import (
    AVALANCHE,
    CONSOLE,
    PEERS,
    Process,
    command,
    has_bf16,
    machine,
    markdown,
    peer_python,
    show,
    versions,
    write,
)
from top_blocks_workload import SIZE

IMAGE_PATH = {"trunk": 1.0}
TURNS = ("train", "evaluate")
HEADINGS = (
    *("contender", "learns", "steps/s", "x PyTorch loop", "x Avalanche", "of the blocks alone"),
    *("GFLOP a step", "of GEMM", "test images/s", "x PyTorch loop", "of the blocks alone"),
)


@dataclass(slots=True, eq=False)
class Racer:
    """A contender, and the seconds of its turns."""

    name: str
    options: dict[str, Any]
    """Options for the script of the contenders, in which `kind` is the name."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """Parts of a training step, in passes of one batch, by their names in `limits`."""
    rival: str | None = None
    """Avalanche's contender of the same method."""
    seconds: dict[str, list[Any]] = field(default_factory=lambda: {"train": [], "evaluate": []})
    """Seconds of a step and of an evaluation, one value per round."""
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """Name of the contender in the script."""
        return str(self.options["kind"])

    def median(self, turn: str) -> float:
        """Return the median seconds of a step, or of an evaluation."""
        return float(statistics.median(self.seconds[turn]))


class Host:
    """A process with some contenders."""

    def __init__(self, racers: list[Racer], python: str, folder: Path, threads: int) -> None:
        self.racers = racers
        names = ", ".join(racer.name for racer in racers)
        listed = json.dumps([racer.options for racer in racers])
        arguments = ("top_blocks_contenders.py", str(folder), listed)
        self._process = Process(f"the process of {names}", python, *arguments, threads=threads)

    def await_ready(self) -> None:
        """Wait until the process has read the workload."""
        for racer, facts in zip(self.racers, self._process.answer()["ready"], strict=True):
            racer.facts = facts

    def take(self, turn: str, racer: Racer) -> Any:
        """Let a contender train or evaluate; return the seconds."""
        return self._process.tell(f"{turn} {self.racers.index(racer)}")["seconds"]

    def stop(self) -> None:
        """End the process."""
        self._process.stop()


def racers(options: argparse.Namespace, avalanche: str | None) -> list[Racer]:
    """Return the contenders."""
    shared = {
        **{name: getattr(options, name) for name in ("model", "batch", "steps", "threads", "seed")},
        "lr": 1e-4,
        "rank": 48,
        "buffer": SIZE.buffer,
        "device": "cpu",
        "precision": "float32",
        "total": options.steps * (options.rounds + 1),
        "workers": max(2, options.threads),
    }
    low, full = {"low rank": 1.0}, {"full rank": 1.0}

    def clinit(
        title: str, parts: Mapping[str, float], rival: str | None = None, **own: Any
    ) -> Racer:
        settings = {"kind": "clinit", "method": "rehearsal", "rows": "stored", **own}
        settings["full_rank"] = "full rank" in parts
        return Racer(f"clinit, {title}", {**shared, **settings}, parts, rival)

    found = [clinit("stored activations", low)]
    if has_bf16():
        found.append(clinit("stored activations, bf16", low, precision="bf16"))
    found += [
        clinit("decoded images", IMAGE_PATH | low, rows="decoded"),
        clinit("JPEG files", IMAGE_PATH | low, rows="files"),
        Racer("PyTorch loop, decoded images", {**shared, "kind": "plain"}, IMAGE_PATH | low),
        clinit("EWC, stored activations", full, "ewc", method="ewc"),
        clinit("DER++, stored activations", low | {"top": 0.5}, "derpp", method="derpp"),
        clinit("DER++, stored activations", full | {"top": 0.5}, "derpp", method="derpp"),
    ]
    for method, name in (("ewc", "EWC"), ("derpp", "DER++")) if avalanche else ():
        own = {**shared, "kind": "avalanche", "method": method}
        title = f"Avalanche 0.6, {name}, decoded images"
        found.append(Racer(title, own, IMAGE_PATH | full, rival=method))
    found.append(Racer("parts of a step alone", {**shared, "kind": "limits"}))
    return found


def compete(found: list[Racer], avalanche: str | None, folder: Path, rounds: int) -> None:
    """Let all contenders take turns; the first round only warms up."""
    threads = found[0].options["threads"]
    ours = [racer for racer in found if racer.kind != "avalanche"]
    hosts = [Host(ours, sys.executable, folder, threads)]
    for racer in found:
        if racer.kind == "avalanche":
            assert avalanche is not None
            hosts.append(Host([racer], avalanche, folder, threads))
    try:
        for host in hosts:
            host.await_ready()
        for number in range(rounds + 1):
            for turn, host, racer in ((t, h, r) for t in TURNS for h in hosts for r in h.racers):
                seconds = host.take(turn, racer)
                if number:
                    racer.seconds[turn].append(seconds)
            CONSOLE.print(f"Round {number} of {rounds}")
    finally:
        for host in hosts:
            host.stop()


def paired(one: Iterable[float], other: Iterable[float]) -> float:
    """Return the median over rounds of `one` / `other`."""
    return statistics.median(a / b for a, b in zip(one, other, strict=True))


def allowed(limits: Racer, parts: Mapping[str, float], batches: float = 1) -> list[float]:
    """Return the seconds of the given parts alone, one value per round."""
    return [
        batches * sum(share * seconds[name] for name, share in parts.items())
        for seconds in limits.seconds["train"]
    ]


def lines_of(found: list[Racer], options: argparse.Namespace) -> list[list[str]]:
    """Return the lines of the table."""
    *all_racers, limits = found
    loop = next(racer for racer in found if racer.kind == "plain")
    rivals = {racer.rival: racer for racer in found if racer.kind == "avalanche"}
    flop = limits.facts["flop"]
    products = [flop["product"] / each["product"] for each in limits.seconds["train"]]
    lines = []
    for racer in all_racers:
        steps, tests = racer.seconds["train"], racer.seconds["evaluate"]
        work = sum(share * flop[name] for name, share in racer.parts.items())
        forward = {name: 1.0 for name in ("trunk", "top") if name != "trunk" or name in racer.parts}
        low = racer.options.get("precision") == "bf16"
        rival = rivals.get(racer.rival) if racer.kind == "clinit" else None
        line = [
            racer.name,
            "blocks" if "full rank" in racer.parts else "updates",
            f"{1 / racer.median('train'):.2f}",
            f"{paired(loop.seconds['train'], steps):.2f}",
            f"{paired(rival.seconds['train'], steps):.2f}" if rival else "",
            "" if low else f"{paired(allowed(limits, racer.parts), steps):.0%}",
            f"{work / 1e9:.0f}",
            "" if low else f"{paired([work / rate for rate in products], steps):.0%}",
            f"{SIZE.tested / racer.median('evaluate'):.0f}",
            f"{paired(loop.seconds['evaluate'], tests):.2f}",
            ""
            if low
            else f"{paired(allowed(limits, forward, SIZE.tested / options.batch), tests):.0%}",
        ]
        lines.append(line)
    return lines


def limit_lines(limits: Racer) -> list[str]:
    """Return the table of the parts of a step, measured alone."""
    flop, rounds = limits.facts["flop"], limits.seconds["train"]
    titles = {
        "trunk": "frozen part, forward",
        "top": "top, forward",
        "low rank": "top, forward and backward, updates",
        "full rank": "top, forward and backward, whole blocks",
        "product": "one product of the first plastic layer",
    }
    lines = ["| of one batch | GFLOP | ms | GFLOP/s |", "|---|---|---|---|"]
    for name, title in titles.items():
        seconds = statistics.median(each[name] for each in rounds)
        work = flop[name] / 1e9
        lines.append(f"| {title} | {work:.2f} | {1e3 * seconds:,.1f} | {work / seconds:,.0f} |")
    return lines


def report(lines: list[list[str]], limits: list[str], options: argparse.Namespace) -> list[str]:
    """Return the dated Markdown result."""
    timed = "CPU seconds of the process" if options.threads == 1 else "wall seconds"
    return [
        f"# Top blocks of {options.model}, {datetime.date.today()}",
        "",
        f"{machine()}; {options.threads} thread(s) a contender. Times are {timed}."
        f" {versions('torch', 'timm')}, {AVALANCHE}.",
        command(),
        "",
        f"The last {options.top_blocks} blocks and a head of {SIZE.base + SIZE.new} classes learn,"
        f" from batches of {options.batch} images (EWC: all new, others: half new, half old), with"
        f" AdamW. {options.rounds} rounds of {options.steps} steps and an evaluation of"
        f" {SIZE.tested} test images, which the contenders do in turn.",
        "",
        *markdown(HEADINGS, lines),
        "",
        *limits,
        "",
        "Medians over rounds, of ratios within a round. *learns*: low-rank updates of the blocks"
        " (rank 48), or the blocks themselves. *stored activations*: the trunk cache, in memory."
        " *JPEG files*: read, decoded and resized at each step. *decoded images* are in memory:"
        " for clinit as uint8, for other contenders normalised, in float32. *of the blocks alone*:"
        " the time of the parts of a step (second table) divided by the time of the step. A"
        " trained block costs forward and backward pass, a frozen block its forward pass, or"
        " nothing if activations are stored. The teacher of DER++ costs half a forward pass of the"
        " top; Avalanche stores its outputs. *of GEMM*: FLOP as counted by PyTorch"
        " (`FlopCounterMode`), at the rate of the product. PyTorch counts the backward pass of a"
        " depthwise convolution as dense, so use the other column for networks with depthwise"
        " convolutions. *x Avalanche*: the same method, if whole blocks learn.",
        "",
    ]


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="Folder of the dated result.")
    parser.add_argument("--model", default="vit_tiny_patch16_224", help="Of timm.")
    parser.add_argument("--top-blocks", type=int, default=2)
    parser.add_argument("--batch", type=int, default=64, help="Images a step.")
    parser.add_argument(
        "--threads", type=int, default=os.cpu_count() or 1, help="Threads of each contender."
    )
    parser.add_argument("--rounds", type=int, default=5, help="2 are a short run.")
    parser.add_argument("--steps", type=int, default=2, help="Steps a turn.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-avalanche", action="store_true")
    options = parser.parse_args()
    avalanche = None if options.no_avalanche else peer_python(PEERS / "avalanche")
    found = racers(options, avalanche)
    with tempfile.TemporaryDirectory() as folder:
        script = Path(__file__).with_name("top_blocks_workload.py")
        asked = (options.model, options.top_blocks, options.threads, options.seed)
        subprocess.run([sys.executable, script, folder, *map(str, asked)], check=True)
        compete(found, avalanche, Path(folder), options.rounds)
    lines, limits = lines_of(found, options), limit_lines(found[-1])
    show("Top blocks", HEADINGS, lines)
    CONSOLE.print("\n".join(limits))
    write(options.out, f"top-blocks_{options.model}", report(lines, limits, options))


if __name__ == "__main__":
    main()
