from __future__ import annotations

import pytest

from clinit.analysis.figures.line import round_ticks, spans_decades


@pytest.mark.parametrize(
    ("low", "high", "log", "expected"),
    [
        (0.0, 100.0, False, [0, 20, 40, 60, 80, 100]),
        (0.0, 3.1, False, [0, 1, 2, 3]),
        (0.39, 9.3, True, [0.5, 1, 2, 5]),
        (1e-4, 50.0, True, [1e-4, 1e-3, 1e-2, 0.1, 1, 10]),
        (2.0, 2.0, False, [2.0]),
    ],
)
def test_ticks_are_round_numbers(low: float, high: float, log: bool, expected: list[float]) -> None:
    assert round_ticks(low, high, log=log) == pytest.approx(expected)


def test_a_span_of_many_decades_has_few_ticks() -> None:
    ticks = round_ticks(1e-30, 1e30, log=True)
    assert 5 <= len(ticks) <= 7
    assert ticks == sorted(ticks)


def test_values_span_decades_from_a_factor_of_20_on_and_only_above_0() -> None:
    assert spans_decades([1.0, 21.0])
    assert not spans_decades([1.0, 19.0])
    assert not spans_decades([0.0, 100.0])
    assert not spans_decades([])
