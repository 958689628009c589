from collections.abc import Callable
from dataclasses import replace

import pytest

from clinit.analysis.figures.bars import TOP, worst_pairs
from clinit.analysis.metrics.classes import confusions
from clinit.analysis.report.report import report_of
from clinit.errors import RecordError
from clinit.headtrain.record.format import RunRecord

MakeRun = Callable[..., RunRecord]


def test_the_worst_pairs_of_the_first_seed_are_those_of_the_query(make_run: MakeRun) -> None:
    old = replace(make_run("least-square"), mistakes=None)
    runs = report_of([make_run(seed=0), make_run(seed=1), old]).runs
    ((name, pairs),) = worst_pairs(runs).items()
    assert name == "random, seed 0"
    record = runs[0].record
    assert record.mistakes is not None
    assert pairs.equals(confusions(record.mistakes, record.classes, TOP))
    with pytest.raises(RecordError, match="written by an earlier version"):
        report_of([old]).figure("confusions")
    empty = replace(record, mistakes=record.mistakes.clear())
    report_of([empty]).figure("confusions").draw_without_rendering()
