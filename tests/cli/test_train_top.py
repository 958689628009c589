import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from clinit.cli.main import app
from clinit.errors import RecordError
from clinit.headtrain.top.experiment import cost_line
from clinit.headtrain.top.inputs import StoredPart

FAST = [
    "--tasks=2",
    "--iterations=4",
    "--eval-every=2",
    "--batch-size=8",
    "--buffer=9",
    "--rank=2",
    "--no-probe",
]


@pytest.fixture
def train_top(tiny_run: Path, tmp_path: Path) -> Callable[..., Result]:
    """Run the command on the tiny caches; later arguments win."""

    def call(*arguments: object, out: str = "runs") -> Result:
        caches = tiny_run.parent / "caches"
        places = [f"--base={caches / 'base'}", f"--new={caches / 'new'}", f"--out={tmp_path / out}"]
        words = ["train-top", *places, *FAST, *map(str, arguments)]
        return CliRunner().invoke(app, words)

    return call


def test_runs_are_trained_and_reported(train_top: Callable[..., Result], tmp_path: Path) -> None:
    (tmp_path / "runs" / f".random.tmp-{0:016x}").mkdir(
        parents=True
    )  # of a process that was killed
    (tmp_path / "runs" / f".random.checkpoint.tmp-{0:016x}").write_bytes(b"too")
    shown = train_top("--init=random", "--init=least-square", "--probe")
    assert shown.exit_code == 0, shown.output
    assert f"Activations in {tmp_path}/runs/trunk-cache, float16: 0.00 GB" in shown.output
    cost = re.search(r"Activations: ([0-9.]+) s, paid by random and reused by 1 more", shown.output)
    assert cost is not None
    for name, here in (("random", True), ("least-square-calibrated", False)):
        parts = json.loads((tmp_path / "runs" / name / "run.json").read_text())["activations"]
        assert {part["computed_here"] for part in parts} == {here}
        assert sum(part["seconds"] for part in parts) == pytest.approx(float(cost[1]), abs=0.06)
    assert " parameters are trained; " in shown.output
    assert "least-square-calibrated:" in shown.output
    assert f"2 run records at {tmp_path}/runs" in shown.output
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == [
        ".lock",
        "least-square-calibrated",
        "random",
        "trunk-cache",
    ]
    info = json.loads((tmp_path / "runs" / "random" / "run.json").read_text())
    assert info["config"]["method"] == "rehearsal"
    assert info["config"]["rank"] == 2
    assert info["config"]["lr"] == 1.5e-3
    assert info["top"]["blocks"] == ["stages.2.blocks.0", "stages.3.blocks.0"]
    assert info["tasks"][0]["forward_transfer"]["task"] == 2


@pytest.mark.parametrize(
    ("facts", "runs", "line"),
    [
        ([(100.0, True), (20.06, True)], 3, "120.1 s, paid by a and reused by 2 more runs"),
        ([(100.0, True)], 2, "100.0 s, paid by a and reused by 1 more run"),
        ([(1234.5, True)], 1, "1,234.5 s, paid by a"),
        ([(100.0, False), (20.0, False)], 3, "120.0 s, paid by an earlier call"),
        ([(100.0, False), (None, False)], 1, "of unknown cost, paid by an earlier call"),
        (
            [(100.0, False), (20.0, True)],
            2,
            "20.0 s, paid by a and reused by 1 more run; 100.0 s, paid by an earlier call",
        ),
    ],
)
def test_what_the_activations_cost_and_who_pays_it_is_one_line(
    facts: list[tuple[float | None, bool]], runs: int, line: str
) -> None:
    parts = [
        StoredPart(name="", rows=1, bytes=2, stored=True, seconds=seconds, computed_here=here)
        for seconds, here in facts
    ]
    assert cost_line(parts, list("abc"[:runs])) == f"Activations: {line}"


def test_a_finished_run_is_left_as_it_is(train_top: Callable[..., Result], tmp_path: Path) -> None:
    train_top("--init=random", "--iterations=0")
    before = (tmp_path / "runs" / "random" / "run.json").read_bytes()
    shutil.rmtree(tmp_path / "runs" / "trunk-cache")
    checkpoint = tmp_path / "runs" / "random.checkpoint"
    checkpoint.write_bytes(b"of a run that was killed after it had written its record")
    shown = train_top("--init=random", "--iterations=0")
    assert shown.exit_code == 0, shown.output
    assert f"{tmp_path}/runs/random is there already" in shown.output
    assert (tmp_path / "runs" / "random" / "run.json").read_bytes() == before
    assert not checkpoint.exists()
    assert not (tmp_path / "runs" / "trunk-cache").exists()


def test_several_seeds_are_trained_one_after_another_and_found_again(
    train_top: Callable[..., Result], tmp_path: Path
) -> None:
    train_top("--init=random", "--seed=1")
    shown = train_top("--init=random", "--seed=0:2")
    assert shown.exit_code == 0, shown.output
    assert f"{tmp_path}/runs/random is there already" in shown.output
    assert "random-seed=0:" in shown.output
    assert " ± " in shown.output
    train_top("--init=random", out="alone")
    tables = ("steps.parquet", "evaluations.parquet", "head.safetensors", "top.safetensors")
    for name in tables:
        several = tmp_path / "runs" / "random-seed=0" / name
        assert several.read_bytes() == (tmp_path / "alone" / "random" / name).read_bytes()


def test_a_record_of_another_run_is_not_overwritten(
    train_top: Callable[..., Result], tiny_run: Path, tmp_path: Path
) -> None:
    train_top("--init=random", "--iterations=0")
    shutil.rmtree(tmp_path / "runs" / "trunk-cache")
    shown = train_top("--init=least-square", "--init=random", "--head-width=full", "--iterations=0")
    assert isinstance(shown.exception, RecordError)
    assert "holds the record of another run: config differs in head_width" in str(shown.exception)
    assert shown.exception.remedy.startswith(
        "Choose another --out, or replace it with --overwrite. `clinit sweep` collects"
    )
    assert not (tmp_path / "runs" / "trunk-cache").exists()
    head = tiny_run / "head.safetensors"
    shown = train_top("--init=random", "--iterations=0", f"--head={head}")
    assert "other data: the head that ce starts from" in str(shown.exception)


def test_a_run_that_diverges_is_recorded_and_others_follow(
    train_top: Callable[..., Result], tmp_path: Path
) -> None:
    shown = train_top("--init=least-square", "--init=class-mean", "--lr=1e30", "--iterations=2")
    assert shown.exit_code == 0, shown.output
    for name in ("least-square-calibrated", "class-mean-calibrated"):
        info = json.loads((tmp_path / "runs" / name / "run.json").read_text())
        assert any(text.startswith(f"{name} has diverged: its") for text in info["notes"])
        assert info["tasks"][0]["initialisation"]["factor"] != 1
        assert info["tasks"][1]["initialisation"]["factor"] == 1  # random rows


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method=naive", "--buffer=5"], "--buffer does not go with --method naive"),
        (["--method=derpp", "--ewc-lambda=1"], "--ewc-lambda does not go with --method derpp"),
        (
            ["--method=ewc", "--rank=2"],
            "--rank does not go with --method ewc: it trains the blocks themselves",
        ),
        (["--full-rank"], "--rank does not go with --full-rank"),
        (
            ["--no-trunk-cache", "--trunk-budget=1GB"],
            "--trunk-budget does not go with --no-trunk-cache",
        ),
        (["--trunk-budget=many"], "--trunk-budget takes a size such as 20GB, got 'many'"),
        (["--lambda=much"], "--lambda takes a number"),
        (["--layer-decay=0"], "--layer-decay takes a number"),
        (["--lr=-1"], "--lr takes a number"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    train_top: Callable[..., Result], arguments: list[str], message: str
) -> None:
    shown = train_top("--init=random", *arguments)
    assert shown.exit_code == 2
    assert message in " ".join(shown.output.replace("│", " ").split())


@pytest.mark.parametrize("rows", ["buffer", "new"])
def test_ewc_starts_from_a_buffer_that_its_training_does_not_see(
    tiny_run: Path, tmp_path: Path, rows: str
) -> None:
    caches = tiny_run.parent / "caches"
    words = [
        *("train-top", f"--base={caches / 'base'}", f"--new={caches / 'new'}"),
        *("--method=ewc", "--init=least-square", "--init=random", f"--init-rows={rows}"),
        *("--tasks=2", "--iterations=1", "--no-probe", "-v"),
        *(["--buffer=9"] if rows == "buffer" else []),
    ]
    shown = CliRunner().invoke(app, [*words, f"--out={tmp_path}"])
    assert shown.exit_code == 0, shown.output
    assert "numpy: features" in " ".join(shown.output.split())
    started, random = (
        json.loads((tmp_path / name / "run.json").read_text())
        for name in ("ewc-least-square-calibrated", "ewc-random")
    )
    assert started["config"]["init_rows"] == rows
    assert started["config"]["buffer"] == (9 if rows == "buffer" else None)
    for task in started["tasks"]:
        assert task["buffer_rows"] == 0
        assert task["init_old_rows"] == (9 if rows == "buffer" else 0)
        assert task["initialisation"]["features_s"] > 0
    # Random rows make no pass over the features.
    assert [task["initialisation"]["seconds"] for task in random["tasks"]] == [0, 0]


def test_a_record_from_before_is_that_of_the_same_run(
    train_top: Callable[..., Result], tmp_path: Path
) -> None:
    train_top("--init=random", "--iterations=0")
    record = tmp_path / "runs" / "random" / "run.json"
    info = json.loads(record.read_text())
    for name in ("init_rows", "weighting"):
        del info["config"][name]
    for name in ("sha256", "files"):
        del info[name]
    record.write_text(json.dumps({**info, "format": "clinit-run/1"}))
    shown = train_top("--init=random", "--iterations=0")
    assert f"{tmp_path}/runs/random is there already" in shown.output
    refused = train_top("--init=random", "--iterations=0", "--seed=1")
    assert isinstance(refused.exception, RecordError)
    assert "config differs in seed" in str(refused.exception)
