"""New rows from the names of classes, alone and together with images.

    python benchmarks/names.py SET.npz VECTORS.npz [--out benchmarks]

SET.npz as for `benchmarks/discriminants.py`; VECTORS.npz has the vectors that a sentence encoder
gives to the names of `old` and `new` classes, in their order. Ridge regression with the kernel
exp(2 (cos - 1)) of centred vectors maps old names to centred head rows. A row predicted for a new
name is standardised over old images (mean 0, deviation 1), then multiplied by the mean deviation
of an old logit; with n images, it is 1 / (n + 1) of a row whose rest is the discriminant. Printed:
top-1 of new classes among all classes where old classes lose one point, scale and shift chosen on
the test rows; and as delivered, with a shift for one point of the judges.
"""  # fmt: skip

from __future__ import annotations

import argparse
from itertools import product
from pathlib import Path

import numpy as np
from discriminants import Cell, at_a_price, drawn, started
from harness import CONSOLE, markdown, versions, write
from scipy.stats import t as student
from sklearn.preprocessing import normalize

IMAGES, CLASSES = (0, 1, 2, 5), (5, 15, 25)
RIDGE, DRAWS = 0.2, 5


def standardised(rows: np.ndarray, images: np.ndarray) -> np.ndarray:
    """Return rows and biases whose logits have mean 0 and deviation 1 over images."""
    logits = images @ rows.T
    return np.c_[rows, -logits.mean(0)] / logits.std(0)[:, None]


def priced(cell: Cell, rows: np.ndarray) -> tuple[float, float, float]:
    """Return new top-1 at a price; old and new top-1 as delivered."""
    head, sides = cell.head, (cell.judges, cell.test_old, cell.test_new)
    old = [x @ head.weight.T + head.bias for x, _ in sides]
    new = [x @ rows[:, :-1].T + rows[:, -1] for x, _ in sides]
    right = old[0].argmax(1) == cell.judges[1]
    room = np.sort((old[0].max(1) - new[0].max(1))[right])
    shift = room[min(len(right) // 100, len(room) - 1)] - 1e-9
    labels = cell.test_old[1], cell.test_new[1] + len(head.bias)
    found = [np.c_[a, b + shift].argmax(1) for a, b in zip(old[1:], new[1:], strict=True)]
    kept, learnt = (100 * float((f == y).mean()) for f, y in zip(found, labels, strict=True))
    return at_a_price(cell, new[1], new[2]), kept, learnt


def interval(values: np.ndarray) -> str:
    """Return mean and half of the 95 % interval."""
    half = student.ppf(0.975, len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5
    return f"{values.mean():+.1f} ± {half:.1f}"


def lines_of(path: Path, names: Path) -> list[tuple[str, ...]]:
    """Return the lines of one set."""
    z, vectors = dict(np.load(path)), dict(np.load(names))
    weight, mean = z["W"].astype("f8"), vectors["old"].mean(0)
    old, new = (normalize(vectors[side].astype("f8") - mean) for side in ("old", "new"))
    images = z["bx"][[np.flatnonzero(z["by"] == c)[0] for c in range(len(weight))]].astype("f8")
    kernel, across = (np.exp(2 * (each @ old.T - 1)) for each in (old, new))
    centred = weight - weight.mean(0)
    dual = np.linalg.solve(kernel + RIDGE * np.eye(len(kernel)), centred)
    named = standardised(across @ dual, images)
    nearest = standardised(centred[(new @ old.T).argmax(1)], images)
    size, lines = float(np.sqrt((images @ weight.T).var(0).mean())), []
    for classes, count in product(CLASSES, IMAGES):
        found = []
        for seed in range(DRAWS):
            cell = drawn(z, max(count, 1), classes, seed)
            chosen = np.random.default_rng(seed).permutation(z["ny"].max() + 1)[:classes]
            without = size * nearest[chosen]
            if count:
                rows = started(cell, "discriminant").rows.on_host()
                without = np.c_[rows.weight, rows.bias]
            spread = float(np.sqrt((images @ without[:, :-1].T).var(0).mean()))
            share = 1 / (count + 1)
            joined = spread * share * named[chosen] + (1 - share) * without
            found.append([priced(cell, without), priced(cell, joined)])
        (a, b), gains = np.mean(found, 0), np.diff(found, axis=1)[:, 0]
        shown = [f"{x:.1f} → {y:.1f}" for x, y in zip(a, b, strict=True)]
        shown += [interval(gains[:, 0]), interval(gains[:, 2])]
        lines.append((path.stem, str(classes), str(count), *shown))
        CONSOLE.print(*lines[-1])
    return lines


def main() -> None:
    """Print the table, and write it with --out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("set", type=Path)
    parser.add_argument("vectors", type=Path)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    lines = lines_of(asked.set, asked.vectors)
    heading = ["set", "classes", "images", "at a price", "old", "new", "gain", "gain in new"]
    note = f"{DRAWS} draws, one thread, {versions('numpy', 'scipy')}."
    write(asked.out, f"names_{asked.set.stem}", [note, "", *markdown(heading, lines)])


if __name__ == "__main__":
    main()
