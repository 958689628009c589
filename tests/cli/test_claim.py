"""Two commands on one --out: the second is refused before it reads anything."""

from pathlib import Path

import pytest

from clinit.files.lock import claim_file, claim_folder
from tests.cli.calls import call, refused

BOTH = ("--base", "hollow", "--new", "hollow")
COMMANDS = {
    "train-head": ("train-head", *BOTH),
    "train-top": ("train-top", *BOTH),
    "sweep": ("sweep", *BOTH, "seed=0:2"),
    "align": ("head", "align", "hollow"),
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


@pytest.mark.parametrize("name", COMMANDS)
def test_what_another_process_writes_is_refused_before_anything_is_read(
    tmp_path: Path, name: str
) -> None:
    """What a killed command was writing is removed by the next one."""
    into_file, out = name in ("align", "export"), tmp_path / "head.safetensors"
    words = (*COMMANDS[name], "--out", out)
    with (claim_file if into_file else claim_folder)(out):
        error = refused(call(*words))
    assert "another process is writing" in str(error)
    assert str(out) in str(error)
    draft = (tmp_path if into_file else out) / ".head.safetensors.tmp-0123456789abcdef"
    draft.mkdir()
    (draft / "steps.parquet").touch()
    error = refused(call(*words))
    assert "hollow" in f"{error}\n{error.remedy}"
    assert not draft.exists()
    assert not (into_file and list(tmp_path.iterdir()))
