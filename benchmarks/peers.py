"""A few photographs of new classes: clinit next to what people do instead, on the same features.

    python benchmarks/modalities.py CACHES WORK        # writes WORK/set.npz
    PYTHONPATH=FOLDER python benchmarks/peers.py WORK/set.npz [--draws 3] [--out benchmarks]

FOLDER is for packages that clinit does not need, `pip install --target FOLDER vyntri fastai`; what
is not there is left out. New classes and their rows are drawn; all
ways get the same rows. `append`: the rows of a logistic regression on the new rows alone are
appended to the old head. `logistic`: logistic regression on all old and new rows, as SetFit fits
its head. Only `append` and `clinit add` work without old rows.
"""  # fmt: skip

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from discriminants import Cell, drawn
from harness import CONSOLE, markdown, versions, write
from sklearn.linear_model import LogisticRegression

import clinit

IMAGES, CLASSES = (1, 5, 20), (5, 50)
PACKAGES = ("vyntri", "fastai")


def both(cell: Cell) -> tuple[np.ndarray, np.ndarray]:
    """Return rows and labels of all classes; new labels follow those of old classes."""
    (x, y), (nx, ny) = cell.old, cell.new
    return np.concatenate([x, nx]), np.concatenate([y, ny + len(cell.head.bias)])


Answer = Callable[[np.ndarray], np.ndarray]
"""Labels of rows."""


def append(cell: Cell) -> Answer:
    """Append the rows of a logistic regression on new rows to the head."""
    model = LogisticRegression(max_iter=1000).fit(*cell.new)
    weight = np.concatenate([cell.head.weight, model.coef_])
    bias = np.concatenate([cell.head.bias, model.intercept_])
    return lambda x: (x @ weight.T + bias).argmax(1)


def added(cell: Cell, **more: Any) -> Answer:
    """Add the classes to the head by clinit."""
    count, (x, y) = len(cell.head.bias), cell.new
    head = clinit.Model(cell.head.as_head([str(c) for c in range(count)]))
    model = head.add((x, (y + count).astype(str)), **more).model
    names = np.array(model.class_names).astype(int)
    return lambda x: names[model.logits(x).argmax(1)]


def with_old(cell: Cell) -> Answer:
    """Add the classes, with old rows."""
    rows = clinit.FeatureSet(*cell.old, tuple(map(str, range(len(cell.head.bias)))))
    return added(cell, old=clinit.Source(rows, rows.nothing()))


def logistic(cell: Cell) -> Answer:
    """Fit a logistic regression to all rows."""
    return LogisticRegression(max_iter=300).fit(*both(cell)).predict  # type: ignore[no-any-return]


def vyntri(cell: Cell) -> Answer:
    """Fit vyntri's projection and ridge, whose `update` gives the same as a joint fit."""
    from vyntri.adaptation.projection import FKProjection
    from vyntri.adaptation.ridge import AnalyticRidge

    x, y = both(cell)
    dim = min(128, x.shape[1], len(np.unique(y)) - 1)
    projection = FKProjection(dim, shrinkage="diagonal", shrinkage_alpha=0.5).fit(x, y)
    ridge = AnalyticRidge().fit(projection.transform(x), y)
    return lambda x: ridge.predict(projection.transform(x))


def fastai(cell: Cell) -> Answer:
    """Train fastai's default network for tables, for ten epochs."""
    import pandas
    from fastai.tabular.all import CategoryBlock, Normalize, TabularDataLoaders, tabular_learner

    x, y = both(cell)
    names = [f"f{number}" for number in range(x.shape[1])]
    table = pandas.DataFrame(x, columns=names).assign(label=y)
    told = {"y_names": "label", "y_block": CategoryBlock(), "cont_names": names}
    # No row is set aside: the class of a single row would be unknown.
    loaders = TabularDataLoaders.from_df(table, procs=[Normalize], valid_idx=[], **told)
    learner = tabular_learner(loaders)
    with learner.no_bar(), learner.no_logging():
        learner.fit_one_cycle(10)
    vocabulary = np.array(loaders.vocab)

    def answer(x: np.ndarray) -> np.ndarray:
        rows = loaders.test_dl(pandas.DataFrame(x, columns=names))
        with learner.no_bar():
            return vocabulary[learner.get_preds(dl=rows)[0].argmax(1).numpy()]

    return answer


WAYS: dict[str, Callable[[Cell], Answer]] = {
    "append": append,
    "clinit add": added,
    "clinit add --old": with_old,
    "logistic": logistic,
    "vyntri": vyntri,
    "fastai": fastai,
}


def main() -> None:
    """Print the table, and write it with --out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("set", type=Path)
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=tuple(WAYS))
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    with np.load(asked.set) as stored:
        z = dict(stored)
    ways = {name: WAYS[name] for name in asked.only if name not in PACKAGES or find_spec(name)}
    lines = []
    for classes, images, (name, way) in product(CLASSES, IMAGES, ways.items()):
        told = []
        for seed in range(asked.draws):
            cell, began = drawn(z, images, classes, seed), time.process_time()
            answer = way(cell)
            spent, first = time.process_time() - began, len(cell.head.bias)
            tests = (cell.test_old, 0), (cell.test_new, first)
            told.append([*(100 * np.mean(answer(x) == y + k) for (x, y), k in tests), spent])
        old, new, spent = np.mean(told, axis=0)
        lines.append((str(classes), str(images), name, f"{old:.1f}", f"{new:.1f}", f"{spent:.1f}"))
        CONSOLE.print(*lines[-1])
    heading = ["new classes", "photographs of each", "way", "old top-1, %", "new top-1, %", "CPU s"]
    used = versions("clinit", "scikit-learn", *(name for name in ways if name in PACKAGES))
    note = f"Mean of {asked.draws} draws, one thread, {used}."
    write(asked.out, "peers", [note, "", *markdown(heading, lines)])


if __name__ == "__main__":
    main()
