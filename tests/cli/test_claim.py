"""Two commands on one --out: the second is refused before it reads anything."""

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from clinit.cli.main import app
from clinit.errors import ClinitError
from clinit.files.lock import claim_file, claim_folder

BOTH = ("--base", "hollow", "--new", "hollow")
COMMANDS = {
    "train-head": ("train-head", *BOTH),
    "train-top": ("train-top", *BOTH),
    "sweep": ("sweep", *BOTH, "seed=0:2"),
    "align": ("align", "hollow"),
    "export": ("export", "hollow"),
}


@pytest.fixture(autouse=True)
def _something_to_read(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Make a cache and a run of empty files: that there is nothing at all is seen before."""
    folder = tmp_path_factory.mktemp("work")
    (folder / "hollow" / "train").mkdir(parents=True)
    (folder / "hollow" / "train" / "plan.json").touch()
    (folder / "hollow" / "run.json").touch()
    monkeypatch.chdir(folder)


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def refusal(result: Result) -> str:
    assert isinstance(result.exception, ClinitError), result.output
    return f"{result.exception}\n{result.exception.remedy}"


@pytest.mark.parametrize("name", COMMANDS)
def test_what_another_process_writes_is_refused_before_anything_is_read(
    tmp_path: Path, name: str
) -> None:
    """What a killed command was writing is removed by the next one."""
    into_file = name in ("align", "export")
    out = tmp_path / "head.safetensors"
    words = (*COMMANDS[name], "--out", out)
    with (claim_file if into_file else claim_folder)(out):
        told = refusal(run(*words))
    assert "another process is writing" in told
    assert str(out) in told
    draft = (tmp_path if into_file else out) / ".head.safetensors.tmp-0123456789abcdef"
    draft.mkdir()
    (draft / "steps.parquet").touch()
    assert "hollow" in refusal(run(*words))
    assert not draft.exists()
    assert not (into_file and list(tmp_path.iterdir()))
