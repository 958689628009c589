from __future__ import annotations

import io
import json
import statistics
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from rich.console import Console, RenderableType
from typer.testing import CliRunner

from clinit.analysis.report.report import load_report
from clinit.analysis.report.seeds import Spread, seed_groups
from clinit.cli.console import out
from clinit.cli.report import report
from clinit.headtrain.record.format import RunRecord

MakeRun = Callable[..., RunRecord]
WriteRuns = Callable[..., Path]
app = typer.Typer()
app.command()(report)


def printed(renderable: RenderableType, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(renderable)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.fixture
def seeded(make_run: MakeRun, write_runs: WriteRuns) -> Path:
    """Three initialisations, three seeds each; a later seed learns a little more."""
    height = {"random": 0.5, "class-mean": 0.7, "least-square": 0.9}
    return write_runs(
        *(
            make_run(init, seed=seed, accuracy=lambda t, i, h=height[init], s=seed: h + 0.05 * s)
            for seed in range(3)
            for init in height
        )
    )


def test_runs_that_differ_only_in_their_seed_are_one_group(seeded: Path) -> None:
    groups = seed_groups(load_report([seeded]).runs)
    assert [(group.runs[0].init, len(group.runs)) for group in groups] == [
        ("least-square", 3),
        ("class-mean", 3),
        ("random", 3),
    ]


def test_mean_and_deviation_are_those_of_the_rows(seeded: Path) -> None:
    loaded = load_report([seeded])
    for group in seed_groups(loaded.runs):
        rows = [row for row in loaded.rows() if row["init"] == group.runs[0].init]
        for name in ("acc_all", "acc_new", "loss_new"):
            spread = group.spread(name)
            assert spread is not None
            assert spread.mean == pytest.approx(statistics.mean(row[name] for row in rows))
            assert spread.deviation == pytest.approx(statistics.stdev(row[name] for row in rows))
            assert spread.count == 3


def test_the_deviation_is_that_of_a_sample_and_one_value_has_none() -> None:
    spread = Spread.of([1.0, 3.0])
    assert spread is not None
    assert spread.mean == 2.0
    assert spread.deviation == pytest.approx(2**0.5)
    assert Spread.of([]) is None
    assert Spread.of([2.0]) == Spread(2.0, None)


def test_the_ranking_fits_80_columns_and_says_what_it_leaves_out(seeded: Path) -> None:
    loaded = load_report([seeded])
    text = printed(loaded.ranking())
    assert max(map(len, text.splitlines())) <= 80
    lines = text.splitlines()
    (place,) = [number for number, line in enumerate(lines) if line.startswith("1 ")]
    assert lines[place].split()[:3] == ["1", "least-square", "3"]
    assert "±" not in lines[place]
    assert lines[place + 1].split()[0].startswith("±"), "below, as there is no room beside it"
    assert "gain" in text
    narrow = printed(loaded.ranking(width=60), 60)
    assert max(map(len, narrow.splitlines())) <= 60
    assert "Not shown in this width: A_inc, forg., A_old, L_new (a wider" in " ".join(
        narrow.split()
    )
    wide = printed(loaded.ranking(width=160), 160)
    assert "Not shown" not in wide
    (line,) = [line for line in wide.splitlines() if line.startswith("1 ")]
    assert line.count("±") == 10


def test_a_gain_over_some_tasks_only_is_starred(make_run: MakeRun, write_runs: WriteRuns) -> None:
    slow = [
        make_run("least-square", seed=s, accuracy=lambda task, i, s=s: 0.9 * (task == 2 or s == 1))
        for s in (0, 1)
    ]
    report = load_report([write_runs(*slow, *(make_run("random", seed=s) for s in (0, 1)))])
    lines = printed(report.ranking(width=160), 160).splitlines()
    (ahead,) = [line for line in lines if "least-square" in line]
    (random,) = [line for line in lines if "random  " in line]
    assert ahead.endswith("*")
    assert not random.rstrip().endswith("*")
    assert "*: not in every task of every run." in " ".join(" ".join(lines).split())


def test_settings_that_differ_have_a_column_and_groups_of_unequal_size_are_said(
    make_run: MakeRun, write_runs: WriteRuns
) -> None:
    runs = [make_run("random", seed=seed, lr=lr) for seed in (0, 1) for lr in (0.1, 0.2)]
    text = printed(load_report([write_runs(*runs[:3])]).ranking(width=120), 120)
    assert " lr " in text
    assert "over seeds (1 to 2)" in " ".join(text.split())


def test_the_report_shows_the_ranking_where_there_are_several_seeds(
    seeded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*words: str) -> str:
        result = CliRunner().invoke(app, [str(seeded), "--no-curves", *words])
        assert result.exit_code == 0, result.output
        return result.stdout

    assert "Ranked by A_all" in run()
    assert "Ranked by A_all" in run("--by-seed")
    assert "time" in run("--by-seed")
    assert "time" not in run()
    monkeypatch.setattr(out, "_width", 140)
    assert "gain: random-best" in run("--gain", "random-best")
    rows = json.loads(run("--format", "json"))
    assert sorted(row["seed"] for row in rows) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
