import math

import numpy as np
import pytest
import torch
from scipy.special import logsumexp

from clinit.errors import ModelError
from clinit.extract.cache.features import FeatureSet
from clinit.extract.cache.head import Head
from clinit.headtrain.model.memory import Memory
from clinit.headtrain.model.predict import SCORES, Rejection

NAMES = ("a", "b", "c")


@pytest.fixture
def head() -> Head:
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(3, 4)).astype(np.float32)
    return Head(weight, rng.normal(size=3).astype(np.float32), NAMES)


def memory(rows: int) -> Memory:
    """Return a memory with that many held-out rows."""
    rng = np.random.default_rng(1)

    def draw(count: int) -> FeatureSet:
        features = rng.normal(size=(count, 4)).astype(np.float16)
        return FeatureSet(features, rng.integers(0, 3, count), NAMES)

    return Memory.of(draw(30), {}, held_out=draw(rows))


def naive_scores(rule: str, head: Head, features: np.ndarray) -> np.ndarray:
    logits = features.astype(np.float64) @ head.weight.T.astype(np.float64) + head.bias
    found = logsumexp(logits, axis=1) if rule == "energy" else logits.max(axis=1)
    return np.asarray(found)


@pytest.mark.parametrize("rule", list(SCORES))
@pytest.mark.parametrize("rate", [0.0, 0.05, 0.1, 0.333, 0.99])
@pytest.mark.parametrize("rows", [1, 10, 999])
def test_the_threshold_turns_away_the_share_of_held_out_images_that_is_allowed(
    head: Head, rule: str, rate: float, rows: int
) -> None:
    remembered = memory(rows)
    found = Rejection.at_rate(rule, rate, head, remembered)
    scores = naive_scores(rule, head, remembered.held_out.features)
    assert found.threshold == pytest.approx(sorted(scores)[math.floor(rate * rows)], rel=1e-5)
    assert (scores < found.threshold - 1e-5).sum() == math.floor(rate * rows) <= rate * rows


@pytest.mark.parametrize("rule", list(SCORES))
def test_scores_are_those_of_their_formula(head: Head, rule: str) -> None:
    features = memory(50).held_out.features
    logits = torch.from_numpy(features.astype(np.float32) @ head.weight.T + head.bias)
    found = Rejection(rule, 0.0).scores(logits).numpy()
    np.testing.assert_allclose(found, naive_scores(rule, head, features), rtol=1e-5, atol=1e-5)


def test_energy_is_at_least_the_largest_logit_and_at_most_log_classes_more() -> None:
    logits = torch.randn(100, 7, generator=torch.Generator().manual_seed(0))
    energy = Rejection("energy", 0.0).scores(logits)
    largest = Rejection("max-logit", 0.0).scores(logits)
    assert (energy >= largest).all()
    assert (energy <= largest + math.log(7) + 1e-5).all()


def test_a_memory_without_held_out_images_is_refused(head: Head) -> None:
    with pytest.raises(ModelError, match="remembers no held-out image") as caught:
        Rejection.at_rate("energy", 0.05, head, memory(0))
    assert "clinit remember MODEL IMAGES" in caught.value.remedy
    assert "--threshold" in caught.value.remedy


@pytest.mark.parametrize(
    ("rule", "threshold", "message"),
    [("softmax", 0.0, "rule must be one of energy, max-logit"), ("energy", math.nan, "finite")],
)
def test_nonsense_is_refused(rule: str, threshold: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Rejection(rule, threshold)


@pytest.mark.parametrize("rate", [-0.1, 1.0, math.nan])
def test_a_rate_is_a_share(head: Head, rate: float) -> None:
    with pytest.raises(ValueError, match=r"rate must lie in \[0, 1\)"):
        Rejection.at_rate("energy", rate, head, memory(3))
