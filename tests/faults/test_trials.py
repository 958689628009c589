"""The campaign itself: what it counts as a failure, and that it does what it says."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from fault_trials.results import compare, litter, results
from fault_trials.server import Done, Job
from fault_trials.trial import Failure, Place, Tally, Trial, manners, spread
from fault_trials.workload import COMMANDS
from safetensors.numpy import save_file


def done(code: int = 0, out: str = "", err: str = "", *, stopped: bool = False) -> Done:
    return Done(code, stopped, 0.1, out, err, ())


@pytest.mark.parametrize(
    ("ended", "kind"),
    [
        (done(0, "fine\n"), None),
        (done(1, err="Error: there is no cache\nWrite one.\n"), None),
        (done(1, err="Warning: 1 of 2 images cannot be read:\n"), None),
        (done(2, err="Error: Invalid value\n"), None),
        (done(1, err="Error: \n"), "other"),
        (done(1), "other"),
        (done(-signal.SIGTERM), "other"),
        (done(1, err="Traceback (most recent call last):\n  File\nKeyError: 'a'\n"), "traceback"),
        (done(-signal.SIGSEGV), "traceback"),
        (done(-signal.SIGABRT, err="thread panicked at\n"), "traceback"),
        (done(-signal.SIGKILL, stopped=True), "hang"),
        (done(0, "name \x1b[2J\n"), "run or touched"),
        (done(1, err="Error: name \x9b2J\n"), "run or touched"),
        (done(0, "a\rb\n"), "run or touched"),
    ],
)
def test_an_ending_is_judged_by_code_words_and_control_characters(
    ended: Done, kind: str | None
) -> None:
    assert [failure.kind for failure in manners(ended)] == ([kind] if kind else [])


def write_results(folder: Path, *, weight: float = 1.0, seconds: float = 1.0, row: int = 3) -> None:
    (folder / "run").mkdir(parents=True)
    facts = {"loss": "ce", "seconds": seconds, "place": str(folder), "run": {"elapsed_s": seconds}}
    (folder / "run" / "run.json").write_text(json.dumps(facts))
    table = pl.DataFrame({"correct": [row], "elapsed_s": [seconds]})
    table.write_parquet(folder / "run" / "points.parquet")
    save_file({"weight": np.full(3, weight, np.float32)}, folder / "run" / "head.safetensors")
    (folder / ".lock").touch()


def test_results_differ_by_what_counts_and_not_by_times_places_and_locks(tmp_path: Path) -> None:
    write_results(tmp_path / "one")
    write_results(tmp_path / "two", seconds=2.0)
    write_results(tmp_path / "weight", weight=1.5)
    write_results(tmp_path / "row", row=4)
    one = results(tmp_path / "one")
    assert one == results(tmp_path / "two")
    assert compare(results(tmp_path / "weight"), one) == ([], ["run/head.safetensors"])
    assert compare(results(tmp_path / "row"), one) == ([], ["run/points.parquet"])
    (tmp_path / "two" / "run" / "run.json").unlink()
    assert compare(results(tmp_path / "two"), one) == (["run/run.json"], [])


def test_drafts_are_litter_and_no_results_but_locks_are_neither(tmp_path: Path) -> None:
    write_results(tmp_path / "out")
    before = results(tmp_path / "out")
    (tmp_path / "out" / ".run.json.tmp-12").touch()
    assert litter(tmp_path / "out") == [".run.json.tmp-12"]
    assert results(tmp_path / "out") == before


def test_the_shim_kills_at_the_operation_that_it_is_told(place: Place, tmp_path: Path) -> None:
    command = COMMANDS["manifest build"]

    def run(name: str, **spec: object) -> Done:
        out = tmp_path / name
        shim = {"scope": str(out), **spec}
        argv = command.argv(place.work, out)
        return place.server.run(Job(argv=argv, out=tmp_path, name=f"{name}-job", shim=shim))

    whole = run("whole")
    assert whole.code == 0
    assert any(line.startswith("rename /train.parquet") for line in whole.log)
    assert (tmp_path / "whole" / "train.parquet").is_file()
    at = next(n for n, line in enumerate(whole.log, start=1) if line.startswith("rename"))
    killed = run("killed", mode="kill", at=at)
    assert (killed.code, len(killed.log)) == (-signal.SIGKILL, at)
    assert not (tmp_path / "killed" / "train.parquet").exists()
    after = run("after", mode="after", at=at)
    assert (after.code, len(after.log)) == (-signal.SIGKILL, at)
    assert (tmp_path / "after" / "train.parquet").is_file()
    full = run("full", mode="enospc", at=1)
    assert full.code == 1
    assert "No space left on device" in full.stderr


def test_a_job_that_takes_too_long_is_ended(place: Place, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shim = {"scope": str(out), "mode": "pause", "at": 1, "go": "never"}
    shim |= {"paused": str(tmp_path / "paused")}
    argv = COMMANDS["manifest build"].argv(place.work, out)
    ended = place.server.run(Job(argv=argv, out=tmp_path, shim=shim, timeout_s=1.5))
    assert ended.stopped
    assert (tmp_path / "paused").exists()


def test_a_trial_counts_once_in_each_of_its_kinds(place: Place) -> None:
    trial = Trial("part", "group", "name", lambda place, folder: [])
    tally = Tally()
    tally.add(trial, [Failure("lost", "a"), Failure("lost", "b"), Failure("other", "c")])
    tally.add(trial, [])
    assert tally.trials == {"part: group": 2}
    assert tally.failed == {("part: group", "lost"): 1, ("part: group", "other"): 1}
    assert len(tally.failures) == 3


def test_a_part_of_the_trials_is_taken_evenly() -> None:
    trials = [Trial("part", "group", str(n), lambda place, folder: []) for n in range(10)]
    assert [trial.name for trial in spread(trials, 3)] == ["0", "3", "6"]
    assert list(spread(trials, None)) == trials
