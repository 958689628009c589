"""The title says what all runs share, and what means something to some of them alone."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from rich.console import Console

from clinit.analysis.report.report import Report, report_of
from clinit.headtrain.record.format import RunRecord

MakeRun = Callable[..., RunRecord]


def solved(make_run: MakeRun, method: str) -> RunRecord:
    """Return a record of a closed form, which has none of the settings of trained heads."""
    record = make_run("random", method=method, iterations=0, every=200)
    config: Any = record.info["config"]
    for name in ("init", "scale", "lam", "class_mean", "bias", "lr", "weight_decay"):
        del config[name]
    config |= {"buffer": None, "slda_shrinkage": 1e-4}
    return record


def title(report: Report, width: int = 300) -> tuple[str, str]:
    """Return the title of the table, and the headings of its columns."""
    console = Console(file=io.StringIO(), width=width)
    console.print(report.table(width=width))
    assert isinstance(console.file, io.StringIO)
    first, *rest = console.file.getvalue().splitlines()
    return first, next(line for line in rest if "init" in line)


def test_settings_of_some_methods_stand_behind_their_names(make_run: MakeRun) -> None:
    trained = [make_run(init, method="rehearsal") for init in ("random", "least-square")]
    shared, headings = title(report_of([*trained, solved(make_run, "slda")]))
    assert shared == (
        "imagenet_mini → places50, on test images, loss ce, 3 tasks, seed 0; rehearsal: head grow,"
        " 200 iterations per task, buffer 24,000, lr 0.001, scale calibrated"
    )
    assert headings.split()[:2] == ["init", "method"]
    assert "iters" not in headings, "a closed form has no 0 of them"


def test_settings_that_mean_nothing_to_any_run_are_not_in_the_title(make_run: MakeRun) -> None:
    shared, _ = title(report_of([solved(make_run, "slda"), solved(make_run, "simplecil")]))
    assert shared == "imagenet_mini → places50, on test images, loss ce, 3 tasks, seed 0"


def test_settings_of_two_methods_stand_behind_both(make_run: MakeRun) -> None:
    trained = [make_run("random", method=method) for method in ("rehearsal", "naive")]
    shared, _ = title(report_of([*trained, solved(make_run, "slda")]))
    assert "; rehearsal, naive: head grow, 200 iterations per task, lr 0.001" in shared
    assert shared.endswith("; rehearsal: buffer 24,000")


def test_a_setting_with_two_values_has_a_column(make_run: MakeRun) -> None:
    trained = [make_run("random", method="rehearsal", buffer=size) for size in (100, 200)]
    shared, headings = title(report_of([*trained, solved(make_run, "slda")]))
    assert "buffer" not in shared
    assert "buffer" in headings
