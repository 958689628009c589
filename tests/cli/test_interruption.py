import re
import signal
import subprocess
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_main import COMMANDS

SIGNALS = {signal.SIGINT: "Interrupted", signal.SIGTERM: "Terminated", signal.SIGHUP: "Hung up"}
WAITS = """
import os, signal, sys, time
from clinit.cli import main as m
from clinit.cli.frame.interruption import keeps

@keeps("All of it is kept.")
def wait():
    try:
        {before}
        print("ready", flush=True)
        time.sleep(30)
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
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=dispose,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize(("number", "word"), SIGNALS.items())
def test_a_signal_cleans_up_says_what_is_kept_and_gives_the_code_of_shells(
    number: signal.Signals, word: str
) -> None:
    process = started()
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert (out, err) == ("cleaned\n", f"{word}. All of it is kept.\n")
    assert process.returncode == 128 + number


def test_a_signal_a_second_after_the_first_ends_the_clean_up_at_once() -> None:
    process = started(clean="print('cleaning', flush=True); time.sleep(30)")
    process.send_signal(signal.SIGTERM)
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == ["cleaned\n", "cleaning\n"]
    time.sleep(1.1)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=20) == -signal.SIGINT
    assert time.monotonic() - began < 10
    process.communicate()


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_right_after_the_first_leaves_the_clean_up_alone(second: signal.Signals) -> None:
    process = started(clean="print('cleaning', flush=True); time.sleep(0.5); print('done')")
    process.send_signal(signal.SIGHUP)
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == ["cleaned\n", "cleaning\n"]
    process.send_signal(second)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (129, "done\n", "Hung up. All of it is kept.\n")


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
    process = started(ignored=(signal.SIGHUP,))
    process.send_signal(signal.SIGHUP)
    time.sleep(0.3)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=20) == 143
    process.communicate()


READING = {
    *("clinit cache show", "clinit cache verify", "clinit manifest show", "clinit manifest list"),
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
    leaves = {path: each for path, (each, _) in COMMANDS.items() if not hasattr(each, "commands")}
    silent = {path for path, command in leaves.items() if not kept_by(command.callback)}
    assert silent == READING
    assert {f"clinit {name}" for name in listed - {"--checkpoint-every"}} == leaves.keys() - silent
