from collections.abc import Callable

import numpy as np
import pytest

from clinit.analysis.figures.accuracy_matrix import matrix_of
from clinit.analysis.figures.line import starts_of
from clinit.analysis.report.report import report_of
from clinit.headtrain.record.format import RunRecord

MakeRun = Callable[..., RunRecord]


@pytest.mark.parametrize("untested", [None, 2])
def test_cells_are_pooled_accuracies_and_means_over_seeds(
    make_run: MakeRun, untested: int | None
) -> None:
    records = [
        make_run(seed=s, untested_task=untested, accuracy=lambda t, i, s=s: 0.4 + 0.1 * s)
        for s in range(3)
    ]
    report = report_of(records)
    (start,) = starts_of(report.runs)
    matrix = matrix_of(start)
    assert matrix.tasks == (1, 2, 3)
    of_seeds = np.array([row["accuracy_matrix"] for row in report.rows()], dtype=float)
    np.testing.assert_allclose(np.array(matrix.cells, dtype=float), of_seeds.mean(axis=0))
    assert matrix.cells[0][2] is None
