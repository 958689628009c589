"""Classes of a single image: judged by the logit to expect of another image."""

from typing import Any

import numpy as np
import pytest

from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.losses import LOSSES
from clinit.headtrain.heads.start.calibrate import calibrate, norm_factor, together
from clinit.headtrain.heads.start.calibration_set import CalibrationSet
from clinit.headtrain.heads.start.initialise import initialise
from clinit.headtrain.heads.start.lambda_choice import safe_lambda
from clinit.headtrain.heads.start.left_out import leave_one_out
from clinit.headtrain.heads.start.new_rows import NewClasses, raw_rows
from clinit.headtrain.heads.start.settings import Start
from clinit.headtrain.heads.statistics.class_statistics import ClassStatistics
from clinit.headtrain.heads.statistics.solve import LambdaPath

OLD, NEW, DIM = 6, 3, 12
RANDOM = np.random.default_rng(0)
CENTRES = RANDOM.normal(size=(OLD + NEW, DIM)) + 3
ROOT = np.diag(np.linspace(0.3, 1.2, DIM))
"""Of the covariance within classes."""


def arrival(seed: int, *, images: int = 1, old: int = 30) -> NewClasses:
    """Return Gaussian classes, a head for the old ones, and a few rows of each new class."""
    labels = np.repeat(np.arange(OLD + NEW), [old] * OLD + [images] * NEW)
    noise = np.random.default_rng(seed).normal(size=(len(labels), DIM)) @ ROOT
    weight = CENTRES @ np.linalg.inv(ROOT @ ROOT)
    head = Rows(weight, -0.5 * (weight * CENTRES).sum(1))
    return NewClasses(CENTRES[labels] + noise, labels, head, OLD, OLD + NEW)


MEANS = (Start(init="class-mean"), Start(init="class-mean", class_mean="unit"))
SOLVED = (Start(init="least-square", lam=0.3), Start(init="least-square", lam=0.003))
STARTS = (*MEANS, Start(init="imprint"), Start(init="lda"), *SOLVED)


@pytest.mark.parametrize("start", STARTS)
def test_the_expected_logit_is_that_of_another_image_on_average(start: Start) -> None:
    lam: Any = start.lam if start.reads_lambda else None
    gaps, owed = [], []
    for seed in range(40):
        data = arrival(seed)
        statistics = data.statistics()
        rows = raw_rows(start, data, statistics if start.reads_statistics else None, lam)
        sample = CalibrationSet.of(data, LOSSES["ce"])
        logits = leave_one_out(start, rows, sample, statistics, lam).numpy()
        alone = np.flatnonzero(data.labels >= OLD)
        found = logits[alone, np.arange(NEW)]
        true = (rows.weight * CENTRES[OLD:]).sum(1) + rows.bias
        inside = (rows.weight * data.features[alone]).sum(1) + rows.bias
        gaps.append(np.mean(found - true))
        owed.append(np.mean(inside - true))
    # In sample, logits are too large by `owed`; an error of a tenth of it remains at most.
    error = np.std(gaps) / np.sqrt(len(gaps))
    assert np.mean(owed) > 5 * error
    assert abs(np.mean(gaps)) < 0.1 * np.mean(owed) + 3 * error


@pytest.mark.parametrize("init", ["least-square", "fitted"])
def test_scores_along_a_path_of_lambdas_are_those_of_one_lambda(init: Any) -> None:
    data = arrival(3)
    statistics, start = data.statistics(), Start(init=init)
    path, new = LambdaPath.of(statistics), slice(OLD, OLD + NEW)
    sample = CalibrationSet.of(data, LOSSES["ce"])
    alone, variances = data.features[-NEW:], path.variances(statistics.population_covariance)
    for lam in (1e-3, 0.1, 10.0):
        rows = raw_rows(start, data, statistics, lam)
        expected = leave_one_out(start, rows, sample, statistics, lam).numpy()[-NEW:]
        own = path.coordinates(alone), variances
        scores, owed = path.of_other_rows(
            *own, lam, new, with_bias=True, holds_bias=start.holds_bias
        )
        np.testing.assert_allclose(scores - np.diag(owed), expected, rtol=1e-9)


def test_the_only_images_are_judged_by_the_statistics_that_gave_the_rows() -> None:
    data, start = arrival(3), Start(init="least-square", lam=0.3, weighting="sample")
    statistics = data.statistics("sample")
    rows, sample = raw_rows(start, data, statistics, 0.3), CalibrationSet.of(data, LOSSES["ce"])
    logits = leave_one_out(start, rows, sample, statistics, 0.3)
    starts = [np.array([factor, 0.0]) for factor in (1.0, norm_factor(rows, data))]
    (expected,) = together([calibrate(sample, logits, starts)])
    assert initialise(start, data).factor == pytest.approx(expected.factor, rel=1e-6)


def test_without_two_rows_of_any_class_new_rows_have_the_norm_of_old_ones() -> None:
    data = arrival(0, old=1)
    old = np.linalg.norm(data.head.weight[: data.came_with], axis=1).mean()
    assert not ClassStatistics.of(data.features, data.labels).freedom
    for init in ("least-square", "class-mean"):
        found = initialise(Start(init=init), data)  # type: ignore[arg-type]
        assert np.linalg.norm(found.rows.weight, axis=1).mean() == pytest.approx(old)
        assert found.loss_after is None
    found = initialise(Start(), data)
    assert (found.lam, found.curve) == (safe_lambda(LambdaPath.of(data.statistics())), None)
