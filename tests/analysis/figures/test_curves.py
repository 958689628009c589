from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from clinit.analysis.curves import MARKERS, round_ticks, segments, spans_decades, switches
from clinit.analysis.figure import COLOURS
from clinit.analysis.report import load_report
from clinit.errors import RecordError
from clinit.headtrain.record.format import RunRecord

MakeRun = Callable[..., RunRecord]
WriteRuns = Callable[..., Path]


def test_a_curve_has_a_segment_a_task_on_cumulative_iterations(three_inits: Path) -> None:
    runs = load_report([three_inits]).runs
    assert switches(runs) == [200, 400, 600]
    first, second, _ = segments(runs[0], "acc_new")
    assert first.iterations == [0, 50, 100, 150, 200]
    assert second.iterations == [200, 250, 300, 350, 400]
    assert second.values[0] < first.values[-1]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_plot_has_the_asked_width_and_marks_every_switch(three_inits: Path, width: int) -> None:
    lines = load_report([three_inits]).curves(width=width).plain.splitlines()
    assert max(map(len, lines)) <= width
    frames = [line for line in lines if "┌" in line]
    assert [frame.count("┬") for frame in frames] == [2, 2]
    for axis in (line for line in lines if line.split()[:1] == ["0"]):
        assert axis.split() == ["0", "200", "400", "600"]
    assert "vertical line is a task switch" in lines[-1]


def test_every_run_has_a_character_of_its_own_without_colour(three_inits: Path) -> None:
    lines = load_report([three_inits]).curves(width=80).plain.splitlines()
    assert lines[0] == "ooo random   xxx class-mean   +++ least-square"
    drawn = "".join(line[4:] for line in lines if "│" in line)
    assert all(drawn.count(marker) > 20 for marker in "ox+")
    assert len(set(MARKERS)) == len(MARKERS)


def test_loss_is_drawn_on_a_log_scale_where_it_spans_more_than_20_times(
    three_inits: Path, make_run: MakeRun, write_runs: WriteRuns
) -> None:
    assert "(log scale)" in load_report([three_inits]).curves().plain
    narrow = write_runs(make_run(loss_curve=lambda task, i: 3.0 - i / 100), folder="narrow")
    assert "(log scale)" not in load_report([narrow]).curves().plain
    zero = write_runs(make_run(loss_curve=lambda task, i: float(i == 0)), folder="zero")
    assert not spans_decades([segments(run, "loss_new") for run in load_report([zero]).runs])
    assert "(log scale)" not in load_report([zero]).curves().plain


def test_more_runs_than_characters_are_said(make_run: MakeRun, write_runs: WriteRuns) -> None:
    runs = write_runs(*(make_run("least-square", lam=float(lam)) for lam in range(10)))
    text = load_report([runs]).curves().plain
    assert "The first 8 of 10 runs are drawn." in text
    assert "least-square (λ 0)" in text


@pytest.mark.parametrize(
    ("low", "high", "log", "expected"),
    [
        (0.0, 100.0, False, [0, 20, 40, 60, 80, 100]),
        (0.0, 3.1, False, [0, 1, 2, 3]),
        (0.39, 9.3, True, [0.5, 1, 2, 5]),
        (1e-4, 50.0, True, [1e-4, 1e-3, 1e-2, 0.1, 1, 10]),
        (2.0, 2.0, False, [2.0]),
    ],
)
def test_ticks_are_round_numbers(low: float, high: float, log: bool, expected: list[float]) -> None:
    assert round_ticks(low, high, log=log) == pytest.approx(expected)


@pytest.mark.parametrize("suffix", ["png", "pdf", "svg"])
def test_the_figure_is_written_in_the_format_of_its_suffix(
    three_inits: Path, tmp_path: Path, suffix: str
) -> None:
    path = tmp_path / f"curves [new].{suffix}"
    load_report([three_inits]).save_figure(path)
    starts = {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}
    assert path.read_bytes().startswith(starts[suffix])
    assert [file.name for file in tmp_path.iterdir() if file.is_file()] == [path.name]
    if suffix == "svg":
        assert ">least-square</text>" in path.read_text()


FULL_DISK = """
import resource, sys
from pathlib import Path
from clinit.analysis.report import load_report
from clinit.errors import ClinitError
report = load_report([Path(sys.argv[1])])
sys.dont_write_bytecode = True  # a bytecode file that is cut short breaks every later import
resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048))  # no file grows beyond 2 kB
for path in map(Path, sys.argv[2:]):
    try:
        report.save_figure(path)
    except ClinitError as error:
        print(error)
"""


def test_a_full_disk_is_told_whatever_the_format(three_inits: Path, tmp_path: Path) -> None:
    # In a process of its own: the limit would also hold for what the tests print.
    folder = tmp_path / "figures"
    folder.mkdir()
    paths = [folder / f"a.{suffix}" for suffix in ("png", "pdf", "svg")]
    command = [sys.executable, "-c", FULL_DISK, str(three_inits), *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [f"cannot write {path}: File too large" for path in paths]
    assert list(folder.iterdir()) == []


def test_the_figure_shades_every_second_task_and_breaks_curves_between(three_inits: Path) -> None:
    left, right = load_report([three_inits]).figure().axes
    for axes in (left, right):
        assert len(axes.lines) == 3 * 3
        assert len(axes.patches) == 1
        assert [text.get_text() for text in axes.texts] == ["task 1", "task 2", "task 3"]
    assert left.get_yscale() == "log"
    assert right.get_ylim()[0] == 0


def test_a_colour_is_an_initialisation_and_a_line_style_its_variant(
    make_run: MakeRun, write_runs: WriteRuns
) -> None:
    scales = ("none", "norm", "calibrated")
    runs = write_runs(make_run("random"), *(make_run("least-square", scale) for scale in scales))
    lines = load_report([runs]).figure().axes[0].lines[::3]
    assert len({line.get_color() for line in lines}) == 2
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == 4


def test_colours_differ_in_lightness_or_hue_and_none_is_pale() -> None:
    lightness = [np.dot(to_rgb(colour), (0.2126, 0.7152, 0.0722)) for colour in COLOURS]
    assert max(lightness) < 0.75
    assert len(set(COLOURS)) == len(COLOURS)


HOSTILE = ("_a$\\frac{$ %_^", "_$", "\x1b[31m&<b>")


def test_names_are_drawn_letter_by_letter(
    make_run: MakeRun, write_runs: WriteRuns, tmp_path: Path
) -> None:
    records = [make_run("random") for _ in HOSTILE]
    for record, name in zip(records, HOSTILE, strict=True):
        record.info["config"]["init"] = name
    report = load_report([write_runs(*records)])
    (legend,) = report.figure().legends
    shown = [HOSTILE[0], HOSTILE[1], r"\x1b[31m&<b>"]
    assert sorted(text.get_text() for text in legend.get_texts()) == sorted(shown)
    for suffix in ("png", "pdf", "svg"):
        report.save_figure(tmp_path / f"curves.{suffix}")
    drawn = ElementTree.parse(tmp_path / "curves.svg").getroot().itertext()
    assert set(shown) <= set(drawn)


@pytest.mark.parametrize("width", [1, 9, 20])
def test_curves_are_drawn_at_any_width(three_inits: Path, width: int) -> None:
    assert "Iterations over all tasks" in load_report([three_inits]).curves(width=width).plain


def test_another_suffix_is_refused(three_inits: Path, tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"its ending is '\.jpg'") as caught:
        load_report([three_inits]).save_figure(tmp_path / "curves.jpg")
    assert ".png, .pdf, .svg" in caught.value.remedy
