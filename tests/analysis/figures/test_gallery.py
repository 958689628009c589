from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from matplotlib.text import Text as Letters
from rich.cells import cell_len
from rich.text import Text

from clinit.analysis.figures import accuracy_matrix, curves
from clinit.analysis.figures.gallery import FORMATS, GALLERY, figure_of, paths_of
from clinit.analysis.figures.names import FigureName
from clinit.analysis.report.report import Report, report_of
from clinit.headtrain.record.format import RunRecord

MakeRun = Callable[..., RunRecord]
HOSTILE = (
    "_a$\\frac{$ %_^",
    "[red]x[/red]",
    "\x1b[31m&<b>\n\u202e",
    "写真" * 5_000,
    "\u05d0\u05d1\u05d2",
)
OBEYED = set("\x1b\x07\x9b\u202e")


def all_but(*names: FigureName) -> list[FigureName]:
    return [name for name in FigureName if name not in names]


def starts_of_any_letters(make_full_run: MakeRun, **settings: object) -> list[RunRecord]:
    records = [
        make_full_run(init, names=HOSTILE, **settings) for init in ("random", "least-square")
    ]
    records[1].info["config"]["class_mean"] = HOSTILE[2] + HOSTILE[0] + HOSTILE[3]
    return records


@pytest.fixture
def full(make_full_run: MakeRun) -> Report:
    runs = [make_full_run(i, seed=s, tasks=2) for i in ("random", "least-square") for s in (0, 1)]
    return report_of(runs)


def test_every_name_has_its_figure() -> None:
    assert list(GALLERY) == list(FigureName)


def test_another_name_is_refused() -> None:
    with pytest.raises(ValueError, match="no figure 'pie': choose one of curves, loss-spike, "):
        figure_of("pie", [])


@pytest.mark.parametrize("name", FigureName)
def test_every_figure_is_drawn_in_every_format(
    full: Report, tmp_path: Path, name: FigureName
) -> None:
    for suffix in FORMATS:
        full.save_figure(tmp_path / f"a{suffix}", name)
        assert (tmp_path / f"a{suffix}").stat().st_size > 1000


@pytest.mark.parametrize("name", FigureName)
def test_no_letter_is_smaller_than_7_points(full: Report, name: FigureName) -> None:
    drawn = full.figure(name)
    texts = [text for text in drawn.findobj(Letters) if isinstance(text, Letters)]
    assert min(text.get_fontsize() for text in texts if text.get_text()) >= 7.0
    assert drawn.get_figwidth() in (3.3, 6.9)


@pytest.mark.parametrize("name", FigureName)
def test_names_are_data(make_full_run: MakeRun, tmp_path: Path, name: FigureName) -> None:
    report = report_of(starts_of_any_letters(make_full_run, tasks=1, iterations=1))
    report.save_figure(tmp_path / "a.svg", name)
    shown = "".join(ElementTree.parse(tmp_path / "a.svg").getroot().itertext())
    assert not OBEYED & set(shown)


@pytest.mark.parametrize("draw", [accuracy_matrix.draw, curves.draw])
def test_in_the_terminal_names_are_data_and_lines_as_wide_as_asked(
    make_full_run: MakeRun, full: Report, draw: Callable[..., Text]
) -> None:
    hostile = report_of(starts_of_any_letters(make_full_run, tasks=1, iterations=1))
    several = [make_full_run("least-square", lam=float(lam), tasks=12) for lam in range(14)]
    for report in (full, hostile, report_of([make_full_run(tasks=12), *several])):
        for width in (80, 120):
            drawn = draw(report.runs, width).plain
            assert max(map(cell_len, drawn.splitlines())) <= width
            assert not OBEYED & set(drawn)
            assert "least-square" in drawn


CLASS_FIGURES = (FigureName.CLASS_GAINS, FigureName.CONFUSIONS)


@pytest.mark.parametrize("name", CLASS_FIGURES)
def test_class_names_are_drawn_letter_by_letter(
    make_full_run: MakeRun, tmp_path: Path, name: FigureName
) -> None:
    records = [
        make_full_run(init, names=(*HOSTILE[3:], "$x$_^{2")) for init in ("random", "least-square")
    ]
    report = report_of(records)
    report.save_figure(tmp_path / "a.pdf", name)
    report.save_figure(tmp_path / "a.svg", name)
    assert "$x$_^{2" in "".join(ElementTree.parse(tmp_path / "a.svg").getroot().itertext())


@pytest.mark.slow
@pytest.mark.parametrize("name", FigureName)
def test_fifteen_starts_are_drawn(make_full_run: MakeRun, name: FigureName) -> None:
    size = {"tasks": 12 if name is FigureName.CURVES else 3, "iterations": 2}
    runs = [make_full_run("least-square", lam=float(lam), **size) for lam in range(14)]
    report = report_of([make_full_run(**size), *runs])
    report.figure(name).draw_without_rendering()


@pytest.mark.parametrize("name", all_but(FigureName.LOSS_SPIKE, FigureName.EFFICIENCY))
def test_without_a_step_all_that_needs_none_is_drawn(
    make_full_run: MakeRun, tmp_path: Path, name: FigureName
) -> None:
    runs = [make_full_run(init, iterations=0, tasks=1) for init in ("random", "least-square")]
    report = report_of(runs)
    report.save_figure(tmp_path / "a.svg", name)


@pytest.mark.parametrize("name", all_but(FigureName.CLASS_GAINS, FigureName.EFFICIENCY))
def test_a_task_without_test_images_and_a_single_run_are_drawn(
    make_full_run: MakeRun, tmp_path: Path, name: FigureName
) -> None:
    report = report_of([make_full_run("least-square", untested_task=1)])
    report.save_figure(tmp_path / "a.svg", name)


def test_several_figures_get_their_names_before_the_ending(tmp_path: Path) -> None:
    path = tmp_path / "paper.v2.pdf"
    assert paths_of(path, ["cost"]) == [path]
    assert [each.name for each in paths_of(path, ["cost", "curves"])] == [
        "paper.v2-cost.pdf",
        "paper.v2-curves.pdf",
    ]
