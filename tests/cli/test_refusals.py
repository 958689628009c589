"""A setting that no run reads is refused in the same words wherever it is given."""

import json
from pathlib import Path
from typing import Any

import pytest

import clinit
from clinit.errors import ClinitError
from clinit.headtrain.protocol.study.rules import settings_of
from tests.cli.calls import call, unframed

HEAD_RUNS: list[tuple[dict[str, Any], str]] = [
    ({"method": "ncm", "lr": 0.01}, "--lr does not go with --method ncm: its head is solved"),
    ({"method": "naive", "mix": "text"}, "--mix does not go with --method naive: its batches"),
]
TOP_RUNS: list[tuple[dict[str, Any], str]] = [
    ({"full_rank": True, "alpha": 5.0}, "--alpha does not go with --full-rank: the blocks")
]
CASES = [(False, *case) for case in HEAD_RUNS] + [(True, *case) for case in TOP_RUNS]
PLACES = ["--base=b", "--new=n", "--out=o"]


def said(*words: str) -> str:
    result = call(*words)
    assert result.exit_code != 0
    return unframed(result)


@pytest.mark.slow
@pytest.mark.parametrize(("top", "settings", "message"), CASES)
def test_every_door_refuses_what_no_run_reads(
    top: bool,
    settings: dict[str, Any],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    command = "train-top" if top else "train-head"
    every = settings_of(top=top)
    words = [
        every[name].option if value is True else f"{every[name].option}={value}"
        for name, value in settings.items()
    ]
    assert message in said(command, *PLACES, *words)
    file = tmp_path / "study.toml"
    lines = [f"{every[name].key} = {json.dumps(value)}" for name, value in settings.items()]
    file.write_text("\n".join([f"[{command}]", *lines]))
    assert message in said(command, *PLACES, f"--config={file}")
    grid = [f"{name}={str(value).lower()}" for name, value in settings.items()]
    kind = ["--top"] if top else []
    assert message in said("sweep", *PLACES, *kind, *grid)
    assert message in said("sweep", *PLACES, *kind, f"--config={file}", "seed=0")
    file.write_text("\n".join(["[[sweep.grid]]", *lines]))
    assert message in said("sweep", *PLACES, *kind, f"--config={file}")
    if not top:
        with pytest.raises(Exception, match=message[:20]) as caught:
            clinit.train("b", "n", settings)
        assert message in str(caught.value)


@pytest.mark.parametrize(
    ("lines", "words", "told"),
    [
        ("[train-head]\nbuffer = 5", ["--method=naive"], "unused with --method: buffer"),
        (
            "mix = 'text'\n[train-head]\nbuffer = 5\n[train-head.naive]\ntasks = 1",
            ["--method=joint"],
            "unused with --method: buffer, mix",
        ),
        ("[train-top]\nrank = 3\nbuffer = 5", ["--full-rank"], "unused with --full-rank: rank"),
        ("[train-head]\nbuffer = 5", ["--method=naive", "--init-rows=buffer"], None),
        ("[train-head]\nbuffer = 5\nlambda = 0.1", ["--init=random"], None),
    ],
)
def test_what_a_file_gives_and_the_command_line_makes_idle_is_told(
    lines: str, words: list[str], told: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("study.toml").write_text(lines)
    command = "train-top" if "train-top" in lines else "train-head"
    result = call(command, *PLACES, "--config=study.toml", *words)
    notes = [line for line in result.stderr.splitlines() if line.startswith("Note: ")]
    assert notes == ([f"Note: {told} of study.toml"] if told else [])
    assert isinstance(result.exception, ClinitError)  # there are no caches
