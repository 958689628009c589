from __future__ import annotations

import io
from collections.abc import Callable, Sequence

import pytest
from rich.console import Console

from clinit.analysis.report.report import report_of
from clinit.analysis.report.settings import RunNames
from clinit.analysis.report.table import (
    FEWEST,
    NARROWEST,
    Column,
    Columns,
    Fitted,
    Line,
    fitted_table,
)
from clinit.headtrain.record.format import RunRecord

MakeRun = Callable[..., RunRecord]
HEADINGS = [f"m{number:02}" for number in range(10)]


def fit(
    records: Sequence[RunRecord], width: int, needed: Sequence[int] | None = None
) -> tuple[Fitted, list[str]]:
    runs = report_of(records).runs
    names = RunNames.of(runs)
    sections = [[Line(run, [f"{number:.2f}" for number in range(10)]) for run in runs]]
    columns = Columns([Column(heading, "number") for heading in HEADINGS], needed=needed)
    fitted = fitted_table([sections], names, columns, width)
    written = io.StringIO()
    Console(width=width, file=written).print(fitted.table)
    return fitted, [line.rstrip() for line in written.getvalue().splitlines()]


@pytest.fixture
def many(make_run: MakeRun) -> list[RunRecord]:
    """Runs that differ in eight settings."""
    return [
        make_run(
            init, scale, lr=lr, weight_decay=10 * lr, buffer=buffer, batch_size=buffer // 100,
            lam=lr, seed=seed, head_width=("grow", "full")[seed],
        )
        for init in ("class-mean", "least-square")
        for scale in ("norm", "calibrated")
        for lr, buffer in ((0.001, 24_000), (0.01, 192_000))
        for seed in (0, 1)
    ]  # fmt: skip


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120, 200])
def test_at_any_width_no_line_is_longer_and_nothing_is_cut(
    many: list[RunRecord], width: int
) -> None:
    fitted, lines = fit(many, width)
    assert max(map(len, lines)) <= width
    assert "…" not in "".join(lines)
    shown = [heading for heading in HEADINGS if heading in lines[0]]
    assert shown == HEADINGS[: len(shown)]
    assert fitted.left_out == ", ".join(HEADINGS[len(shown) :])
    assert len(shown) >= 1


@pytest.mark.parametrize("width", [40, 50, 60])
def test_what_is_needed_least_is_left_out_and_the_order_stays(
    many: list[RunRecord], width: int
) -> None:
    needed = (9, 0, 4, 2, 6, 8, 1, 3, 5, 7)
    fitted, lines = fit(many, width, needed)
    shown = [heading for heading in HEADINGS if heading in lines[0].split()]
    assert 1 <= len(shown) < len(HEADINGS)
    assert shown == [HEADINGS[place] for place in sorted(needed[: len(shown)])]
    assert fitted.left_out == ", ".join(word for word in HEADINGS if word not in shown)
    assert fitted.shown == tuple(sorted(needed[: len(shown)]))
    values = next(line for line in lines if "9.00" in line).split()[-len(shown) :]
    assert values == [f"{place:.2f}" for place in sorted(needed[: len(shown)])]


def test_settings_are_columns_where_enough_numbers_fit_beside_them(make_run: MakeRun) -> None:
    records = [make_run(init, lr=lr) for init in ("random", "least-square") for lr in (0.1, 0.2)]
    for width in (120, 80, 60):
        fitted, lines = fit(records, width)
        assert lines[0].split()[:2] == ["init", "lr"]
        assert fitted.left_out == "" or len(lines[0].split()) - 2 >= FEWEST


def test_with_fewer_one_column_of_words_names_the_runs(many: list[RunRecord]) -> None:
    _, lines = fit(many, 80)
    assert lines[0].split()[0] == "run"
    words = " ".join(line[:NARROWEST].strip() for line in lines[2:])
    for told in ("class-mean, norm,", "weight decay 0.01", "batch size 240", "head grow", "seed 1"):
        assert told in words.replace("- ", "-"), told
    assert max(len(line[:NARROWEST].strip()) for line in lines[2:]) > 10


def test_columns_that_all_runs_share_are_in_the_title(make_run: MakeRun) -> None:
    runs = report_of([make_run("least-square", seed=seed) for seed in (0, 1)]).runs
    names = RunNames.of(runs)
    assert names.settings == ("seed",)
    assert names.title.endswith(", least-square, scale calibrated")
    assert RunNames.of(runs[:1]).settings == ("init",), "something must name the line"
    assert [names.cells(run) for run in runs] == [["0"], ["1"]]
    assert names.words(runs[0]) == "seed 0"


def test_what_means_nothing_to_a_run_is_not_in_its_words(make_run: MakeRun) -> None:
    scales = [make_run("least-square", scale) for scale in ("norm", "calibrated")]
    runs = report_of([make_run("random"), *scales]).runs
    names = RunNames.of(runs)
    assert names.settings == ("init", "scale")
    assert [names.words(run) for run in runs] == [
        *("random", "least-square, norm", "least-square, calibrated")
    ]
    assert names.cells(runs[0]) == ["random", "-"]
