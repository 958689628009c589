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
    last = shown.output.strip().splitlines()[-2:]
    assert last[0].startswith("When the first new digits arrived, random rows recognised")
    assert last[1].startswith("Averaged over the three tasks, least-square rows had")
    again = CliRunner().invoke(app, ["demo", "--out", str(tmp_path / "demo")])
    assert again.exit_code == 0, again.output
    assert again.output.strip().splitlines()[-2:] == last


def test_a_folder_that_is_not_the_demos_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    failed = CliRunner().invoke(app, ["demo", "--out", str(tmp_path)])
    assert isinstance(failed.exception, ClinitError)
    assert "was not written by an earlier demo" in str(failed.exception)
    assert (tmp_path / "thesis.tex").exists()
