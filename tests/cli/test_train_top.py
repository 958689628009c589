import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from clinit.headtrain.protocol.record.format import read_info
from tests.cli.calls import call, checked, sides

FAST = ["--tasks=2", "--iterations=4", "--eval-every=2", "--batch-size=8", "--buffer=9"]
FAST += ["--rank=2", "--no-probe"]
Command = Callable[..., Result]


@pytest.fixture
def train_top(tiny_run: Path, tmp_path: Path) -> Command:
    """Run the command on the tiny caches; later arguments win."""

    def run(*arguments: object, out: str = "runs", fast: list[str] = FAST) -> Result:
        return call("train-top", *[*sides(tiny_run), f"--out={tmp_path / out}"], *fast, *arguments)

    return run


def test_runs_are_trained_and_reported(train_top: Command, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    (runs / f".random.tmp-{0:016x}").mkdir(parents=True)  # of a process that was killed
    (runs / f".random.checkpoint.tmp-{0:016x}").write_bytes(b"too")
    shown = checked(train_top("--init=random", "--init=least-square", "--probe"))
    assert f"Activations in {runs}/trunk-cache, float16: base val 768 B," in shown
    assert f"2 run records at {runs}" in shown
    left = [".lock", "least-square-calibrated", "random", "trunk-cache"]
    assert sorted(path.name for path in runs.iterdir()) == left
    info, config = read_info(runs / "random"), {"method": "rehearsal", "rank": 2, "lr": 1.5e-3}
    assert {name: info["config"][name] for name in config} == config
    assert info["top"]["blocks"] == ["stages.2.blocks.0", "stages.3.blocks.0"]
    assert info["tasks"][0]["forward_transfer"]["task"] == 2


def test_a_finished_run_is_left_as_it_is(train_top: Command, tmp_path: Path) -> None:
    runs, words = tmp_path / "runs", ("--init=random", "--iterations=0")
    train_top(*words)
    record = runs / "random" / "run.json"
    shutil.rmtree(runs / "trunk-cache")
    (runs / "random.checkpoint").write_bytes(b"of a run that was killed after its record")
    # The record of an earlier version is that of the same run.
    info = json.loads(record.read_text())
    for name in ("init_rows", "weighting"):
        del info["config"][name]
    for name in ("sha256", "files"):
        del info[name]
    before = json.dumps({**info, "format": "clinit-run/1"})
    record.write_text(before)
    assert f"{runs}/random is already recorded" in checked(train_top(*words))
    assert record.read_text() == before
    assert sorted(path.name for path in runs.iterdir()) == [".lock", "random"]
