"""One row, one class or one group more changes little: the default of `add`, rules that count.

Rules that branch on "any class has two images" moved accuracies by up to thirty points.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from clinit.extract.cache.features import FeatureSet
from clinit.extract.cache.head import Head
from clinit.headtrain.heads.groups import held_out_rows
from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.repeats import find_groups
from clinit.headtrain.heads.start.initialise import initialise
from clinit.headtrain.heads.start.new_rows import NewClasses
from clinit.headtrain.heads.start.scale import Balance
from clinit.headtrain.heads.start.settings import Start
from clinit.headtrain.model.addition import Examined
from clinit.headtrain.model.predict import scores

OLD, NEW = 8, 6
Sides = dict[str, tuple[np.ndarray, np.ndarray]]


def gaussian(dim: int, apart: float, tail: float) -> Sides:
    """Return features and labels of normal classes whose variances fall with a power."""
    random = np.random.default_rng(dim)
    spread = np.arange(1, dim + 1) ** -tail
    centres = apart * random.normal(size=(OLD + NEW, dim)) * np.sqrt(spread) + 1
    labels = np.repeat(np.arange(OLD + NEW), 90)
    noise = random.normal(size=(len(labels), dim)) * np.sqrt(spread)
    return {"rows": (centres[labels] + noise, labels)}


def stored(name: str) -> Sides:
    with np.load(Path(os.environ["CLINIT_REALDATA"]) / "features" / f"{name}.npz") as file:
        x, y = file["x"].astype(np.float64), file["y"]
    kept = y < OLD + NEW
    return {"rows": (x[kept], y[kept])}


SETS: dict[str, Callable[[], Sides]] = {
    "narrow": lambda: gaussian(10, 1.5, 0.5),
    "wide": lambda: gaussian(60, 0.6, 0.5),
    "uneven": lambda: gaussian(40, 1.0, 1.5),
    "text": lambda: stored("text"),
    "audio": lambda: stored("audio"),
}
CHANGES = ("a row more", "a class more", "a group more")


def arrivals(rows: np.ndarray, labels: np.ndarray, seed: int) -> Iterator[tuple[np.ndarray, Any]]:
    """Yield row numbers and groups: at first, then after each change; the last class is extra."""
    random = np.random.default_rng(seed)
    order = [random.permutation(np.flatnonzero(labels == c)) for c in range(OLD + NEW)]
    old = np.concatenate([each[:25] for each in order[:OLD]])
    counts = [1] * (NEW - 1) if seed % 2 else random.integers(1, 4, NEW - 1).tolist()
    new = [order[OLD + c][: counts[c]] for c in range(NEW - 1)]
    usual = np.concatenate([old, *new])
    more = np.append(usual, order[OLD][counts[0]])
    yield usual, None
    yield more, None
    yield np.append(usual, order[-1][0]), None
    # The second row repeats the first: a group of two.
    yield more, np.append(np.arange(len(usual)), len(old))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=[
                pytest.mark.realdata,
                pytest.mark.skipif("CLINIT_REALDATA" not in os.environ, reason="no real data"),
            ]
            if name in ("text", "audio")
            else [],
        )
        for name in SETS
    ],
)
def test_a_row_a_class_or_a_group_more_moves_accuracies_by_little(name: str) -> None:
    rows, labels = SETS[name]()["rows"]
    half = np.arange(len(labels)) % 2 == 0
    base = half & (labels < OLD)
    model = LogisticRegression(max_iter=300).fit(rows[base], labels[base])
    tested = ~half & (labels < OLD + NEW - 1)
    moved: list[np.ndarray] = []
    for seed in range(50):
        found = []
        for chosen, groups in arrivals(rows[half], labels[half], seed):
            classes = int(labels[half][chosen].max()) + 1
            head = Rows(np.zeros((classes, rows.shape[1])), np.zeros(classes))
            head.weight[:OLD], head.bias[:OLD] = model.coef_, model.intercept_
            data = NewClasses(rows[half][chosen], labels[half][chosen], head, OLD, classes)
            started = initialise(Start(init="discriminant"), replace(data, groups=groups)).rows
            scores = rows[tested] @ np.concatenate([model.coef_, started.weight]).T
            scores += np.concatenate([model.intercept_, started.bias])
            right, of = scores.argmax(1) == labels[tested], labels[tested]
            # The class that gets the second row improves: it is left out.
            others = (of > OLD) & (of < OLD + NEW - 1)
            found.append([100 * right[of < OLD].mean(), 100 * right[others].mean()])
        moved.append(np.array(found[1:]) - np.array(found[0]))
    mean, error = np.mean(moved, axis=0), np.std(moved, axis=0) / len(moved) ** 0.5
    for change, by, uncertain in zip(CHANGES, mean, error, strict=True):
        # A class more takes answers from the others.
        most = 1 + 2 * uncertain + (100 / NEW if change == "a class more" else 0)
        assert (np.abs(by) < most).all(), f"{change}: old, new {by} +- {uncertain}"


def shares(found: Examined, test: np.ndarray) -> list[float]:
    """Return what rules that count decide, as shares of rows.

    Rows that repeat others, that choose the strength of an anchor, that new classes take at a
    price, that are rejected if a tenth of known rows are; and the mean confidence.
    """
    _, old, new = found
    rows, labels = np.concatenate([old.features, new.features]), np.append(old.labels, new.labels)
    kinds, own = np.maximum(labels, OLD - 1), np.arange(len(labels))
    here, every = (each @ found.head.weight.T + found.head.bias for each in (rows, test))
    room, gap = (each[:, :OLD].max(1) - each[:, OLD:].max(1) for each in (here, every))
    is_new = labels >= OLD
    balance = Balance(np.sort(room[~is_new]), int((~is_new).sum()), room[is_new], 0.0)
    known, fitted = found.known(), found.temperature()
    assert known is not None
    sure = scores("probability", every / (1.0 if fitted is None else fitted.value), "softmax")
    decided = [
        find_groups(rows, labels) != own,
        held_out_rows(kinds, own, 0.2, np.random.default_rng(0)),
        gap < balance.shift(2.0),
        scores(known.rule, every, "softmax") < known.levels[known.rule][10],
        sure,
    ]
    return [100 * float(each.mean()) for each in decided]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["narrow", "wide", "uneven"])
def test_a_row_or_a_class_more_moves_rules_that_count_by_little(name: str) -> None:
    rows, labels = SETS[name]()["rows"]
    rows, half = rows.astype(np.float32), np.arange(len(labels)) % 2 == 0
    model = LogisticRegression(max_iter=300).fit(rows[half], labels[half])
    names = tuple(f"{each:02}" for each in range(OLD + NEW))
    head = Head(model.coef_.astype(np.float32), model.intercept_.astype(np.float32), names)
    moved = []
    for seed in range(50):
        random, found = np.random.default_rng(seed), []
        order = [
            random.permutation(np.flatnonzero(~half & (labels == c))) for c in range(OLD + NEW)
        ]
        usual = np.concatenate([each[: 15 if c < OLD else 5] for c, each in enumerate(order[:-1])])
        for chosen in (usual, np.append(usual, order[OLD][5]), np.append(usual, order[-1][0])):
            sides = [chosen[labels[chosen] < OLD], chosen[labels[chosen] >= OLD]]
            parts = (FeatureSet(rows[each], labels[each], names) for each in sides)
            found.append(shares(Examined(head, *parts), rows[~half]))
        moved.append(np.array(found[1:]) - found[0])
    mean, error = np.mean(moved, axis=0), np.std(moved, axis=0) / len(moved) ** 0.5
    assert (np.abs(mean) < 1 + 2 * error).all(), f"{mean} +- {error}"
