from pathlib import Path

import pytest

from tests.cli.calls import call, done, refused


@pytest.mark.slow
def test_the_demo_runs_every_command_that_it_prints(tmp_path: Path) -> None:
    shown = done("demo", "--out", tmp_path / "demo")
    for command in ("manifest build", "extract", "train-head", "report"):
        assert f"$ clinit {command}" in shown
    *_, row = (line for line in shown.splitlines() if line.startswith("random"))
    assert " 0.00 " in row
    assert row.rpartition(" ")[0] in done("demo", "--out", tmp_path / "demo")


def test_a_folder_that_is_not_the_demos_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    assert "was not written by an earlier demo" in str(refused(call("demo", "--out", tmp_path)))
    assert (tmp_path / "thesis.tex").exists()
