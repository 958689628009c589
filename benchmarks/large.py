"""The cost of commands on 1.3 million rows, the size of ImageNet, and on a quarter of them.

    python benchmarks/large.py --out benchmarks/

Each line is one process, measured from start to end with its peak memory, at full size and at a
quarter. A cost proportional to the rows is then at most four times as large, a quadratic one 16
times. The features are Gaussian classes in float16, written block by block; the images are hard
links to one small file per class, to save inodes. The script writes 3 GB into a temporary folder
(`TMPDIR`) and removes it.
"""

from __future__ import annotations

import argparse
import datetime
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from harness import CONSOLE, ProcessCost, command, machine, markdown, measure, show, versions, write
from numpy.lib.format import header_data_from_array_1_0, write_array_header_1_0

DIM = 384
CLASSES = 1000
NEW_CLASSES = 100
NEW_ROWS = 500
"""Rows per new class."""
ITERATIONS = 100
"""Iterations per task; there are five tasks."""
_PIXEL = (
    b"GIF89a\x01\x00\x01\x00\x80\x00\x00\x00\x00\x00\xff\xff\xff,\x00\x00\x00\x00\x01\x00\x01\x00"
    b"\x00\x02\x02D\x01\x00;"
)
"""A GIF of one pixel."""


@dataclass(frozen=True, slots=True)
class Size:
    """Numbers of rows and runs."""

    rows: int
    """Rows of the base classes."""
    runs: int
    """Runs of the sweep: a multiple of five."""

    @property
    def rows_per_class(self) -> int:
        """Rows of each base class."""
        return self.rows // CLASSES


def measured(*arguments: object) -> ProcessCost:
    """Run a command of clinit to its end."""
    return measure([sys.executable, "-m", "clinit", *map(str, arguments)])


def write_links(root: Path, size: Size) -> None:
    """Write `root/train/<class>/<number>.gif`."""
    for number in range(CLASSES):
        folder = root / "train" / f"class-{number:04d}"
        folder.mkdir(parents=True)
        first = folder / "00000.gif"
        first.write_bytes(_PIXEL)
        for link in range(1, size.rows_per_class):
            os.link(first, folder / f"{link:05d}.gif")


def write_features(folder: Path, name: str, first: int, classes: int, rows: int) -> None:
    """Write features and labels of classes with the means from number `first` on."""
    rng = np.random.default_rng(first)
    header = header_data_from_array_1_0(np.empty((0, DIM), dtype=np.float16))
    means = _means()[first : first + classes]
    # No memory map: child processes would start with the peak memory of this process.
    with (folder / f"{name}.npy").open("wb") as file:
        write_array_header_1_0(file, header | {"shape": (classes * rows, DIM)})
        for number in range(classes):  # a class is a block
            noise = rng.standard_normal((rows, DIM), dtype=np.float32)
            (means[number] + 4 * noise).astype(np.float16).tofile(file)
    np.save(folder / f"{name}-labels.npy", np.repeat(np.arange(classes), rows))


def write_names_and_head(folder: Path) -> None:
    """Write the names of the classes, and a head of the base classes."""
    for name, classes in (("base", CLASSES), ("new", NEW_CLASSES)):
        (folder / f"{name}.txt").write_text("".join(f"{name}-{row}\n" for row in range(classes)))
    base = _means()[:CLASSES]
    write_head(folder, base)


def write_head(folder: Path, base: np.ndarray) -> None:
    """Write a head of the base classes."""
    from clinit import save_head

    names = [f"base-{row}" for row in range(len(base))]
    save_head(folder / "head.safetensors", base, -(base**2).sum(1) / 2, names)


def _means() -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.standard_normal((CLASSES + NEW_CLASSES, DIM), dtype=np.float32)


def import_words(folder: Path, data: str, side: str, split: str) -> tuple[object, ...]:
    """Return the command that imports the features called `data`."""
    return (
        *("cache", "import", folder / f"{data}.npy", folder / f"{data}-labels.npy"),
        *("--split", split, "--classes", folder / f"{side}.txt", "--backbone", "gauss"),
        *("--out", folder / side),
    )


def features_lines(folder: Path, size: Size) -> Iterator[tuple[str, ProcessCost]]:
    """Yield the name and cost of each command on all rows."""
    folder.mkdir()
    write_links(folder / "images", size)
    yield (
        f"manifest build, {size.rows:,} files",
        measured(
            *("manifest", "build", "folder", "--root", folder / "images", "--split", "train"),
            *("--out", folder / "manifest.parquet"),
        ),
    )
    shutil.rmtree(folder / "images")
    write_names_and_head(folder)
    write_features(folder, "base-train", 0, CLASSES, size.rows_per_class)
    write_features(folder, "base-val", 0, CLASSES, 10)
    write_features(folder, "new-train", CLASSES, NEW_CLASSES, NEW_ROWS)
    write_features(folder, "new-val", CLASSES, NEW_CLASSES, 50)
    imported = measured(*import_words(folder, "base-train", "base", "train"))
    yield f"cache import, {size.rows:,} x {DIM}", imported
    (folder / "base-train.npy").unlink()
    for data, side, split in (
        ("base-val", "base", "val"),
        ("new-train", "new", "train"),
        ("new-val", "new", "val"),
    ):
        measured(*import_words(folder, data, side, split))
    yield "cache verify", measured("cache", "verify", folder / "base")
    for kept, buffer in (("24,000 rows kept", ()), ("all rows kept", ("--buffer", 2 * size.rows))):
        out = folder / f"heads-{len(buffer)}"
        trained = measured(
            *("train-head", "--base", folder / "base", "--new", folder / "new", "--device", "cpu"),
            *("--iterations", ITERATIONS, "--eval-every", ITERATIONS, *buffer, "--out", out),
            *("--head", folder / "head.safetensors"),
        )
        yield f"train-head, three heads x {5 * ITERATIONS} iterations, {kept}", trained


def sweep_lines(folder: Path, size: Size) -> Iterator[tuple[str, ProcessCost]]:
    """Yield the name and cost of a sweep of short runs and of its report."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    for side, first in (("base", 0), ("new", 20)):
        names = "".join(f"{side}-{row}\n" for row in range(20))
        (folder / f"{side}.txt").write_text(names)
        for split, rows in (("train", 50), ("val", 10)):
            means = _means()[first : first + 20, :64].repeat(rows, axis=0)
            noise = rng.standard_normal(means.shape, dtype=np.float32)
            np.save(folder / f"{side}-{split}.npy", means + noise)
            np.save(folder / f"{side}-{split}-labels.npy", np.repeat(np.arange(20), rows))
    write_head(folder, _means()[:20, :64])
    for side in ("base", "new"):
        for split in ("train", "val"):
            measured(*import_words(folder, f"{side}-{split}", side, split))
    (folder / "short.toml").write_text(
        '[train-head]\ntasks = 2\niterations = 10\neval-every = 5\nbuffer = 200\ndevice = "cpu"\n'
    )
    swept = measured(
        *("sweep", "--base", folder / "base", "--new", folder / "new", "--out", folder / "runs"),
        *("--config", folder / "short.toml", "--head", folder / "head.safetensors"),
        *(f"lr=1e-4..1e-2:log{size.runs // 5}", "seed=0:5"),
    )
    yield f"sweep, {size.runs:,} runs of 20 iterations", swept
    yield f"report, {size.runs:,} runs", measured("report", folder / "runs")


HEADINGS = ("command", "s", "CPU s", "peak", "a quarter: s", "CPU s", "peak", "CPU: times")


def rows_of(pairs: Sequence[tuple[str, ProcessCost, ProcessCost]]) -> list[list[str]]:
    """Return the lines of the table: name, full size, a quarter, and the ratio of CPU times."""
    return [
        [
            name,
            *(f"{full.wall_s:.1f}", f"{full.cpu_s:.1f}", f"{full.peak_bytes / 1e9:.2f} GB"),
            *(f"{part.wall_s:.1f}", f"{part.cpu_s:.1f}", f"{part.peak_bytes / 1e9:.2f} GB"),
            f"{full.cpu_s / part.cpu_s:.1f}",
        ]
        for name, full, part in pairs
    ]


def report(lines: Sequence[Sequence[str]], size: Size, load: float) -> list[str]:
    """Return the dated text with the table."""
    return [
        f"# {size.rows:,} rows, {datetime.date.today()}",
        "",
        f"{machine(load)}. {versions('torch', 'h5py', 'polars')}.",
        command(),
        "",
        f"Whole processes, each once. Base: {CLASSES:,} classes in {size.rows:,} rows of {DIM}"
        f" numbers in float16; new: {NEW_CLASSES} classes with {NEW_ROWS} rows each, five"
        " tasks. *a quarter*: a quarter of the base rows, or of the runs. *times*: CPU seconds"
        " (user and system) at full size divided by CPU seconds at a quarter; a quadratic cost"
        " would give 16.",
        "",
        *markdown(HEADINGS, lines),
    ]


def check_room(rows: int) -> None:
    """Refuse to begin if there is too little disk space or memory."""
    import psutil

    disk = shutil.disk_usage(tempfile.gettempdir()).free
    needed = 3 * 2 * rows * DIM + 2**30
    if disk < needed:
        raise SystemExit(f"{tempfile.gettempdir()} has {disk / 1e9:.1f} GB free, {needed:,} needed")
    memory, wanted = psutil.virtual_memory().available, 4 * 2 * rows * DIM
    if memory < wanted:
        raise SystemExit(f"{memory / 1e9:.1f} GB of memory are free, {wanted / 1e9:.1f} needed")


def main() -> None:
    """Measure, print the table, and write it to a dated file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="Folder of the dated file; default: none.")
    parser.add_argument("--rows", type=int, default=1_300_000, help="At least 4,000.")
    parser.add_argument("--runs", type=int, default=500, help="Of the sweep, at least 40.")
    options = parser.parse_args()
    check_room(options.rows)
    full = Size(options.rows // CLASSES * CLASSES, options.runs // 5 * 5)
    part = Size(full.rows // 4 // CLASSES * CLASSES, full.runs // 20 * 5)
    load = os.getloadavg()[0]
    found: dict[Size, list[tuple[str, ProcessCost]]] = {part: [], full: []}
    with tempfile.TemporaryDirectory() as name:
        for measure_lines in (features_lines, sweep_lines):
            for size, costs in found.items():
                folder = Path(name) / "work"
                for title, cost in measure_lines(folder, size):
                    CONSOLE.print(
                        f"{title}: {cost.wall_s:.1f} s, {cost.cpu_s:.1f} CPU s,"
                        f" {cost.peak_bytes / 1e9:.2f} GB"
                    )
                    costs.append((title, cost))
                shutil.rmtree(folder)
    together = zip(found[full], found[part], strict=True)
    lines = rows_of([(title, cost, quarter) for (title, cost), (_, quarter) in together])
    show(f"{full.rows:,} rows", HEADINGS, lines)
    write(options.out, "large", report(lines, full, load))


if __name__ == "__main__":
    main()
