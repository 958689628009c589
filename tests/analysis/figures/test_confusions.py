from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.cells import cell_len

from clinit.analysis.figures.confusions import TOP, Class, worst_pairs
from clinit.analysis.metrics.classes import confusions
from clinit.analysis.report.report import load_report, report_of
from clinit.errors import RecordError
from clinit.headtrain.record.format import RunRecord

MakeRun = Callable[..., RunRecord]
WriteRuns = Callable[..., Path]


def test_the_worst_pairs_of_the_first_seed_are_those_of_the_query(
    make_run: MakeRun, write_runs: WriteRuns
) -> None:
    runs = load_report([write_runs(make_run(seed=0), make_run(seed=1))]).runs
    (found,) = worst_pairs(runs)
    record = runs[0].record
    assert record.mistakes is not None
    expected = confusions(record.mistakes, record.classes, TOP)
    assert found.name == "random, seed 0"
    assert [(pair.count, pair.share, pair.is_new) for pair in found.pairs] == list(
        expected.select("count", "share", "true_is_new").iter_rows()
    )
    first = expected.row(0, named=True)
    assert found.pairs[0].true == Class(first["true_class"], first["true_task"])
    assert found.pairs[0].predicted == Class(first["predicted_class"], 0)


def test_a_long_name_is_shortened_and_its_task_is_not() -> None:
    assert Class("kitchen", 0).words(14) == "kitchen [base]"
    assert Class("kitchen", 12).words(10) == "kitc… [12]"
    assert cell_len(Class("写真" * 5_000, 3).words(20)) <= 20


def test_a_start_without_confusions_is_an_empty_panel(
    make_run: MakeRun, write_runs: WriteRuns, tmp_path: Path
) -> None:
    record = make_run()
    assert record.mistakes is not None
    report = report_of([replace(record, mistakes=record.mistakes.clear())])
    report.save_figure(tmp_path / "a.svg", "confusions")


def test_starts_of_earlier_versions_are_left_out_unless_all_are(make_run: MakeRun) -> None:
    old = replace(make_run("least-square"), mistakes=None)
    assert [each.name for each in worst_pairs(report_of([make_run(), old]).runs)] == ["random"]
    with pytest.raises(RecordError, match="written by an earlier version"):
        report_of([old]).figure("confusions")
