from typing import Any

import pytest

from clinit.analysis.paper.numbers import PLACE, deviation_of
from clinit.analysis.paper.reproduction import Effect
from clinit.analysis.report.compare import Difference

HERE = dict(zip(PLACE, ("", "ce", 0, None, "least-square"), strict=True))


@pytest.mark.parametrize(
    ("paper", "mean", "seeds", "adjusted", "expected"),
    [
        (5.0, 3.0, 5, 0.04, "holds"),
        (-5.0, -3.0, 5, 0.04, "holds"),
        (5.0, 3.0, 5, 0.05, "open"),
        (5.0, 0.0, 5, 1.0, "open"),
        (5.0, -3.0, 5, 0.04, "opposite"),
        (5.0, 3.0, 5, None, "open"),
        (5.0, 3.0, 2, None, "too few seeds"),
        (0.5, 3.0, 5, 0.04, "within noise"),
        (None, 3.0, 5, 0.04, "-"),
        (5.0, None, 0, None, "-"),
    ],
)
def test_an_effect_holds_where_the_test_finds_the_sign_of_the_paper(
    paper: Any, mean: Any, seeds: int, adjusted: Any, expected: str
) -> None:
    ours = Difference(mean, 1.0, seeds, adjusted=adjusted)
    assert Effect(HERE, "acc_new", "least-square", "random", paper, 0.56, ours).verdict == expected


def test_the_noise_of_the_paper_is_its_deviation_over_class_orders() -> None:
    assert deviation_of("random", "acc_new") == 0.4
    assert deviation_of("least-square", "acc_all") == 0.1
    assert deviation_of("random", "gain") == 0.0
