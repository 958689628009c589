from pathlib import Path

import pytest
from typer.testing import CliRunner

from clinit.cli.main import app
from clinit.errors import ClinitError


@pytest.mark.slow
def test_the_demo_runs_every_command_that_it_prints(tmp_path: Path) -> None:
    shown = CliRunner().invoke(app, ["demo", "--out", str(tmp_path / "demo")])
    assert shown.exit_code == 0, shown.output
    for command in ("manifest build", "extract", "train-head", "report"):
        assert f"$ clinit {command}" in shown.output
    last = " ".join(shown.output.split())[-300:]
    assert "Before the first step of a task, random rows recognise 0.0 % of its new" in last
    assert last.endswith("(mean over 3 tasks).")
    again = CliRunner().invoke(app, ["demo", "--out", str(tmp_path / "demo")])
    assert again.exit_code == 0, again.output
    assert " ".join(again.output.split()).endswith(last)


def test_a_folder_that_is_not_the_demos_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    failed = CliRunner().invoke(app, ["demo", "--out", str(tmp_path)])
    assert isinstance(failed.exception, ClinitError)
    assert "was not written by an earlier demo" in str(failed.exception)
    assert (tmp_path / "thesis.tex").exists()
