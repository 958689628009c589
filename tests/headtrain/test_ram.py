from __future__ import annotations

import pytest
import torch

from clinit.headtrain import ram
from clinit.headtrain.ram import is_resident


def test_features_stay_in_host_memory_if_they_would_take_more_than_a_quarter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ram, "free_memory", lambda device: 8_000_000_000)
    assert is_resident(2_000_000_000, torch.device("cuda"))
    assert not is_resident(2_000_000_001, torch.device("cuda"))
    assert is_resident(10**15, torch.device("cpu"))
