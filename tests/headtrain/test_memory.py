from __future__ import annotations

import pytest
import torch

from clinit.headtrain import ram as memory
from clinit.headtrain.ram import is_resident, residency_notes

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def test_features_stay_in_host_memory_where_they_would_take_more_than_a_quarter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda device: 8_000_000_000)
    assert is_resident(2_000_000_000, CUDA)
    assert not is_resident(2_000_000_001, CUDA)
    assert is_resident(10**15, CPU)
    sizes = {"the test rows": 66_000_000, "the rows of the largest task": 2_400_000_000}
    assert residency_notes(sizes, CPU) == []
    assert residency_notes(sizes, CUDA) == [
        "the rows of the largest task take 2.40 GB, more than a quarter of the 8.00 GB that are"
        " free on cuda: they stay in host memory and are copied block by block"
    ]
