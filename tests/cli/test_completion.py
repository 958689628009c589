import os
import subprocess
import sys
from pathlib import Path

import pytest
import timm

from clinit.cli.frame import completion

HEAVY = ("h5py", "matplotlib", "numpy", "PIL", "polars", "safetensors", "timm", "torch")
COMPLETE = """
import sys
sys.argv = ["clinit"]
from clinit.cli.main import main
try:
    main()
finally:
    print(*(name for name in HEAVY if name in sys.modules), file=sys.stderr)
"""


def completed(line: str, folder: Path) -> list[str]:
    """Return what bash is told at the end of a line; nothing that computes may be loaded."""
    words = line.split(" ")
    result = subprocess.run(
        [sys.executable, "-c", COMPLETE.replace("HEAVY", repr(HEAVY))],
        capture_output=True,
        text=True,
        cwd=folder,
        check=True,
        env={
            **os.environ,
            "_CLINIT_COMPLETE": "complete_bash",
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(words) - 1),
        },
    )
    assert result.stderr.split() == []
    return result.stdout.split()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("clinit extract --dataset ", "digits folder huggingface imagenet1k places365 webdataset"),
        ("clinit extract --backbone vit_tiny_patch16_224.aug", "vit_tiny_patch16_224.augreg_in21k"),
        ("clinit train-head --config ./mi", "./mine.toml"),
        ("clinit train-head --base ca", ""),
        ("clinit train-head --loss ", "ce mse sqen"),
        ("clinit recipe show star", "starts"),
    ],
)
def test_a_shell_is_told_what_may_follow(tmp_path: Path, line: str, found: str) -> None:
    (tmp_path / "mine.toml").touch()
    (tmp_path / "caches").mkdir()
    answer = completed(line, tmp_path)
    if "--backbone" in line:
        assert found in answer
        assert all(each.startswith(line.rpartition(" ")[2]) for each in answer)
    else:
        assert answer == found.split()


def test_the_networks_are_those_of_timm() -> None:
    proposed = {*completion.backbones("")}
    known = {*timm.list_models(), *timm.list_models(pretrained=True)}
    # A few are made by code, which is not run, and some that are there cannot be built any more.
    assert len(known - proposed) <= 0.02 * len(known), sorted(known - proposed)[:20]
    assert len(proposed - known) <= 0.02 * len(known), sorted(proposed - known)[:20]
