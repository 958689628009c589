"""`--memory` of the commands that read feature caches: the same results, and what they print."""

from pathlib import Path

import pytest

from clinit.headtrain.protocol.record.format import find_records
from tests.cli.calls import done
from tests.headtrain.protocol.stream.made_caches import write_base, write_new

SMALL = "16 kB"
STREAM = ["--tasks=2", "--iterations=6", "--eval-every=6", "--batch-size=2", "--device=cpu"]
GRID = ["init=random,least-square", "tasks=2", "iterations=6", "batch_size=2", "device=cpu"]


@pytest.fixture(scope="module")
def caches(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("caches")
    return [f"--base={write_base(folder / 'base')}", f"--new={write_new(folder / 'new')}"]


@pytest.fixture
def base(caches: list[str]) -> str:
    return caches[0].removeprefix("--base=")


@pytest.mark.parametrize("words", [["train-head", *STREAM], ["sweep", *GRID]])
def test_less_memory_is_noted_and_makes_no_other_run(
    caches: list[str], base: str, tmp_path: Path, words: list[str]
) -> None:
    whole, small = tmp_path / "whole", tmp_path / "small"
    assert "disk" not in done(*words, *caches, f"--out={whole}")
    said = done(*words, *caches, f"--out={small}", "--memory", SMALL)
    assert f"Note: {base}/train stays on disk" in said
    assert "16.00 kB of memory" in said
    names = [folder.name for folder in find_records(whole)]
    assert names
    assert names == [folder.name for folder in find_records(small)]
    # A run is the same run wherever its features are: neither call trains it again.
    again = done(*words, *caches, f"--out={whole}", "--memory", SMALL)
    assert "is already recorded" in again or "2 already recorded" in again
