"""How many planted repeats `find_groups` finds, and how many distinct rows it takes for repeats.

Usage: python -m benchmarks.groups NAME=FILE.npz … [--planted NAME=FILE.npz …]

A FILE contains `x` (rows, dim) and `y` (rows,), every row distinct. A planted file also contains
`photo` and `kind`: rows of one photograph are repeats of its row of kind `original`.
"""

from __future__ import annotations

import sys

import numpy as np

from clinit.headtrain.heads.repeats import find_groups

COUNTS = (2, 3, 5, 20, 60)
"""Rows per class."""


def wrong(x: np.ndarray, y: np.ndarray) -> float:
    """Return the percentage of distinct rows in groups."""
    _, places, sizes = np.unique(find_groups(x, y), return_inverse=True, return_counts=True)
    return 100 * float((sizes[places] > 1).mean())


def first(y: np.ndarray, count: int) -> np.ndarray:
    """Return the first `count` rows of each class."""
    return np.concatenate([np.flatnonzero(y == label)[:count] for label in np.unique(y)])


def found(x: np.ndarray, y: np.ndarray, photo: np.ndarray) -> tuple[float, float]:
    """Return the percentage of pairs of one photograph, and of rows joined to another one."""
    groups = find_groups(x, y)
    one, same = groups[:, None] == groups, photo[:, None] == photo
    apart = ~np.eye(len(y), dtype=bool)
    pairs = float((one & same & apart).sum() / (same & apart).sum())
    return 100 * pairs, 100 * float((one & ~same).any(axis=1).mean())


def sub_kinds(rng: np.random.Generator, narrow: float, classes: int) -> tuple[np.ndarray, ...]:
    """Return ten classes of 20 rows, of which `classes` consist of four sub-kinds of five rows."""
    y = np.repeat(np.arange(10), 20)
    x = rng.normal(size=(200, 64))
    for label in range(classes):
        middles = np.repeat(rng.normal(size=(4, 64)), 5, axis=0) / narrow
        x[y == label] += middles
    return x, y


def main(arguments: list[str]) -> None:
    """Print both tables."""
    split = arguments.index("--planted") if "--planted" in arguments else len(arguments)
    rng = np.random.default_rng(0)
    sets = {f"normal, d = {d}": rng.normal(size=(1200, d)) for d in (2, 3, 8, 64)}
    of = {name: (x, np.repeat(np.arange(20), 60)) for name, x in sets.items()}
    for name, file in (each.split("=", 1) for each in arguments[:split]):
        stored = np.load(file)
        of[name] = stored["x"], stored["y"]
    print(f"| distinct rows in groups, %, by rows per class | {' | '.join(map(str, COUNTS))} |")
    print("|---|" + "---:|" * len(COUNTS))
    for name, (x, y) in of.items():
        cells = [f"{wrong(x[rows], y[rows]):.1f}" for rows in (first(y, n) for n in COUNTS)]
        print(f"| {name} | {' | '.join(cells)} |")
    for narrow in (0.3, 0.5, 1.0):
        shares = [f"{wrong(*sub_kinds(rng, narrow, classes)):.0f}" for classes in (1, 10)]
        print(f"* Sub-kinds, {narrow} as wide as apart: in 1 of 10 classes, all: {shares}")
    for name, file in (each.split("=", 1) for each in arguments[split + 1 :]):
        stored = np.load(file)
        x, y, kind = stored["x"], stored["y"], stored["kind"]
        photo = np.unique(stored["photo"], return_inverse=True)[1]
        for kinds in [[each] for each in np.unique(kind) if each != "original"] + [np.unique(kind)]:
            cells = []
            for photos in (2, 5):
                originals = np.flatnonzero(kind == "original")
                kept = photo[originals[first(y[originals], photos)]]
                rows = np.isin(kind, ["original", *kinds]) & np.isin(photo, kept)
                cells.append("{:.0f} / {:.1f}".format(*found(x[rows], y[rows], photo[rows])))
            print(f"| {name}, {', '.join(kinds)} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main(sys.argv[1:])
