from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
import typer
from rich.console import Console, RenderableType
from typer.testing import CliRunner

from clinit.analysis.report.measures import FURTHER_MEASURES
from clinit.analysis.report.report import Report, report_of
from clinit.analysis.report.table import NARROWEST
from clinit.cli.report import report
from clinit.headtrain.record.format import RunRecord

MakeRun = Callable[..., RunRecord]
HEADINGS = [measure.heading for measure in FURTHER_MEASURES]
app = typer.Typer()
app.command()(report)


def printed(renderable: RenderableType, width: int = 80, *, bold: bool = False) -> str:
    """What a file gets, or with `bold` a terminal."""
    console = Console(
        file=io.StringIO(),
        width=width,
        force_terminal=bold,
        color_system="standard" if bold else None,
    )
    console.print(renderable)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def older(record: RunRecord) -> RunRecord:
    """Take away what records of earlier versions lack."""
    within = pl.lit(None, pl.Int32).alias("correct_in_task")
    return replace(record, evaluations=record.evaluations.with_columns(within), mistakes=None)


def seeded(make_run: MakeRun, seeds: int) -> Report:
    inits = ("random", "class-mean", "least-square")
    return report_of([make_run(i, seed=seed) for i in inits for seed in range(seeds)])


@pytest.mark.parametrize("seeds", [1, 3])
def test_at_120_columns_every_metric_is_shown(make_run: MakeRun, seeds: int) -> None:
    text = printed(seeded(make_run, seeds).metrics_table(width=120), 120)
    head = text.splitlines()[0]
    assert [heading for heading in HEADINGS if heading not in head] == []
    assert max(map(len, text.splitlines())) <= 120
    assert "Not shown" not in text
    assert "…" not in text


@pytest.mark.parametrize("width", [60, 80, 100])
@pytest.mark.parametrize("seeds", [1, 3])
def test_what_does_not_fit_is_left_out_from_the_right_and_named(
    make_run: MakeRun, seeds: int, width: int
) -> None:
    text = printed(seeded(make_run, seeds).metrics_table(width=width), width)
    assert max(map(len, text.splitlines())) <= width
    head = text.splitlines()[0]
    shown = [heading for heading in HEADINGS if heading in head]
    assert shown == HEADINGS[: len(shown)]
    missing = ", ".join(HEADINGS[len(shown) :])
    words = " ".join(text.split())
    told = f"Not shown in this width: {missing} (a wider terminal, or COLUMNS=120)."
    assert (told in words) == bool(missing)
    assert "…" not in text


def test_several_seeds_have_their_deviation_below_the_mean(make_run: MakeRun) -> None:
    records = [
        make_run("random", seed=seed, accuracy=lambda t, i, s=seed: 0.5 + 0.1 * s)
        for seed in (0, 1)
    ]
    lines = printed(report_of(records).metrics_table(width=120), 120).splitlines()
    (mean,) = [index for index, line in enumerate(lines) if line.startswith("random")]
    assert lines[mean].split()[1] == "2"
    assert lines[mean + 1].split()[0].startswith("±")
    assert "±" not in printed(seeded(make_run, 1).metrics_table())


def test_metrics_that_no_record_holds_are_named_and_take_no_room(make_run: MakeRun) -> None:
    text = printed(report_of([older(make_run("random"))]).metrics_table(width=120), 120)
    assert "In no run: A_task, A_base." in " ".join(text.split())
    assert "A_task" not in text.splitlines()[0]
    alone = printed(report_of([older(make_run("least-square"))]).metrics_table(width=120), 120)
    assert "In no run: A_task, to 90, to 95, to 99, A_base." in " ".join(alone.split())


def test_a_time_that_is_not_reached_in_every_task_is_starred(make_run: MakeRun) -> None:
    slow = make_run("least-square", accuracy=lambda task, iteration: 0.9 * (task == 2))
    text = printed(report_of([make_run("random"), slow]).metrics_table(width=120), 120)
    (line,) = [line for line in text.splitlines() if line.startswith("least-square")]
    assert line.count("*") == 3
    assert "*: not in every task of every run." in " ".join(text.split())


def test_lines_are_in_the_order_of_the_table_above(make_run: MakeRun) -> None:
    report = report_of([make_run("random"), make_run("least-square")])

    def order(text: str) -> list[str]:
        words = (line.split(None, 1)[0] for line in text.splitlines() if line.strip())
        return [word for word in words if word in ("random", "least-square")]

    runs = order(printed(report.table()))
    assert runs == ["random", "least-square"], "the ranking would have the other one"
    assert order(printed(report.metrics_table(ranked=False))) == runs
    assert order(printed(report.metrics_table())) == runs[::-1]


def test_settings_are_said_in_words_where_columns_of_them_are_too_wide(make_run: MakeRun) -> None:
    apart = [
        make_run(init, seed=seed, lr=lr, batch_size=256 + round(10 * lr), lam=lam)
        for init in ("random", "least-square")
        for lr in (0.1, 0.2)
        for seed in (0, 1)
        for lam in ((0.5, 0.05) if init == "least-square" else (0.05,))
    ]
    wide = printed(report_of(apart).metrics_table(width=200), 200)
    assert wide.splitlines()[1].split()[:4] == ["init", "lr", "batch", "λ"]
    narrow = printed(report_of(apart).metrics_table(width=60), 60)
    lines = narrow.splitlines()
    assert max(map(len, lines)) <= 60
    assert lines[1].split()[0] == "run"
    words = " ".join(line[:NARROWEST] for line in lines).replace("  ", " ")
    assert "least-square, lr 0.1, batch size 257, λ 0.5" in " ".join(words.split())
    assert sum(line.startswith("least-square") for line in lines) == 4


def test_the_option_prints_the_table_below_the_usual_one(three_inits: Path) -> None:
    def run(*words: str) -> str:
        result = CliRunner().invoke(app, [str(three_inits), "--no-curves", *words])
        assert result.exit_code == 0, result.output
        return result.stdout

    assert "BWT" not in run()
    text = run("--metrics")
    assert text.index("A_pre") < text.index("BWT")
