from __future__ import annotations

import numpy as np
import pytest
import torch

from clinit.headtrain.probe import fit as standardise
from clinit.headtrain.probe.fit import Standard
from clinit.headtrain.train.rows import LabelledRows

FEATURES = (5 + 3 * np.random.default_rng(0).normal(size=(50, 4))).astype(np.float32)
FEATURES[:, 2] = 7


def rows() -> LabelledRows:
    return LabelledRows.on(torch.device("cpu"), FEATURES, np.zeros(50, np.int64))


def test_features_get_mean_0_and_deviation_1_and_constant_ones_stay_constant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(standardise.blocks, "__defaults__", (7,))
    found = Standard.of(rows()).apply(torch.from_numpy(FEATURES)).numpy()
    np.testing.assert_allclose(found.mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(found.std(0), [1, 1, 0, 1], atol=1e-6)


def test_a_folded_head_gives_the_logits_of_the_head_on_standardised_features() -> None:
    rng = np.random.default_rng(1)
    weight, bias = torch.from_numpy(rng.normal(size=(3, 4))), torch.from_numpy(rng.normal(size=3))
    standard = Standard.of(rows())
    expected = standard.apply(torch.from_numpy(FEATURES)) @ weight.T + bias
    folded = standard.folded(weight, bias)
    np.testing.assert_allclose(FEATURES @ folded.weight.T + folded.bias, expected, atol=1e-9)
