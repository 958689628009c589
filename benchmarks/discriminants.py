"""New rows before training: discriminants next to other starts, on cached features.

    python benchmarks/discriminants.py NAME BASE NEW [--draws 3] [--out benchmarks]

BASE and NEW are caches of one network. New classes and their images are drawn; all training rows
of the base are old rows. Half of the validation rows of old classes set the price of discriminants
(one point), the others and those of new classes are the test. Columns: top-1 of old / new classes
as delivered; then new top-1 where old classes lose one point, if scale and shift of the new logits
are chosen on the test rows, so that directions alone are judged.
"""  # fmt: skip

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
from harness import CONSOLE, markdown, versions, write

from clinit.extract.cache.features import FeatureSet
from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.start.initialise import initialise
from clinit.headtrain.heads.start.new_rows import NewClasses
from clinit.headtrain.heads.start.settings import Init, Start
from clinit.headtrain.protocol.stream.source import Source, read_source

STARTS: tuple[Init, ...] = ("discriminant", "fitted", "class-mean", "lda")
CELLS = ((5, 1), (5, 2), (5, 5), (5, 20), (25, 1), (25, 5), (1, 5))
"""Numbers of new classes, and of their images."""


def at_a_price(
    old: np.ndarray, labels: np.ndarray, on_old: np.ndarray, new: np.ndarray, own: np.ndarray,
    wanted: np.ndarray,
) -> float:  # fmt: skip
    """Return new top-1 where old classes lose one point, for the best scale and shift.

    Old and new logits of old images, then of new images, each with their labels.
    """
    best, right = 0.0, old.argmax(1) == labels
    for scale in old.std() / max(on_old.std(), 1e-9) * np.geomspace(0.05, 4, 15):
        room = np.sort((old.max(1) - scale * on_old.max(1))[right])
        shift = room[min(len(labels) // 100, len(room) - 1)] - 1e-9
        wins = (own.argmax(1) == wanted) & (scale * own.max(1) + shift > new.max(1))
        best = max(best, float(wins.mean()))
    return 100 * best


def measure(base: Source, new: Source, init: Init, cell: tuple[int, int], seed: int) -> list[float]:
    """Return top-1 of old and new classes, new top-1 at one point, and CPU seconds."""
    (classes, images), random, head = cell, np.random.default_rng(seed), base.head
    assert head is not None
    first = head.num_classes
    chosen = tuple(new.class_names[i] for i in random.permutation(len(new.class_names))[:classes])
    rows, test = new.train.named(chosen), new.val.named(chosen)
    drawn = [random.permutation(np.flatnonzero(rows.labels == c))[:images] for c in range(classes)]
    few = np.concatenate(drawn)
    features = np.concatenate([base.train.features[:], rows.features[few]]).astype("f4")
    labels = np.concatenate([base.train.labels, rows.labels[few] + first])
    weight = np.concatenate([head.weight, np.zeros((classes, head.dim))]).astype("f8")
    all_rows = Rows(weight, np.concatenate([head.bias, np.zeros(classes)]).astype("f8"))
    held = random.random(len(base.val.labels)) < 0.5
    judges, tested = base.val.part(held), base.val.part(~held)
    data, began = (
        NewClasses(features, labels, all_rows, first, first + classes),
        time.process_time(),
    )
    found = initialise(Start(init=init), data, travel=0.0)
    spent, made = time.process_time() - began, found.rows.on_host()

    def logits(of: FeatureSet) -> tuple[np.ndarray, np.ndarray]:
        wide = of.features[:].astype("f8")
        return wide @ head.weight.T + head.bias, wide @ made.weight.T + made.bias

    shift = 0.0
    if found.balance is not None:
        shift = found.balance.judged_by(*logits(judges), judges.labels).shift(1.0)
    (a, b), (c, d) = logits(tested), logits(test)
    price = at_a_price(a, tested.labels, b, c, d, test.labels)
    old = (np.concatenate([a, b + shift], 1).argmax(1) == tested.labels).mean()
    right = (np.concatenate([c, d + shift], 1).argmax(1) == test.labels + first).mean()
    return [100 * float(old), 100 * float(right), price, spent]


def main() -> None:
    """Print the table, and write it with --out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("base", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    base, new, lines = read_source(asked.base), read_source(asked.new), []
    for cell in CELLS:
        for init in STARTS:
            each = [measure(base, new, init, cell, seed) for seed in range(asked.draws)]
            old, added, price, spent = np.mean(each, axis=0)
            shown = f"{old:.1f} / {added:.1f}", f"{price:.1f}", f"{spent:.1f}"
            lines.append((*map(str, cell), init, *shown))
            CONSOLE.print(*lines[-1])
    heading = ["new classes", "images", "start", "old / new", "new at one point", "CPU s"]
    note = f"{asked.name}: {asked.draws} draws, one thread, {versions('numpy', 'scipy')}."
    write(asked.out, f"discriminants-{asked.name}", [note, "", *markdown(heading, lines)])


if __name__ == "__main__":
    main()
