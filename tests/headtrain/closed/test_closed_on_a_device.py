"""Closed forms on arrays that live on a device, as those of CuPy do."""

from __future__ import annotations

from typing import Any

import array_api_strict as strict
import numpy as np
import pytest

from clinit.headtrain.array import StreamedRows, to_numpy
from clinit.headtrain.closed.methods import closed_form
from clinit.headtrain.study.study import Study
from tests.headtrain.closed.made import DIM, queries, stream

DEVICE = strict.Device("device1")


def on_device(values: np.ndarray) -> Any:
    return strict.asarray(values, device=DEVICE)


SETTINGS: list[dict[str, Any]] = [
    *({"method": method} for method in ("slda", "simplecil", "fecam")),
    {"method": "fecam", "fecam_alpha2": 0.5},
    {"method": "klda", "klda_width": 20},
    {"method": "klda", "klda_width": 20, "klda_members": 2},
    {"method": "ranpac", "ranpac_width": 5},
    {"method": "ranpac", "ranpac_width": 40, "ranpac_lam": 1.0},
    {"method": "ranpac", "ranpac_width": 40},
]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("settings", SETTINGS)
def test_scores_are_those_of_numpy(settings: dict[str, Any], streamed: bool) -> None:
    study = Study.of({**settings, "device": "cpu"}).resolved()
    near = closed_form(study, np.zeros(DIM))
    far = closed_form(study, on_device(np.zeros(DIM)))
    expected = stream(near)
    found = stream(
        far, place=(lambda rows: StreamedRows(rows, on_device)) if streamed else on_device
    )
    assert [each.lam for each in found] == [each.lam for each in expected]
    scores = far.scores(on_device(queries()))
    assert scores.device == DEVICE
    np.testing.assert_allclose(to_numpy(scores), near.scores(queries()), rtol=5e-3, atol=5e-3)
