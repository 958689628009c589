import re
import signal
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from clinit.cli.frame.model_source import kept
from clinit.cli.frame.process import NOTHING, Interruption, keeps
from tests.cli.test_main import COMMANDS

SIGNALS = {signal.SIGINT: "Interrupted", signal.SIGTERM: "Terminated", signal.SIGHUP: "Hung up"}
WAITS = """
import os, sys
from types import SimpleNamespace
from clinit.cli import main as m
from clinit.cli.frame import process as interruption

def pass_since_the_first_signal(seconds):
    now = interruption._ending_since + seconds
    interruption.time = SimpleNamespace(monotonic=lambda: now)

@interruption.keeps("All of it is kept.")
def wait():
    try:
        {before}
        print("ready", flush=True)
        sys.stdin.readline()
    finally:
        print("cleaned", flush=True)
        {clean}

m.app.command("wait")(wait)
m.main()
"""


def started(
    before: str = "pass", clean: str = "pass", ignored: tuple[signal.Signals, ...] = ()
) -> subprocess.Popen[str]:
    """Start a command that waits for a signal, and wait until it does."""

    def dispose() -> None:  # of what these tests inherit: nohup ignores a signal, `&` another
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)

    code = WAITS.format(before=before, clean=clean)
    process: subprocess.Popen[str] = subprocess.Popen(
        [sys.executable, "-c", code, "wait"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=dispose,
    )
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize(("number", "word"), SIGNALS.items())
def test_a_signal_cleans_up_says_what_is_kept_and_gives_the_code_of_shells(
    number: signal.Signals, word: str
) -> None:
    process = started()
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (out, err) == ("cleaned\n", f"{word}. All of it is kept.\n")
    assert process.returncode == 128 + number


CLEAN = "pass_since_the_first_signal({}); print('cleaning', flush=True); input(); print('done')"


@pytest.mark.parametrize(
    ("second", "after_s", "code", "rest"),
    [
        (signal.SIGINT, 1.0, -signal.SIGINT, ("", "")),  # it ends the clean-up at once
        (signal.SIGINT, 0.99, 129, ("done\n", "Hung up. All of it is kept.\n")),
        (signal.SIGTERM, 0.99, 129, ("done\n", "Hung up. All of it is kept.\n")),
    ],
)
def test_a_signal_within_a_second_of_the_first_leaves_the_clean_up_alone(
    second: signal.Signals, after_s: float, code: int, rest: tuple[str, str]
) -> None:
    process = started(clean=CLEAN.format(after_s))
    process.send_signal(signal.SIGHUP)
    assert [process.stdout.readline() for _ in range(2)] == ["cleaned\n", "cleaning\n"]
    process.send_signal(second)
    assert process.communicate("\n" if code > 0 else None, timeout=60) == rest
    assert process.returncode == code


def test_a_signal_that_python_swallows_is_the_exit_code_all_the_same() -> None:
    code = """
import signal, sys
from clinit.cli import main as m

class Ends:
    def __del__(self):
        signal.raise_signal(signal.SIGTERM)

def swallow():
    Ends()
    print("goes on")

sys.unraisablehook = lambda info: print(type(info.exc_value).__name__)
m.app.command("swallow")(swallow)
m.main()
"""
    done = subprocess.run(
        [sys.executable, "-c", code, "swallow"], capture_output=True, text=True, check=False
    )
    assert done.stdout == "Interruption\ngoes on\n"
    assert (done.returncode, done.stderr) == (143, "Terminated.\n")


def test_a_signal_that_the_parent_ignores_stays_ignored() -> None:
    process = started('print("ready", flush=True); input()', ignored=(signal.SIGHUP,))
    process.send_signal(signal.SIGHUP)
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "ready\n"  # it goes on
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 143


def test_what_is_kept_is_nothing_before_the_first_shard(tmp_path: Path) -> None:
    said = []
    for folder in (tmp_path / "none", tmp_path):
        (tmp_path / "train").mkdir(exist_ok=True)
        (tmp_path / "train" / "shard-00000.h5").touch()
        with pytest.raises(Interruption) as raised, keeps("All is kept."), kept([folder]):
            raise Interruption(signal.SIGINT)
        said.append(str(raised.value))
    assert said == [f"Interrupted. {NOTHING}", "Interrupted. All is kept."]


READING = {
    *("clinit cache show", "clinit cache verify", "clinit manifest show"),
    *("clinit recipe list", "clinit recipe show", "clinit diagnose", "clinit model show"),
    "clinit doctor",
}


def kept_by(command: Any) -> str | None:
    """Return what `keeps` was given as the decorator of a command."""
    while command is not None:
        for cell in command.__closure__ or ():
            if isinstance(cell.cell_contents, AbstractContextManager):
                return str(cell.cell_contents.args[0])  # type: ignore[attr-defined]
        command = getattr(command, "__wrapped__", None)
    return None


def test_every_command_that_writes_prints_what_it_keeps() -> None:
    page = Path(__file__).parents[2] / "docs" / "machines.md"
    table = page.read_text(encoding="utf-8").split("| kept results |")[1].split("\n\n")[0]
    listed = {words.split(" --")[0] for words in re.findall("`([^`]+)`", table)}
    shown = {path: each for path, (each, _) in COMMANDS.items() if not each.hidden}
    leaves = {path: each for path, each in shown.items() if not hasattr(each, "commands")}
    silent = {path for path, command in leaves.items() if not kept_by(command.callback)}
    assert silent == READING
    assert {f"clinit {name}" for name in listed - {"--checkpoint-every"}} == leaves.keys() - silent
