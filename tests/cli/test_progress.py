"""What remains on a terminal, what a log gets, and what --quiet leaves out."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain, repeat
from threading import Event
from types import SimpleNamespace

import pytest

from clinit.cli.frame import console, progress as progress_module
from clinit.cli.frame.progress import ProgressLine, ProgressLog, counting, doing, progress
from tests.cli.calls import call
from tests.cli.screen import on_terminal

# What a bar and results do to each other, in a process of its own with a terminal.
STEPS = """
from clinit.cli.frame.console import foot, note, print_csv, print_json, say, warn
from clinit.cli.frame.console import replace_what_cannot_be_printed
from clinit.cli.frame.progress import doing, progress

replace_what_cannot_be_printed()

def draw():
    if foot._live is not None:
        foot._live.refresh()

with doing("Reading the caches …") as status:
    draw()
    say("result 1")
    status.update("Still …")
with progress() as line:
    say("result 2")
    line.work("train", unit="images")
    for done in range(5):
        line.count(100 * done, 1_000)
        line.more = "95/s"
        draw()
    note("note 3")
    say("result 4 " + "x" * 150)
    line.work("val", unit="images").count(7, 1_000)
    warn("warning 5")
    print_json('"json 6"')
    print_csv("csv 7\\n")
    with doing("Within …"):
        say("result 8")
        draw()
say("result 9")
"""


@pytest.mark.parametrize(("columns", "encoding"), [(20, "utf-8"), (80, "latin-1"), (140, "ascii")])
def test_results_remain_and_bars_do_not(columns: int, encoding: str) -> None:
    command, environment = [sys.executable, "-c", STEPS], {"PYTHONIOENCODING": encoding}
    code, screen = on_terminal(command, columns=columns, environment=environment)
    assert code == 0
    assert screen.shows_cursor
    long = "result 4 " + "x" * 150
    expected = ["result 1", "result 2", "Note: note 3", long, "Warning: warning 5"]
    expected += ['"json 6"', "csv 7", "result 8", "result 9"]
    folded = [
        part[start : start + columns] for part in expected for start in range(0, len(part), columns)
    ]
    assert [line for line in screen.lines if line] == [line.rstrip() for line in folded]


def test_a_log_tells_how_far_the_work_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a clock of the test; a line is due when a piece of work ends."""
    now = [0.0]

    class Log(ProgressLog):
        @contextmanager
        def telling(self, told: Callable[[], str]) -> Iterator[None]:
            yield
            progress_module._print_line(told())

    monkeypatch.setattr(progress_module, "_log", Log())
    monkeypatch.setattr(progress_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with progress() as line:
        line.work("train", unit="rows").count(0, 50_000)
        now[0] = 10.0
        line.count(12_500, 50_000)
        line.more = "95/s"
    with counting() as count:
        count("verifying", 1, 4)
    with doing("Reading …"):
        now[0] = 13.0
    expected = ["train: 12,500 of 50,000 rows, 25 %, 30.0s left, 95/s", "verifying: 25 %"]
    assert capsys.readouterr() == ("", "\n".join([*expected, "Reading … 3.0s", ""]))


def test_a_log_tells_of_work_that_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    told, log = Event(), ProgressLog()
    log._pauses = chain(repeat(0.0))
    monkeypatch.setattr(progress_module, "_LEAST_S", 0.001)
    monkeypatch.setattr(progress_module, "_log", log)
    monkeypatch.setattr(progress_module, "_print_line", lambda line: told.set())
    with doing("Reading …"):
        assert told.wait(300)


def test_a_log_begins_after_ten_seconds_and_goes_on_at_longer_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The clock of the log stands still except for its own waiting."""
    now, printed = [100.0], list[float]()

    class Clock(Event):
        def wait(self, timeout: float | None = None) -> bool:
            now[0] += timeout or 0
            return now[0] > 500

    monkeypatch.setattr(progress_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(progress_module, "_print_line", lambda line: printed.append(now[0] - 100))
    log = ProgressLog()
    with log.telling(lambda: ""):
        pass
    log._tell(lambda: "still going", Clock())
    assert printed == [10, 30, 60, 120, 180, 240, 300, 360]


def test_the_time_left_is_that_of_the_work_of_this_call(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(progress_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    line = ProgressLine().work("train", unit="images")
    assert line.in_words() == "train"
    line.count(9_000, 10_000)  # what an earlier call has left
    assert line.in_words() == "train: 9,000 of 10,000 images, 90 %"
    now[0] = 60.0
    line.count(9_100, 10_000)
    assert line.in_words() == "train: 9,100 of 10,000 images, 91 %, 9.0m left, 1.7 images/s"
    line.count(0, 500)  # another count
    assert line.in_words() == "train: 0 of 500 images, 0 %"
    line.count(500, 500)
    assert line.in_words() == "train: 500 of 500 images, 100 %"


@pytest.mark.parametrize("before", [True, False])
def test_a_command_is_quiet_wherever_the_option_stands(before: bool) -> None:
    words = ["recipe", "show", "table2-last-layer"]
    for quiet in (["-q", *words] if before else [*words, "--quiet"], words):
        assert call(*quiet).exit_code == 0
        assert console.is_quiet() == (quiet != words)
