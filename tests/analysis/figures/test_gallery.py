from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from clinit.analysis.figures.gallery import FORMATS, efficiency, figure_of, races
from clinit.analysis.runs import Runs, runs_of
from clinit.errors import RecordError
from clinit.headtrain.protocol.record.format import RunRecord
from tests.analysis.conftest import MakeRun

HOSTILE = (
    "_a$\\frac{$ %_^",
    "[red]x[/red]",
    "\x1b[31m&<b>\n\u202e",
    "写真" * 5_000,
    "\u05d0\u05d1\u05d2",
)
FIGURES = ("curves", "efficiency", "acc_old", "last_accuracy")


def starts_of_any_letters(make_full_run: MakeRun, **settings: object) -> list[RunRecord]:
    records = [
        make_full_run(init, names=HOSTILE[::-1], **settings)
        for init in ("random", "least-square", "least-square")
    ]
    for number, record in enumerate(records):  # of another version, which reads all settings
        record.info["config"]["bias"] = HOSTILE[2] + HOSTILE[0] + HOSTILE[3] + str(number)
    return records


@pytest.fixture
def full(make_full_run: MakeRun) -> Runs:
    runs = [make_full_run(i, seed=s, tasks=2) for i in ("random", "least-square") for s in (0, 1)]
    return runs_of(runs)


def test_another_name_is_refused(full: Runs) -> None:
    with pytest.raises(RecordError, match="no column 'pie'"):
        figure_of("pie", full.runs)
    with pytest.raises(RecordError, match="no run has a value of nc1"):
        figure_of("nc1", full.runs)


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_drawn_in_every_format(full: Runs, tmp_path: Path, name: str) -> None:
    starts = {".png": b"\x89PNG", ".pdf": b"%PDF", ".svg": b"<?xml"}
    for suffix in FORMATS:
        path = tmp_path / suffix / f"a [new]{suffix}"
        full.save_figure(path, name)
        assert path.read_bytes().startswith(starts[suffix])
        assert [*path.parent.iterdir()] == [path]
    with pytest.raises(RecordError, match=r"its ending is '\.jpg'") as caught:
        full.save_figure(tmp_path / "a.jpg", name)
    assert ".png, .pdf, .svg" in caught.value.remedy


@pytest.mark.parametrize("name", FIGURES)
def test_names_are_data(make_full_run: MakeRun, tmp_path: Path, name: str) -> None:
    report = runs_of(starts_of_any_letters(make_full_run, tasks=1, iterations=1))
    report.save_figure(tmp_path / "a.svg", name)
    shown = "".join(ElementTree.parse(tmp_path / "a.svg").getroot().itertext())
    assert not set("\x1b\x07\x9b\u202e") & set(shown)
    assert "&<b" in shown


@pytest.mark.parametrize("settings", [{"iterations": 0, "tasks": 1}, {"untested_task": 1}])
def test_runs_that_lack_much_are_drawn(make_full_run: MakeRun, settings: dict[str, int]) -> None:
    runs = [make_full_run(init, **settings) for init in ("random", "least-square")]
    figure = runs_of(runs).figure()
    figure.draw_without_rendering()
    assert figure.axes


INITS = ("random", "class-mean")


def test_a_race_has_the_means_and_gains_of_all_seeds(make_run: MakeRun) -> None:
    runs = runs_of(
        [make_run(i, seed=s, lr=lr) for i in INITS for s in (0, 1) for lr in (0.001, 0.01)]
    )
    titles = [panel.get_legend().get_title().get_text() for panel in efficiency(runs.runs).axes]
    assert titles == ["gain in task 1, mean over 2 seeds"] * 2, "each setting by itself"
    for race in races(runs.runs):
        assert (race.task, [start.runs[0].init for start in race.starts]) == (1, [*INITS])
        for start in race.starts:
            points = [run.points.filter(task=1)["acc_new"].to_list() for run in start.runs]
            assert race.line(start).mean.tolist() == pytest.approx(np.mean(points, axis=0))
            gains = [run.row()["tasks"][0]["gain_equal_level"] for run in start.runs]
            assert race.result(start) == f"{np.mean(gains):.2f} ±{np.std(gains, ddof=1):.2f}"
        curves = [run.points.filter(task=1)["acc_new"] for run in race.starts[0].runs]
        assert race.target == pytest.approx(0.95 * np.mean([max(curve) for curve in curves]))


def test_a_start_that_never_arrives_has_no_gain(make_run: MakeRun) -> None:
    poor = make_run("class-mean", accuracy=lambda task, iteration: 0.1)
    (race,) = races(runs_of([make_run(), poor]).runs)
    assert [*map(race.result, race.starts)] == ["1.00", "never"]


def test_without_random_rows_there_is_no_race(make_run: MakeRun) -> None:
    with pytest.raises(RecordError, match="no random run of the same stream") as caught:
        races(runs_of([make_run("least-square")]).runs)
    assert "--init random" in caught.value.remedy
