"""Class statistics of 1 to 100 million synthetic rows: seconds, memory, and one solve.

    python benchmarks/summing.py --out benchmarks/

One thread makes rows of 384 numbers in float16 and 1,000 classes, a block at a time, and sums them
in parts; then it writes, reads, merges and solves the sums. Seconds are processor seconds; making
rows has its own column. The line of 5 billion rows is extrapolated from the last measured line.
"""

from __future__ import annotations

import argparse
import datetime
import os
import resource
import tempfile
import time
from collections.abc import Iterator
from functools import reduce
from operator import add
from pathlib import Path

import numpy as np
from harness import CONSOLE, command, machine, markdown, show, versions, write

from clinit.extract.cache.fingerprint import Fingerprint
from clinit.headtrain.heads.statistics.class_statistics import ClassStatistics
from clinit.headtrain.heads.statistics.solve import least_squares_head
from clinit.headtrain.protocol.stream.summed import BLOCK_ROWS, Summed, read_summed

DIM, CLASSES, PARTS = 384, 1000, 8
ASKED = 5_000_000_000
HEADINGS = ("rows", "parts, s", "rows/s", "merge, s", "solve, s", "peak", "file", "making rows, s")


class Made:
    """Rows of Gaussian classes, sorted by class as in a manifest."""

    def __init__(self, rows: int) -> None:
        random = np.random.default_rng(0)
        self.rows, self.spent_s = rows, 0.0
        self._means = random.standard_normal((CLASSES, DIM), dtype=np.float32)
        self._noise = 4 * random.standard_normal((2 * BLOCK_ROWS, DIM), dtype=np.float32)
        self._random = random

    def blocks(self, part: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield every block of a part; the noise of a block is a slice of stored noise."""
        for start in range(part * BLOCK_ROWS, self.rows, PARTS * BLOCK_ROWS):
            began = time.process_time()
            numbers = np.arange(start, min(start + BLOCK_ROWS, self.rows))
            labels, first = numbers * CLASSES // self.rows, int(self._random.integers(BLOCK_ROWS))
            noise = self._noise[first : first + len(labels)]
            features = (self._means[labels] + noise).astype(np.float16)
            self.spent_s += time.process_time() - began
            yield features, labels


def line(rows: int, folder: Path) -> tuple[list[str], float]:
    """Return a line of the table, and the seconds of its parts."""
    made, began = Made(rows), time.process_time()
    totals = np.full(CLASSES, rows // CLASSES)
    names = tuple(map(str, range(CLASSES)))
    for part in range(PARTS):
        sums = ClassStatistics.of_blocks(made.blocks(part), totals, DIM)
        Summed(names, Fingerprint(), sums).write(folder / f"{part}.safetensors")
    parts_s, began = time.process_time() - began - made.spent_s, time.process_time()
    files = [folder / f"{part}.safetensors" for part in range(PARTS)]
    whole = reduce(add, (read_summed(file, part=True).statistics for file in files))
    merge_s, began = time.process_time() - began, time.process_time()
    least_squares_head(whole, 0.05)
    solve_s, size = time.process_time() - began, files[0].stat().st_size
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    cells = [f"{rows:,}", f"{parts_s:.1f}", f"{rows / parts_s:,.0f}", f"{merge_s:.2f}"]
    cells += [f"{solve_s:.2f}", f"{peak / 1e9:.2f} GB", f"{size / 1e6:.1f} MB"]
    return [*cells, f"{made.spent_s:.1f}"], parts_s


def main() -> None:
    """Measure, print the table, and write it to a dated file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="Folder of the dated file; default: none.")
    parser.add_argument("--rows", type=int, nargs="+", default=[10**6, 10**7, 10**8])
    options, load, lines = parser.parse_args(), os.getloadavg()[0], []
    with tempfile.TemporaryDirectory() as folder:
        for rows in options.rows:
            found, parts_s = line(rows // CLASSES * CLASSES, Path(folder))
            CONSOLE.print(", ".join(found))
            lines.append(found)
    hours = ASKED / rows * parts_s / 3600
    lines.append([f"{ASKED:,}, by proportion", f"{hours:.1f} h", *lines[-1][2:-1], ""])
    show("Class statistics", HEADINGS, lines)
    about = f"{PARTS} parts one after another, one thread; {CLASSES:,} classes of {DIM} numbers."
    title = [f"# Class statistics, {datetime.date.today()}", "", f"{machine(load)}. {command()}"]
    text = [*title, versions("numpy", "scipy"), "", about, "", *markdown(HEADINGS, lines)]
    write(options.out, "summing", text)


if __name__ == "__main__":
    main()
