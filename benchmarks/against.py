"""What a change costs: commands of this checkout beside those of another one, in turns.

    git worktree add /elsewhere/before COMMIT
    python benchmarks/against.py /elsewhere/before --out benchmarks/

Every run is a process of its own. Each checkout reads caches and records that it has written
itself, from the same images and features; the two take turns, and which of them begins changes
from pair to pair. The images are noise of low frequency as JPEGs in the size of photographs, the
features Gaussian classes.
"""

from __future__ import annotations

import argparse
import datetime
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from itertools import count
from pathlib import Path

import numpy as np
from PIL import Image
from rich.table import Table
from threads import ProcessCost, measure
from turns import CONSOLE, processor

BACKBONE = "resnet18"


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much there is to do."""

    images: int
    """Of each of two classes."""
    classes: int
    """Of features, base and new alike."""
    rows: int
    """Rows per class."""
    dim: int
    iterations: int
    """Per task, of which there are five."""
    seeds: int
    """Records in the report: three per seed."""


FULL = Size(images=100, classes=500, rows=100, dim=384, iterations=100, seeds=10)
SMALL = Size(images=4, classes=5, rows=4, dim=8, iterations=2, seeds=1)


class Checkout:
    """A checkout, and what it has written."""

    def __init__(self, checkout: Path, folder: Path, data: Path, size: Size) -> None:
        self.source = checkout / "src"
        if not (self.source / "clinit" / "__main__.py").is_file():
            raise SystemExit(f"no checkout of clinit at {checkout}")
        self.folder, self.data, self.size = folder, data, size
        self._runs = count()

    def prepare(self, chosen: list[str]) -> None:
        """Write the caches that training reads, and the records that the report reads."""
        if not {"train-head", "report"} & set(chosen):
            return
        for name in ("base", "new"):
            for split in ("train", "val"):
                self.run(*self._import(name, split), "--out", self.folder / name)
        small = ("--tasks", 2, "--iterations", 20, "--eval-every", 5)
        for seed in range(self.size.seeds if "report" in chosen else 0):
            out = self.folder / "records" / str(seed)
            self.run(*self._train(), *small, "--seed", seed, "--out", out)

    def commands(self) -> dict[str, Callable[[], ProcessCost]]:
        """Return what is measured, by its name."""
        return {
            "extract": lambda: self.run(
                *("extract", "--dataset", "folder", "--root", self.data / "images"),
                *("--backbone", BACKBONE, "--weights", self.data / "weights.safetensors"),
                *("--device", "cpu", "--out", self._new()),
            ),
            "cache import": lambda: self.run(*self._import("base", "train"), "--out", self._new()),
            "train-head": lambda: self.run(
                *self._train(), "--iterations", self.size.iterations, "--out", self._new()
            ),
            "report": lambda: self.run("report", "--by-seed", self.folder / "records"),
        }

    def run(self, *arguments: object) -> ProcessCost:
        """Run a command of this checkout."""
        command = [sys.executable, "-m", "clinit", *map(str, arguments)]
        # With its bytecode, as an installed package has it.
        environment = {"PYTHONPATH": str(self.source), "PYTHONDONTWRITEBYTECODE": ""}
        return measure(command, environment, limit_s=900)

    def tidy(self) -> None:
        """Remove what the last command wrote."""
        for out in self.folder.glob("out-*"):
            shutil.rmtree(out)

    def _new(self) -> Path:
        return self.folder / f"out-{next(self._runs)}"

    def _import(self, name: str, split: str) -> tuple[object, ...]:
        head = ("--head", self.data / "head.safetensors") if name == "base" else ()
        return (
            *("cache", "import", self.data / f"{name}-{split}.npy"),
            *(self.data / f"{name}-{split}-labels.npy", "--split", split),
            *("--classes", self.data / f"{name}.txt", "--backbone", "gauss", *head),
        )

    def _train(self) -> tuple[object, ...]:
        buffer = 10 * self.size.classes
        return (
            *("train-head", "--base", self.folder / "base", "--new", self.folder / "new"),
            *("--buffer", min(buffer, self.size.classes * self.size.rows), "--device", "cpu"),
        )


def make_data(folder: Path, size: Size) -> None:
    """Write images, weights, features, labels, names and a head."""
    import timm
    import torch
    from safetensors.numpy import save_file
    from safetensors.torch import save_file as save_torch

    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        (folder / "images" / "train" / name).mkdir(parents=True)
        for number in range(size.images):
            coarse = rng.integers(0, 256, (24, 32, 3), dtype=np.uint8)
            image = Image.fromarray(coarse).resize((500, 375), Image.Resampling.BICUBIC)
            image.save(folder / "images" / "train" / name / f"{number:04d}.jpg", quality=90)
    torch.manual_seed(0)
    network = timm.create_model(BACKBONE)
    save_torch(network.state_dict(), folder / "weights.safetensors")
    means = rng.standard_normal((2 * size.classes, size.dim), dtype=np.float32)
    base = means[: size.classes]
    save_file({"weight": base, "bias": -(base**2).sum(1) / 2}, folder / "head.safetensors")
    for name, first in (("base", 0), ("new", size.classes)):
        names = "".join(f"{name}-{row}\n" for row in range(size.classes))
        (folder / f"{name}.txt").write_text(names)
        for split, rows in (("train", size.rows), ("val", max(1, size.rows // 10))):
            labels = np.repeat(np.arange(size.classes), rows)
            noise = rng.standard_normal((len(labels), size.dim), dtype=np.float32)
            np.save(folder / f"{name}-{split}.npy", means[first + labels] + 4 * noise)
            np.save(folder / f"{name}-{split}-labels.npy", labels)


Found = dict[str, list[tuple[ProcessCost, ProcessCost]]]
"""By command, the runs of each pair: before, now."""


def compete(before: Checkout, now: Checkout, pairs: int, chosen: list[str]) -> Found:
    """Let the two take turns, command by command."""
    found: Found = {name: [] for name in chosen}
    for pair in range(pairs):
        for name in chosen:
            order = (before, now) if pair % 2 == 0 else (now, before)
            runs = {side: side.commands()[name]() for side in order}
            for side in order:
                side.tidy()
            found[name].append((runs[before], runs[now]))
            was, is_ = runs[before], runs[now]
            CONSOLE.print(f"{name}: {was.wall_s:.2f} s before, {is_.wall_s:.2f} s now")
    return found


HEADINGS = ("command", "before: s", "CPU s", "now: s", "CPU s", "now / before", "CPU", "pairs")


def rows_of(found: Found) -> list[list[str]]:
    """Return the lines of the table: medians, and the median of the ratios of the pairs."""
    lines = []
    for name, pairs in found.items():
        line = [name]
        for side in (0, 1):
            line.append(f"{statistics.median(pair[side].wall_s for pair in pairs):.2f}")
            line.append(f"{statistics.median(pair[side].cpu_s for pair in pairs):.2f}")
        for value in ("wall_s", "cpu_s"):
            ratios = [getattr(now, value) / getattr(before, value) for before, now in pairs]
            line.append(f"{statistics.median(ratios):.3f}")
        lines.append([*line, str(len(pairs))])
    return lines


def commit_of(checkout: Path) -> str:
    """Return the short name of the commit that is checked out."""
    words = ["git", "-C", str(checkout), "describe", "--always", "--dirty"]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip() or "?"


def report(found: Found, before: Path, now: Path, size: Size, load: float) -> str:
    """Return the dated text with the table."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "timm", "h5py", "polars"))
    lines = [
        f"# Cost of a change, {datetime.date.today()}",
        "",
        f"{processor()}, {os.cpu_count()} cores; load average {load:.2f} before the first run."
        f" {versions}.",
        "Command: `python benchmarks/against.py BEFORE --out benchmarks/`.",
        "",
        f"Before: {commit_of(before)}; now: {commit_of(now)}. Whole processes, medians of seconds;"
        " *now / before*: the median of the ratios of the pairs, of wall and of CPU seconds.",
        "",
        f"*extract*: {BACKBONE} on {2 * size.images:,} JPEGs of 500 x 375 pixels. *cache import*:"
        f" {size.classes * size.rows:,} x {size.dim} in float32. *train-head*: {size.classes} +"
        f" {size.classes} classes, three heads, five tasks of {size.iterations} iterations."
        f" *report*: {3 * size.seeds} records.",
        "",
        "| " + " | ".join(HEADINGS) + " |",
        "|---|" + "---:|" * (len(HEADINGS) - 1),
        *("| " + " | ".join(line) + " |" for line in rows_of(found)),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, print the table, and write it to a dated file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    names = ("extract", "cache import", "train-head", "report")
    parser.add_argument("before", type=Path, help="The other checkout.")
    parser.add_argument("--out", type=Path, help="Folder of the dated file; default: none.")
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--commands", nargs="+", choices=names, default=list(names))
    parser.add_argument("--small", action="store_true", help="In seconds, to try it out.")
    options = parser.parse_args()
    here, size = Path(__file__).resolve().parents[1], SMALL if options.small else FULL
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        data.mkdir()
        make_data(data, size)
        before = Checkout(options.before, Path(folder) / "before", data, size)
        now = Checkout(here, Path(folder) / "now", data, size)
        for side in (before, now):
            side.folder.mkdir()
            side.prepare(options.commands)
        found = compete(before, now, options.pairs, options.commands)
    table = Table(*HEADINGS, title="Cost of a change")
    for column in table.columns[1:]:
        column.justify = "right"
    for line in rows_of(found):
        table.add_row(*line)
    CONSOLE.print(table)
    if options.out is not None:
        machine = f"{os.cpu_count()}-core-{processor()}".lower().replace(" ", "-")
        path = options.out / f"against_{machine}_{datetime.date.today()}.md"
        path.write_text(report(found, options.before, here, size, load), encoding="utf-8")
        CONSOLE.print(f"Written to {path}")


if __name__ == "__main__":
    main()
