import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from clinit.cli.main import app

ARGUMENTS = [
    "--dataset=folder",
    "--backbone=convnextv2_atto",
    "--model-arg=depths=(1,1,1,1)",
    "--model-arg=dims=(4,8,8,12)",
    "--input-size=32",
    "--batch-size=2",
    "--shard-rows=5",
    "--device=cpu",
]


def command(root: Path, out: Path, weights: Path, *more: str) -> list[str]:
    places = [f"--root={root}", f"--out={out}", f"--weights={weights}"]
    return [sys.executable, "-m", "clinit", "extract", *places, *ARGUMENTS, *more]


def kill_at(moment: Callable[[], bool], arguments: list[str]) -> None:
    with subprocess.Popen(
        arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        deadline = time.monotonic() + 120
        while not moment() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.0002)
        os.kill(process.pid, signal.SIGKILL)


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in ("cache.json", ".lock")
    }


def summary(folder: Path) -> dict[str, object]:
    content: dict[str, object] = json.loads((folder / "cache.json").read_text())
    del content["run"], content["sha256"]  # when and how fast, and the digest of that
    return content


@pytest.mark.slow
def test_an_extraction_with_views_killed_at_several_moments_ends_bit_identical(
    make_tree: Callable[..., Path], tiny_weights: Path, tmp_path: Path
) -> None:
    root = make_tree(train=30, val=3)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    made = CliRunner().invoke(app, command(root, whole, tiny_weights, "--views=2")[3:])
    assert made.exit_code == 0, made.output
    views = killed / "views"
    # In the middle of a split, where a draft lies in the folder, and in the middle of the end.
    moments: list[Callable[[], bool]] = [
        lambda: len(list((killed / "train").glob("shard-*.h5"))) >= 4,
        lambda: any((views / "0").glob(".shard-*.tmp-*")),
        lambda: len(list((views / "1").glob("shard-*.h5"))) >= 2,
    ]
    survivors = []
    for moment in moments:
        kill_at(moment, command(root, killed, tiny_weights, "--views=2"))
        survivors.append(len(list(killed.rglob("shard-*.h5"))))
        if len(survivors) == 1:
            assert 4 <= survivors[0] < 18, "the process was meant to die within the split"
            assert not (killed / "train" / "cache.json").exists()
    assert survivors == sorted(survivors)
    assert survivors[-1] < 18 + 2 + 2 * 18, "the process was meant to die before it had finished"
    assert not (views / "1" / "cache.json").exists()
    done = subprocess.run(
        command(root, killed, tiny_weights, "--views=2"), check=True, capture_output=True, text=True
    )
    assert "train, view 0: already complete, every shard verified" in done.stdout
    assert "found from an earlier run" in done.stdout
    assert contents(killed) == contents(whole)  # no draft is left either
    parts = ("train", "val", "views/0", "views/1")
    assert all(summary(killed / part) == summary(whole / part) for part in parts)
