"""New rows before training, on ten sets of features: discriminants next to five other ways.

    python benchmarks/discriminants.py SET.npz [SET.npz ...] [--draws 5] [--slow] [--out benchmarks]

A set has arrays bx, by, vx, vy (old classes: training rows, test rows), nx, ny, tx, ty (new ones),
and the head W, b of the old classes; `benchmarks/modalities.py` writes such files. New classes and
their rows are drawn; all training rows of the base are old rows. Half of the test rows of old
classes set the price of discriminants (one point), the others and those of new classes are the
test. Of each way: top-1 of new classes where old classes lose one point, if scale and shift of the
new logits are chosen on the test rows, so that directions alone are judged; of discriminants and
`fitted` also top-1 of old / new classes as delivered. --slow also runs `fitted` on wide features.
"""  # fmt: skip

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from harness import CONSOLE, markdown, versions, write
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression

from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.repeats import find_groups
from clinit.headtrain.heads.start.initialise import initialise
from clinit.headtrain.heads.start.new_rows import NewClasses
from clinit.headtrain.heads.start.scale import Balance, Initialisation
from clinit.headtrain.heads.start.settings import Init, Start

IMAGES, CLASSES = (1, 2, 5, 20, 100), (1, 5, 25)
LINEAR = ("discriminant", "fitted", "class means", "lda, ledoit-wolf", "logistic")
RANDOM_FEATURES = 2000


class Cell(NamedTuple):
    """One draw: old and new rows, test rows, and the head."""

    old: tuple[np.ndarray, np.ndarray]
    new: tuple[np.ndarray, np.ndarray]
    judges: tuple[np.ndarray, np.ndarray]
    test_old: tuple[np.ndarray, np.ndarray]
    test_new: tuple[np.ndarray, np.ndarray]
    head: Rows


def drawn(z: dict[str, np.ndarray], images: int, classes: int, seed: int) -> Cell:
    """Draw classes and their rows."""
    random = np.random.default_rng(seed)
    chosen = random.permutation(z["ny"].max() + 1)[:classes]
    place = np.full(z["ny"].max() + 1, -1)
    place[chosen] = np.arange(classes)
    rows = [random.permutation(np.flatnonzero(z["ny"] == c))[:images] for c in chosen]
    few, kept = np.concatenate(rows), place[z["ty"]] >= 0
    half = random.random(len(z["vy"])) < 0.5
    return Cell(
        (z["bx"].astype("f4"), z["by"]),
        (z["nx"][few].astype("f4"), place[z["ny"][few]]),
        (z["vx"][half].astype("f8"), z["vy"][half]),
        (z["vx"][~half].astype("f8"), z["vy"][~half]),
        (z["tx"][kept].astype("f8"), place[z["ty"][kept]]),
        Rows(z["W"].astype("f8"), z["b"].astype("f8")),
    )


def started(cell: Cell, init: Init, scale: str = "calibrated") -> Initialisation:
    """Return rows of clinit."""
    (old, labels), (new, own), head = cell.old, cell.new, cell.head
    count, classes = len(head.bias), int(own.max()) + 1
    features, every = np.concatenate([old, new]), np.concatenate([labels, own + count])
    grown = Rows(
        np.concatenate([head.weight, np.zeros((classes, features.shape[1]))]),
        np.concatenate([head.bias, np.zeros(classes)]),
    )
    groups = find_groups(features, every)
    data = NewClasses(features, every, grown, count, count + classes, count, groups)
    return initialise(Start(init=init, scale=scale), data)  # type: ignore[arg-type]


def lda(cell: Cell) -> Rows:
    """Return the rows of new classes of shrunken LDA over all classes with rows."""
    (old, labels), (new, own) = cell.old, cell.new
    every = np.concatenate([labels, own + 10**6])
    model = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto")
    known, _counts = np.unique(every, return_counts=True)
    model.set_params(priors=np.full(len(known), 1 / len(known))).fit(
        np.concatenate([old, new]).astype("f8"), every
    )
    classes = int(own.max()) + 1
    if len(known) == 2:
        return Rows(model.coef_, model.intercept_)
    return Rows(model.coef_[-classes:], model.intercept_[-classes:])


def logistic(cell: Cell) -> Rows:
    """Return logistic rows of the new classes against all old rows as one class."""
    (old, _), (new, own) = cell.old, cell.new
    features = np.concatenate([old, new])
    mean, deviation = features.mean(0), features.std(0) + 1e-9
    labels = np.concatenate([np.zeros(len(old), int), own + 1])
    model = LogisticRegression(class_weight="balanced", max_iter=300)
    model.fit((features - mean) / deviation, labels)
    weight = model.coef_ if len(model.coef_) == 1 else model.coef_[1:] - model.coef_[:1]
    bias = model.intercept_ if len(weight) == 1 else model.intercept_[1:] - model.intercept_[:1]
    weight = weight / deviation
    return Rows(weight, bias - weight @ mean)


def ranpac(cell: Cell) -> tuple[Callable[[np.ndarray], np.ndarray], Rows]:
    """Return random ReLU features, and ridge regression of new classes on them."""
    (old, _labels), (new, own) = cell.old, cell.new
    random = np.random.default_rng(0)
    mixed = random.standard_normal((old.shape[1], RANDOM_FEATURES)).astype("f4")

    def mapped(rows: np.ndarray) -> np.ndarray:
        return np.maximum(rows.astype("f4") @ mixed, 0).astype("f8")

    rows, count = mapped(np.concatenate([old, new])), int(own.max()) + 1
    targets = np.concatenate([np.zeros((len(old), count)), np.eye(count)[own]])
    gram = rows.T @ rows
    size = np.trace(gram) / len(gram)
    solved = np.linalg.solve(gram + 1e-2 * size * np.eye(len(gram)), rows.T @ targets)
    return mapped, Rows(solved.T, np.zeros(count))


def at_a_price(cell: Cell, on_old: np.ndarray, on_new: np.ndarray) -> float:
    """Return new top-1 where old classes lose one point, for the best scale and shift."""
    (x, y), (tx, ty), head = cell.test_old, cell.test_new, cell.head
    old, other = x @ head.weight.T + head.bias, tx @ head.weight.T + head.bias
    best, right = 0.0, old.argmax(1) == y
    for scale in old.std() / max(on_old.std(), 1e-9) * np.geomspace(0.05, 4, 15):
        room = np.sort((old.max(1) - scale * on_old.max(1))[right])
        shift = room[min(len(y) // 100, len(room) - 1)] - 1e-9
        wins = (on_new.argmax(1) == ty) & (scale * on_new.max(1) + shift > other.max(1))
        best = max(best, float(wins.mean()))
    return 100 * best


def delivered(cell: Cell, found: Initialisation) -> tuple[float, float]:
    """Return top-1 of old and new classes with rows as they are added, at a price of one point."""
    rows, head = found.rows.on_host(), cell.head

    def logits(features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return features @ head.weight.T + head.bias, features @ rows.weight.T + rows.bias

    shift = 0.0
    if found.balance is not None:
        (old, new), labels = logits(cell.judges[0]), cell.judges[1]
        judged = Balance.of(old.max(1), old.argmax(1) == labels, 0 * labels - 1, new)
        shift = found.balance._replace(room=judged.room, judged=judged.judged).shift(1.0)
    both = []
    for (features, labels), first in ((cell.test_old, 0), (cell.test_new, len(head.bias))):
        a, b = logits(features)
        both.append(np.concatenate([a, b + shift], 1).argmax(1) == labels + first)
    return 100 * float(both[0].mean()), 100 * float(both[1].mean())


def measured(cell: Cell, *, slow: bool) -> dict[str, tuple[float, ...]]:
    """Return, for each way: new top-1 at a price, old and new as delivered, CPU seconds."""
    found: dict[str, tuple[float, ...]] = {}
    plain: dict[str, Callable[[], Rows]] = {
        "class means": lambda: started(cell, "class-mean", "norm").rows.on_host(),
        "lda, ledoit-wolf": lambda: lda(cell),
        "logistic": lambda: logistic(cell),
    }
    for init in ("discriminant", "fitted"):
        if init == "fitted" and not slow and cell.old[0].shape[1] > 1000:
            continue
        began = time.process_time()
        start = started(cell, init)  # type: ignore[arg-type]
        spent, rows = time.process_time() - began, start.rows.on_host()
        price = at_a_price(
            cell, *(x @ rows.weight.T + rows.bias for x, _ in (cell.test_old, cell.test_new))
        )
        found[init] = (price, *delivered(cell, start), spent)
    for name, make in plain.items():
        rows = make()
        logits = (x @ rows.weight.T + rows.bias for x, _ in (cell.test_old, cell.test_new))
        found[name] = (at_a_price(cell, *logits),)
    mapped, rows = ranpac(cell)
    logits = (mapped(x) @ rows.weight.T for x, _ in (cell.test_old, cell.test_new))
    found["ranpac"] = (at_a_price(cell, *logits),)
    return found


def table(path: Path, draws: int, *, slow: bool) -> list[tuple[str, ...]]:
    """Return the lines of one set."""
    with np.load(path) as stored:
        z = dict(stored)
    lines, most = [], int(np.bincount(z["ny"]).min())
    for classes in (each for each in CLASSES if each <= z["ny"].max() + 1):
        for images in (each for each in IMAGES if each <= most):
            each = [measured(drawn(z, images, classes, s), slow=slow) for s in range(draws)]
            mean = {name: np.mean([one[name] for one in each], axis=0) for name in each[0]}
            shown = [f"{mean[name][0]:.1f}" if name in mean else "" for name in (*LINEAR, "ranpac")]
            new, former = mean["discriminant"], mean.get("fitted")
            shown.append(f"{new[1]:.1f} / {new[2]:.1f}")
            shown.append("" if former is None else f"{former[1]:.1f} / {former[2]:.1f}")
            shown.append(f"{new[3]:.1f}" + ("" if former is None else f" / {former[3]:.1f}"))
            lines.append((path.stem, str(classes), str(images), *shown))
            CONSOLE.print(*lines[-1])
    return lines


def main() -> None:
    """Print the table, and write it with --out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sets", type=Path, nargs="+")
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--slow", action="store_true")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)  # of scikit-learn: classes of a single row
    lines = [line for path in asked.sets for line in table(path, asked.draws, slow=asked.slow)]
    heading = ["set", "classes", "images", *LINEAR, "ranpac", "discriminant: old / new"]
    heading += ["fitted: old / new", "CPU s"]
    note = f"{asked.draws} draws, one thread, {versions('numpy', 'scipy', 'scikit-learn')}."
    write(asked.out, "discriminants", [note, "", *markdown(heading, lines)])


if __name__ == "__main__":
    main()
