from collections.abc import Callable

import numpy as np
import pytest

from clinit.analysis.figures.accuracy_matrix import draw, matrix_of
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


def test_the_table_begins_with_the_base_head_before_task_1(make_run: MakeRun) -> None:
    records = [make_run(seed=seed) for seed in (0, 1)]
    report = report_of(records)
    starts = [row["acc_pre_before"] for row in report.rows()]
    assert matrix_of(starts_of(report.runs)[0]).before == pytest.approx(sum(starts) / 2)
    text = draw(report.runs, 80).plain
    lines = [line.split() for line in text.splitlines()]
    place = next(n for n, words in enumerate(lines) if words[:3] == ["before", "task", "1"])
    assert lines[place][3:] == [f"{starts[0]:.1f}", "-", "-", "-"]
    assert lines[place + 1][:3] == ["after", "task", "1"]
    assert "Before task 1: accuracy of the base head." in " ".join(text.split())
