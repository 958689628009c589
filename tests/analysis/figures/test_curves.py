from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from clinit.analysis.figures.curves import Switches, cumulative, draw, measured_lines, switches
from clinit.analysis.figures.line import (
    Line,
    StartRuns,
    lines_of,
    log_floor,
    spans_decades,
    starts_of,
)
from clinit.analysis.runs import load_runs, runs_of
from tests.analysis.conftest import MakeRun


def accuracies(start: StartRuns) -> dict[int, Line]:
    return lines_of([run.points for run in start.runs], "acc_new")


def test_a_curve_has_a_line_a_task_on_cumulative_iterations(three_inits: Path) -> None:
    runs = load_runs(three_inits).runs
    assert switches(runs).ends == (200, 400, 600)
    start = starts_of(runs)[0]
    first, second, _ = cumulative(start, accuracies(start), switches(start.runs))
    assert first.at.tolist() == [0, 50, 100, 150, 200]
    assert second.at.tolist() == [200, 250, 300, 350, 400]
    assert second.mean[0] < first.mean[-1]


def test_the_loss_has_a_point_a_step(make_run: MakeRun) -> None:
    """A spike between two evaluation points is drawn where it is."""

    def spike(task: int, step: int) -> float:
        return 9.0 if step == 17 else 1.0 / (step + 1)

    runs = [make_run(loss_curve=spike), make_run(seed=1, loss_curve=lambda t, i: 1.0)]
    (start,) = starts_of(runs_of(runs).runs)
    for line in measured_lines(start, "loss_new").values():
        assert line.at.tolist() == list(range(200))
        assert line.mean == pytest.approx([(spike(1, step) + 1.0) / 2 for step in range(200)])
        assert line.high[17] == 9.0


def test_the_loss_has_a_log_scale_where_a_linear_one_hides_a_start(make_run: MakeRun) -> None:
    def drawn(*peaks: float) -> Any:
        curves = [lambda t, i, peak=peak: peak / (1 + i) ** 4 for peak in peaks]
        inits = zip(("random", "least-square"), curves, strict=True)
        return runs_of([make_run(i, loss_curve=c) for i, c in inits]).figure().axes[0]

    assert drawn(50.0, 1.0).get_yscale() == "log"
    assert drawn(50.0, 1.0).get_ylim()[0] == pytest.approx(1e-5)
    ends = [line.get_ydata().min() for line in drawn(50.0, 1.0).lines]
    assert ends == pytest.approx([1e-5] * 6), "drawn along the axis"
    assert drawn(5.0, 1.0).get_yscale() == "linear"


def test_eight_seeds_of_three_settings_are_three_lines_with_a_band_each(make_run: MakeRun) -> None:
    records = [
        make_run("least-square", lr=lr, seed=seed, tasks=1, loss_curve=lambda t, i, s=seed: 1.0 + s)
        for lr in (0.1, 0.2, 0.3)
        for seed in range(8)
    ]
    loss = runs_of(records).figure().axes[0]
    assert len(loss.lines) == len(loss.collections) == 3
    assert len({line.get_color() for line in loss.lines}) == 3
    band = loss.collections[0].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == (1.0, 8.0), "from the least to the greatest seed"


def test_tasks_have_numbers_where_all_runs_that_train_switch_at_the_same_places(
    make_run: MakeRun,
) -> None:
    solved = make_run("least-square", iterations=0, every=200)
    report = runs_of([make_run(), solved, make_run("class-mean", tasks=2, stop_after=2)])
    assert switches(report.runs) == Switches((200, 400, 600), are_shared=True)
    loss: Any = report.figure("curves").axes[0]
    assert [text.get_text() for text in loss.texts] == ["task 1", "task 2", "task 3"]
    upright = [line for line in loss.lines if len({*line.get_xdata()}) == 1 < len(line.get_xdata())]
    assert upright == []


def test_points_of_solved_heads_stand_where_the_others_begin_a_task(make_run: MakeRun) -> None:
    runs = runs_of([make_run(), make_run("least-square", iterations=0, every=200)]).runs
    (solved,) = (start for start in starts_of(runs) if start.runs[0].init == "least-square")
    assert all(e.mean == pytest.approx([1.45]) for e in measured_lines(solved, "loss_new").values())
    lines = cumulative(solved, accuracies(solved), switches(runs))
    assert [line.at.tolist() for line in lines] == [[0], [200], [400]]
    alone = cumulative(solved, accuracies(solved), switches(solved.runs))
    assert [line.at.tolist() for line in alone] == [[0], [0], [0]]


def test_the_terminal_draws_all_starts_no_wider_than_asked(make_run: MakeRun) -> None:
    report = runs_of(
        [
            make_run(
                init,
                lr=lr,
                loss_curve=lambda t, i, lr=lr: 9**lr / (1 + i) ** 0.1,
                accuracy=lambda t, i, lr=lr: lr / 4 + i / 10**4,
            )
            for init, lrs in (("random", (1.0, 2.0)), ("least-square", (0.5, 1.5, 2.5, 3.0)))
            for lr in lrs
        ]
    )
    for width in (60, 80, 120):
        loss, accuracy = draw(report.runs, width).plain.split("A_new")
        assert "log10 of L_new" in loss
        assert max(map(len, (loss + accuracy).splitlines())) <= width
        for plot in (loss.split("┌")[1], accuracy.split("┌")[1]):
            assert plot.partition("\n")[0].count("┬") == 2
            assert all(plot.count(sign) > 5 for sign in "ox+#*")
        assert " ".join(accuracy.split()).endswith("The first 5 of 6 starts; --html FILE has all.")


def naive_lines(tables: list[pl.DataFrame]) -> dict[int, list[tuple[int, float, float, float]]]:
    """The same with loops: points that every seed has, in order."""
    rows = [{(t, i): v for t, i, v in table.iter_rows() if v is not None} for table in tables]
    found: dict[int, list[tuple[int, float, float, float]]] = {}
    for task, iteration in sorted(set.intersection(*map(set, rows))):
        values = [each[(task, iteration)] for each in rows]
        point = (iteration, sum(values) / len(values), min(values), max(values))
        found.setdefault(task, []).append(point)
    return found


def test_lines_over_seeds_agree_with_loops_over_rows() -> None:
    rng, tables = np.random.default_rng(0), []
    for _ in range(3):
        points = [(task, it, float(rng.normal())) for task in (2, 1) for it in range(0, 30, 10)]
        points[int(rng.integers(6))] = (1, 20, None)  # type: ignore[assignment]
        table = pl.DataFrame(points, schema=["task", "iteration", "value"], orient="row")
        tables.append(table.unique(["task", "iteration"], keep="last"))
    expected, found = naive_lines(tables), lines_of(tables, "value")
    assert list(found) == list(expected)
    for task, line in found.items():
        columns = (line.at, line.mean, line.low, line.high)
        assert np.column_stack(columns) == pytest.approx(np.array(expected[task]))


def test_values_span_decades_from_a_factor_of_20_on_and_only_above_0() -> None:
    assert spans_decades([1.0, 21.0])
    assert not spans_decades([1.0, 19.0])
    assert not spans_decades([0.0, 100.0])
    assert not spans_decades([])


def test_runs_that_differ_only_in_their_seed_are_one_start(make_run: MakeRun) -> None:
    runs = [make_run(init, seed=seed) for seed in range(3) for init in ("random", "least-square")]
    starts = starts_of(runs_of(runs).runs)
    assert [(start.name, len(start.runs)) for start in starts] == [
        *(("random", 3), ("least-square", 3))
    ]
    assert [run.config["seed"] for run in starts[0].runs] == [0, 1, 2]
    ridges = [make_run("least-square", lam=lam, seed=s) for lam in (0.1, 1.0) for s in (0, 1)]
    assert [start.name for start in starts_of(runs_of(ridges).runs)] == [
        *("least-square (λ 0.1)", "least-square (λ 1)")
    ]


def test_a_logarithmic_scale_contains_starts_and_most_of_every_line() -> None:
    for begin, end, wanted in (
        *((0.3, 0.1, 3e-3), (2e-4, 0.1, 1e-4), (0.0, 0.0, 3e-3), (1e-12, 0.1, 3e-6)),
        *((0.3, 2e-4, 1e-4), (0.3, 1e-12, 3e-6), (0.3, np.nan, 3e-3)),
    ):
        both = [np.array([8.0, 8.0, 0.1]), np.array([begin, 0.3, 0.3, 0.3, end, end, 1e-12])]
        floor = log_floor([[Line(each, each, each, each)] for each in both])
        assert floor == pytest.approx(wanted)
