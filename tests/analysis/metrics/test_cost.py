from collections.abc import Sequence
from typing import Any

import pytest

from clinit.analysis.metrics.efficiency import initialisation_seconds


@pytest.mark.parametrize(
    ("seconds", "expected"), [((1.0, 2.5), 3.5), ((1.0, None), None), ((), None)]
)
def test_the_seconds_of_initialisation_are_those_of_all_tasks(
    seconds: Sequence[float | None], expected: float | None
) -> None:
    told: list[Any] = [{"task": n, "initialisation": {"seconds": s}} for n, s in enumerate(seconds)]
    assert initialisation_seconds(told) == expected
    assert initialisation_seconds([*told, {"task": 9, "initialisation": None}]) is None
