"""No copy of a row is on the other side of anything that is held out."""

from typing import Any

import numpy as np
import pytest

from clinit.extract.cache.features import FeatureSet
from clinit.extract.cache.head import Head
from clinit.headtrain.closed.ranpac import HELD_OUT, RidgePath
from clinit.headtrain.experiment import run_experiment
from clinit.headtrain.groups import held_out_rows
from clinit.headtrain.probe import fit_head, protocol
from clinit.headtrain.probe.settings import ProbeConfig
from clinit.headtrain.runs import RunData
from clinit.headtrain.stream.buffer import Buffer, Pool, balanced, correction_rows
from clinit.headtrain.stream.source import Source
from clinit.headtrain.study.study import Study

CLASSES, PHOTOGRAPHS, COPIES, DIM = 4, 12, 3, 16
IMAGES = np.random.default_rng(1).permutation(np.repeat(np.arange(CLASSES * PHOTOGRAPHS), COPIES))
"""The photograph that each row is a copy of; photographs of a class follow each other."""
LABELS = IMAGES // PHOTOGRAPHS
FEATURES = np.random.default_rng(2).normal(size=(CLASSES * PHOTOGRAPHS, DIM)).astype(np.float32)
NAMES = ("ant", "bee", "cat", "dog")
ROWS = FeatureSet(FEATURES[IMAGES], LABELS, NAMES)
SOURCE = Source(ROWS, FeatureSet(FEATURES[:0], LABELS[:0], NAMES))


def share(held: np.ndarray) -> float:
    """The share of the rows that is held out; no photograph is on both sides."""
    assert not set(IMAGES[held]) & set(IMAGES[~held])
    return float(held.mean())


def rows_with(features: np.ndarray) -> np.ndarray:
    """Which rows these features are of."""
    return np.array([(row == features).all(axis=1).any() for row in ROWS.features])


@pytest.mark.parametrize("module", [protocol, fit_head])
def test_a_probe_and_a_fitted_head_hold_out_whole_groups(
    module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[np.ndarray] = []

    def spied(*given: Any) -> np.ndarray:
        held.append(held_out_rows(*given))
        return held[-1]

    monkeypatch.setattr(module, "held_out_rows", spied)
    if module is fit_head:
        fit_head.fit_head(SOURCE, "lda")
    else:
        protocol.probe(SOURCE, ProbeConfig(by="lbfgs", c=(0.1, 1.0), device="cpu"))
    assert share(held[0]) == 2 / PHOTOGRAPHS


def test_a_sweep_holds_out_whole_groups() -> None:
    head = Head(np.zeros((CLASSES, DIM), np.float32), np.zeros(CLASSES, np.float32), NAMES)
    found = RunData(SOURCE, SOURCE, head).held_out(0.25, seed=0).base
    held = rows_with(found.val.features[:])
    assert share(held) == 0.25
    assert len(found.train.labels) == (~held).sum()


def test_what_bias_correction_looks_at_is_repeated_in_no_other_row() -> None:
    labels = np.append(LABELS, -1)  # and a row of no class of the experiment
    pool = Pool(
        (np.append(ROWS.features, ROWS.features[:1], axis=0), labels),
        groups=lambda: np.where(labels < 2, np.arange(len(labels)), np.append(IMAGES, -1) + 1000),
    )
    aside = correction_rows(pool, Buffer(pool, balanced(50), seed=0), 2, CLASSES, seed=0)
    assert share(aside[:-1]) == pytest.approx(0.1, abs=0.05)
    assert not aside[-1]


def test_ranpac_chooses_lambda_on_other_photographs(monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[np.ndarray] = []

    def spied(*given: Any) -> RidgePath:
        judged.append(given[-1])
        return of_rows(*given)

    of_rows = RidgePath.of_rows
    monkeypatch.setattr(RidgePath, "of_rows", spied)
    names = ("eel", "fox")
    base = FeatureSet(-FEATURES[:2], np.arange(2), names)
    head = Head(np.zeros((2, DIM), np.float32), np.zeros(2, np.float32), names)
    asked = {"method": "ranpac", "ranpac_width": 200, "tasks": 1, "device": "cpu"}
    new = Source(ROWS, ROWS)
    run_experiment(Source(base, base), new, head, [Study.of(asked)])
    assert share(rows_with(judged[0])) == pytest.approx(HELD_OUT, abs=0.02)
