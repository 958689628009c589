from __future__ import annotations

import pytest

from clinit.analysis.metrics.efficiency import READINGS
from clinit.analysis.report.measures import by_need, ranked_measures


@pytest.mark.parametrize("reading", READINGS)
def test_the_gain_and_the_start_stay_where_the_standard_numbers_give_way(reading: str) -> None:
    measures = ranked_measures(reading)  # type: ignore[arg-type]
    order = [measures[place].heading for place in by_need([each.name for each in measures])]
    assert sorted(order) == sorted(each.heading for each in measures)
    assert set(order[:4]) == {"A_all", "gain", "A_new", "A_0"}
    assert order[-2:] == ["forg.", "A_inc"]
