"""Checkpoint files: what is written is read, and nothing that has changed is gone on from."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from clinit.errors import CheckpointError
from clinit.files.documents import content_sha256
from clinit.headtrain.record.task_log import Point, TaskEntry
from clinit.headtrain.rows import Rows
from clinit.headtrain.start.scale import Initialisation
from clinit.headtrain.statistics.lambda_curve import LambdaCurve
from clinit.headtrain.top.checkpoint import Checkpoint, read_checkpoint, write_checkpoint

CPU = torch.device("cpu")
SHARES = {"trained": 3, "plastic": 4, "block": 5, "total": 9}


def entry(task: int = 1, **start: Any) -> TaskEntry:
    return TaskEntry(
        task=task,
        facts={"classes": 2, "forward_transfer": {"task": 2, "top1": 0.5}},
        new_share=np.array([1.0, 0.5]),
        starts=[Initialisation(Rows(np.empty((0, 0)), np.empty(0)), **start)],
        start_seconds=[{"solve": 0.25}],
        points=[Point(0, np.array([[3, 1]]), np.array([[4, 2]]), np.array([0.1]), np.array([0.2]))],
        losses=np.full((2, 1, 2), np.nan, dtype=np.float32),
        mistakes=(np.array([[0, 1], [2, 0], [1, 0]], dtype=np.int32),),
    )


def checkpoint(*entries: TaskEntry, **changes: Any) -> Checkpoint:
    content: dict[str, Any] = {
        "run": "abc",
        "task": len(entries),
        "iteration": 1,
        "model": {"w": torch.arange(6, dtype=torch.float32).view(2, 3)},
        "method": {"n": torch.tensor(7), "empty": torch.empty(0, 3)},
        "optimizer": {"0.step": torch.tensor(1.0, dtype=torch.bfloat16)},
        "entries": entries,
        "facts": {
            "diverged": [],
            "paid": ["base train"],
            "seconds": {"train": 1.5},
            "groups": [{"lr": 0.1, "betas": [0.9, 0.99]}],
            "shares": SHARES,
        },
    }
    return Checkpoint(**{**content, **changes})


def content_of(path: Path) -> dict[str, Any]:
    with safe_open(path, framework="pt") as file:
        content: dict[str, Any] = json.loads(file.metadata()["clinit_checkpoint"])
    return content


def rewrite(path: Path, content: dict[str, Any], *, sealed: bool = True) -> None:
    """Write the checkpoint again with other metadata."""
    content.pop("sha256", None)
    if sealed:
        content["sha256"] = content_sha256(content)
    save_file(load_file(path), path, {"clinit_checkpoint": json.dumps(content)})


def plain(found: Checkpoint | None) -> object:
    """All that a checkpoint holds, to be compared."""
    assert found is not None
    parts = [
        [(name, str(t.dtype), t.shape, t.float().tolist()) for name, t in sorted(part.items())]
        for part in (found.model, found.method, found.optimizer)
    ]
    entries = [
        (
            each.task,
            each.facts,
            each.new_share.tolist(),
            [str(start) for start in each.starts],
            each.start_seconds,
            [str(point) for point in each.points],
            str(each.losses),
        )
        for each in found.entries
    ]
    return found.run, found.task, found.iteration, parts, entries, dict(found.facts)


def refusal(path: Path, run: str = "abc") -> str:
    with pytest.raises(CheckpointError) as caught:
        read_checkpoint(path, run, CPU)
    assert caught.value.remedy == f"Remove {path} to start the run anew, or choose another --out."
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(f"{path} ")


def test_a_checkpoint_is_read_as_it_was_written(tmp_path: Path) -> None:
    curve = LambdaCurve((0.1, 1.0), (0.5, math.inf))
    told = checkpoint(
        entry(1, factor=2.0, loss_before=math.nan, loss_after=-math.inf, steps=3, lam=0.1),
        entry(2, curve=curve, library="numpy"),
    )
    write_checkpoint(told, tmp_path / "run.checkpoint")
    found = read_checkpoint(tmp_path / "run.checkpoint", "abc", CPU)
    assert plain(found) == plain(told)
    assert found is not None
    assert found.entries[1].starts[0].curve == curve
    assert math.isnan(found.entries[0].starts[0].loss_before or 0)


def test_no_flipped_bit_of_a_checkpoint_is_gone_on_from(tmp_path: Path) -> None:
    path = tmp_path / "run.checkpoint"
    write_checkpoint(checkpoint(entry()), path)
    written, reference = path.read_bytes(), plain(read_checkpoint(path, "abc", CPU))
    random = np.random.default_rng(0)
    accepted = 0
    for place in range(len(written)):
        changed = bytearray(written)
        changed[place] ^= 1 << int(random.integers(8))
        path.write_bytes(changed)
        try:
            found = read_checkpoint(path, "abc", CPU)
        except CheckpointError:
            continue
        accepted += 1
        assert plain(found) == reference, place
    assert accepted < 10  # blanks that fill the header up


def test_a_checkpoint_of_an_earlier_version_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "run.checkpoint"
    write_checkpoint(checkpoint(entry()), path)
    rewrite(path, {**content_of(path), "format": "clinit-checkpoint/3"}, sealed=False)
    with pytest.raises(CheckpointError) as caught:
        read_checkpoint(path, "abc", CPU)
    assert "its format is 'clinit-checkpoint/3', expected 'clinit-checkpoint/4'" in str(
        caught.value
    )
    assert f"Remove {path} to start the run anew" in caught.value.remedy


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("task",), "1", "task is '1', expected `int`, got `str`"),
        (("task",), 0, "task is 0, expected `int` >= 1"),
        (("task",), 2, "it does not describe the 2 tasks that have begun"),
        (("iteration",), -2, "iteration is -2, expected `int` >= -1"),
        (("entries",), {}, "entries is {}, expected `array`, got `object`"),
        (("entries", 0, "facts"), {"classes": "2"}, "entries[0].facts[...]: expected `int | "),
        (("entries", 0, "iterations"), [0, 1], "the entry of a task is incomplete ("),
        (("entries", 0, "start", "factor"), "2", "entries[0].start.factor"),
        (("entries", 0, "start_seconds"), [], "entries[0].start_seconds is [], expected `array`"),
        (("facts",), {}, "facts lacks `diverged`"),
        (("facts", "groups"), [{"lr": 1}], "facts.groups[0] lacks `betas`"),
        (("facts", "shares"), None, "facts.shares is None, expected `object`, got `null`"),
    ],
)
def test_a_wrong_field_is_named(
    tmp_path: Path, place: tuple[Any, ...], value: object, message: str
) -> None:
    path = tmp_path / "run.checkpoint"
    write_checkpoint(checkpoint(entry()), path)
    content = content_of(path)
    holder: Any = content
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = value
    rewrite(path, content)
    assert refusal(path).startswith(f"is damaged: {message}")


def test_what_is_no_checkpoint_is_told(tmp_path: Path) -> None:
    path = tmp_path / "run.checkpoint"
    assert read_checkpoint(path, "abc", CPU) is None
    save_file({"w": torch.zeros(1)}, path)
    assert refusal(path) == "is damaged: it does not say what it holds"
    save_file({"w": torch.zeros(1)}, path, {"clinit_checkpoint": "[" * 100_000})
    assert refusal(path) == "is damaged: it is nested too deeply"
    path.write_bytes(b"nothing of the kind")
    assert refusal(path).startswith("is damaged: ")
    write_checkpoint(checkpoint(entry()), path)
    assert refusal(path, run="other") == (
        "is the checkpoint of a run with other settings, data or weights"
    )
