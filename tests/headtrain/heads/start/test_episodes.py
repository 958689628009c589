"""The scale of rows of single images, beside refits in plain loops."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.seeds import Draw, generator
from clinit.headtrain.heads.start.initialise import initialise
from clinit.headtrain.heads.start.new_rows import NewClasses
from clinit.headtrain.heads.start.scale import CASTS, TURNS
from clinit.headtrain.heads.start.settings import Start

OLD, NEW, DIM = 6, 3, 8


def arrival(*, noise: float = 1.0, dim: int = DIM) -> NewClasses:
    """Return Gaussian classes, the best head for the old ones, and one row per new class."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(OLD + NEW, dim))
    labels = np.r_[np.repeat(np.arange(OLD), 6), np.arange(OLD, OLD + NEW)]
    features = centres[labels] + noise * rng.normal(size=(len(labels), dim))
    head = Rows(centres / noise**2, -0.5 * (centres**2).sum(1) / noise**2)
    return NewClasses(features, labels, head, OLD, OLD + NEW)


def of_single_rows(data: NewClasses, *alone: int) -> NewClasses:
    """Return data that hold one row of some old classes."""
    first = np.array([(data.labels[:i] != c).all() for i, c in enumerate(data.labels)])
    kept = first | ~np.isin(data.labels, alone)
    return replace(data, features=data.features[kept], labels=data.labels[kept])


def length(rows: Rows) -> float:
    return float(np.linalg.norm(rows.weight, axis=1).mean())


def least_squares(features: np.ndarray, labels: np.ndarray, lam: float) -> np.ndarray:
    """Solve for rows (weight, bias) of all classes, which weigh alike."""
    counts = np.bincount(labels)
    z = np.column_stack([features, np.ones(len(features))])
    weighted = z / (len(counts) * counts[labels])[:, None]
    system = weighted.T @ z + lam * np.eye(z.shape[1])
    return np.asarray(np.linalg.solve(system, weighted.T @ np.eye(len(counts))[labels]).T)


def naive_losses(data: NewClasses, init: str, lam: float, factors: list[float]) -> np.ndarray:
    """Refit and judge each episode; factors are norms beside that of the pretrained rows."""
    kept = np.flatnonzero(data.labels < data.start)
    kept = kept[np.lexsort((data.features[kept].sum(1), data.labels[kept]))]
    features, labels = data.features[kept], data.labels[kept]
    counts, base = np.bincount(labels), data.start if data.base is None else data.base
    several, present = np.flatnonzero(counts > 1), np.flatnonzero(counts)
    new = data.stop - data.start
    share = new / (new + len(present))
    playing = min(max(1, round(share * len(present))), len(several) // 2)
    rng, plays = generator(0, Draw.EPISODES), []
    for _ in range(CASTS):
        cast = sorted(rng.choice(several, playing, replace=False))
        orders = [rng.permutation(np.flatnonzero(labels == c)) for c in cast]
        others = [
            i
            for i in range(len(labels))
            if labels[i] not in cast and (labels[i] < base or counts[labels[i]] > 1)
        ]
        for turn in range(TURNS):
            images = [order[turn % len(order)] for order in orders]
            rest = [c for c in present if c not in cast]
            sample = [i for i in range(len(labels)) if labels[i] in rest] + images
            renamed = np.array([[*rest, *cast].index(labels[i]) for i in sample])
            rows = np.column_stack([features[images], np.ones(playing)])
            if init == "least-square":
                rows = least_squares(features[sample], renamed, lam)[len(rest) :]
            asides = [[i for i in order if i not in images] for order in orders]
            plays.append((cast, rows, asides, others[turn::TURNS]))
    unit = length(data.pretrained) / np.mean(
        [np.linalg.norm(rows[:, :-1], axis=1) for _, rows, _, _ in plays]
    )
    losses = np.zeros(len(factors))
    for cast, rows, asides, others in plays:
        stand = [c for c in range(data.start) if c not in cast]
        fixed = features @ data.head.weight[stand].T + data.head.bias[stand]
        own = features @ rows[:, :-1].T + rows[:, -1]
        for place, factor in enumerate(factors):
            logits = np.column_stack([fixed, factor * unit * own])
            log_sum = np.log(np.exp(logits).sum(axis=1))
            for k, aside in enumerate(asides):
                values = [log_sum[i] - logits[i, len(stand) + k] for i in aside]
                losses[place] += share / playing * np.mean(values)
            judged = {labels[i] for i in others}
            for c in judged:
                values = [log_sum[i] - fixed[i, stand.index(c)] for i in others if labels[i] == c]
                losses[place] += (1 - share) / len(judged) * np.mean(values)
    return losses / (CASTS * TURNS)


@pytest.mark.parametrize("base", [None, OLD - 1])
@pytest.mark.parametrize("init", ["least-square", "class-mean"])
def test_the_factor_is_that_of_the_least_loss_over_refitted_episodes(init: Any, base: Any) -> None:
    data = replace(of_single_rows(arrival(noise=1.5), 0, OLD - 1), base=base)
    found = initialise(Start(init=init, lam=0.3), data, travel=0.0)
    factor = length(found.rows) / length(data.pretrained)
    assert 0.1 < factor < 1
    near = naive_losses(data, init, 0.3, [0.9 * factor, factor, 1.1 * factor])
    assert found.loss_after == pytest.approx(near[1], rel=1e-9)
    assert near[1] < min(near[0], near[2])


def test_rows_that_will_be_trained_are_longer_by_what_training_moves_and_the_episodes_bear() -> (
    None
):
    data = arrival(noise=1.5)
    found = [initialise(Start(lam=0.3), data, travel=each) for each in (0.0, 0.01, 0.02, 10.0)]
    lengths = [length(each.rows) for each in found]
    np.testing.assert_allclose(np.diff(lengths[:3]), 2 * 0.01 * DIM**0.5, rtol=1e-9)
    best, zeros = naive_losses(data, "least-square", 0.3, [lengths[0] / length(data.pretrained), 0])
    assert found[3].loss_after == pytest.approx(min(best + 0.5, zeros), abs=0.01)
    quiet = arrival(noise=0.1, dim=40)
    trained = initialise(Start(lam=0.3), quiet)
    assert length(trained.rows) == pytest.approx(2 * length(quiet.pretrained))


@pytest.mark.parametrize("init", ["least-square", "class-mean", "imprint", "lda"])
def test_the_order_of_the_rows_does_not_matter(init: Any) -> None:
    data = arrival()
    order = np.random.default_rng(1).permutation(len(data.labels))
    other = replace(data, features=data.features[order], labels=data.labels[order])
    found = [initialise(Start(init=init), each, travel=0.0) for each in (data, other)]
    assert found[0].loss_after is not None
    np.testing.assert_allclose(found[0].rows.weight, found[1].rows.weight, rtol=1e-6)
    again = initialise(Start(init=init), data, travel=0.0)
    np.testing.assert_array_equal(found[0].rows.weight, again.rows.weight)


@pytest.mark.parametrize("travel", [0.0, math.inf])
@pytest.mark.parametrize("alone", [range(OLD), range(1, OLD)])
def test_without_two_old_classes_of_two_rows_the_norm_is_that_of_the_head(
    alone: range, travel: float
) -> None:
    data = of_single_rows(arrival(), *alone)
    found = initialise(Start(), data, travel=travel)
    assert found.loss_after is None
    expected = (2 if travel else 1) * length(data.pretrained)
    assert length(found.rows) == pytest.approx(expected)
