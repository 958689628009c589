import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from clinit.cli.main import app
from clinit.errors import ClinitError
from clinit.headtrain.record.format import read_record


@pytest.mark.slow
def test_the_demo_runs_every_command_that_it_prints(tmp_path: Path) -> None:
    shown = CliRunner().invoke(app, ["demo", "--out", str(tmp_path / "demo")])
    assert shown.exit_code == 0, shown.output
    for command in ("manifest build", "extract", "train-head", "report"):
        assert f"$ clinit {command}" in shown.output
    last = " ".join(shown.output.split())[-300:]
    assert "Before the first step of a task, random rows recognise 0.0 % of its new" in last
    assert last.endswith("(mean over 3 tasks).")
    _exports_what_it_evaluated(tmp_path / "demo", tmp_path / "model.safetensors")
    again = CliRunner().invoke(app, ["demo", "--out", str(tmp_path / "demo")])
    assert again.exit_code == 0, again.output
    assert " ".join(again.output.split()).endswith(last)


def _exports_what_it_evaluated(demo: Path, model: Path) -> None:
    """Predict the test digits with an exported run, and compare with the run's own counts."""
    run = demo / "runs" / "least-square-calibrated"
    exported = CliRunner().invoke(app, ["export", str(run), "--out", str(model)])
    assert exported.exit_code == 0, exported.output
    folders = [str(demo / "digits" / side / "val") for side in ("base", "new")]
    shown = CliRunner().invoke(app, ["predict", str(model), *folders, "--top", "1", "--json"])
    assert shown.exit_code == 0, shown.output
    found = dict.fromkeys("0123456789", 0)
    for prediction in json.loads(shown.stdout):
        digit = Path(prediction["image"]).parent.name
        found[digit] += prediction["classes"][0]["class"] == digit
    record = read_record(run)
    last = record.evaluations.filter(task=3, iteration=100).join(record.classes, on="row")
    assert found == dict(last.select("name", "correct").iter_rows())


def test_a_folder_that_is_not_the_demos_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    failed = CliRunner().invoke(app, ["demo", "--out", str(tmp_path)])
    assert isinstance(failed.exception, ClinitError)
    assert "was not written by an earlier demo" in str(failed.exception)
    assert (tmp_path / "thesis.tex").exists()
