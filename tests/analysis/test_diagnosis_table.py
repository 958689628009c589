from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from clinit.analysis.report.report import load_report
from clinit.headtrain.record.format import RunRecord

VALUES = {
    "nc1": 0.00867,
    "nc2": 1.361,
    "nc3": 1.301,
    "nc2_floor": 1.0691,
    "nc4": 2047.0,
    "d_ls": 4_010_000.0,
    "d_ls_relative": None,
}


def diagnosed(make_run: Callable[..., RunRecord], *init: str, **config: Any) -> RunRecord:
    record = make_run(*init, **config)
    for task in record.info["tasks"]:
        task["diagnosis"] = VALUES
    return record


def printed(folder: Path, width: int, *, per_task: bool = False) -> str:
    console = Console(width=width, record=True, file=None)
    with console.capture() as capture:
        report = load_report([folder])
        console.print(report.diagnosis_table(width=width, per_task=per_task))
    return capture.get()


def test_no_number_is_cut_at_80_columns(
    make_run: Callable[..., RunRecord], write_runs: Callable[..., Path]
) -> None:
    runs = [diagnosed(make_run, init) for init in ("random", "class-mean", "least-square")]
    text = printed(write_runs(*runs), 80)
    assert "…" not in text
    line = next(line for line in text.splitlines() if line.startswith("least-square"))
    assert line.split() == [
        *("least-square", "3"),
        *("0.00867", "1.36", "1.3", "1.07", "2.05e3", "4.01e6", "-"),
    ]


def test_runs_of_different_seeds_are_told_apart(
    make_run: Callable[..., RunRecord], write_runs: Callable[..., Path]
) -> None:
    runs = [diagnosed(make_run, "least-square", seed=seed) for seed in (0, 1)]
    lines = [line for line in printed(write_runs(*runs), 80).splitlines() if "e6" in line]
    assert [line.split()[0] for line in lines] == ["0", "1"]


def test_many_settings_are_said_in_words_beside_whole_numbers_at_80_columns(
    make_run: Callable[..., RunRecord], write_runs: Callable[..., Path]
) -> None:
    runs = [
        diagnosed(make_run, init, scale, lr=0.001 * rate, buffer=buffer, weight_decay=rate)
        for init in ("class-mean", "least-square")
        for scale, rate, buffer in (("norm", 1, 24_000), ("calibrated", 2, 192_000))
    ]
    text = printed(write_runs(*runs), 80)
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    assert "class-mean, norm, " in text
    assert text.count("4.01e6") == 4


def test_every_task_is_shown_when_asked_for(
    make_run: Callable[..., RunRecord], write_runs: Callable[..., Path]
) -> None:
    text = printed(write_runs(diagnosed(make_run, "random")), 80, per_task=True)
    assert sum("e6" in line for line in text.splitlines()) == 3
