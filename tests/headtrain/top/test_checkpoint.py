"""What is written is read, and nothing that has changed is resumed from."""

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
from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.start.scale import Initialisation
from clinit.headtrain.heads.statistics.solve import LambdaCurve
from clinit.headtrain.protocol.learner import Log
from clinit.headtrain.protocol.record.task_log import Point, TaskEntry
from clinit.headtrain.top.checkpoint import Checkpoint, read_checkpoint

CPU = torch.device("cpu")


def entry(task: int = 1, **start: Any) -> TaskEntry:
    return TaskEntry(
        task=task,
        facts={"classes": 2, "forward_transfer": {"task": 2, "top1": 0.5}},
        new_share=np.array([1.0, 0.5]),
        starts=[Initialisation(Rows(np.empty((0, 0)), np.empty(0)), **start)],
        start_seconds=[{"solve": 0.25}],
        points=[
            Point(
                *(0, np.array([[3, 1]]), np.array([[4, 2]]), np.array([0.1]), np.array([0.2])),
                mistakes=(np.array([[0, 1], [2, 0], [1, 0]], dtype=np.int32),),
            )
        ],
        losses=np.full((2, 1, 2), np.nan, dtype=np.float32),
        of_heads=[{"anchor": {"strength": math.inf}}],
    )


def checkpoint(path: Path, *entries: TaskEntry) -> Checkpoint:
    return Checkpoint(
        path=path,
        run="abc",
        iteration=1,
        log=Log([*entries], {"random": "it has diverged"}, {"train": 1.5}, len(entries)),
        model={"w": torch.arange(6, dtype=torch.float32).view(2, 3)},
        method=[(np.arange(2), torch.tensor(7)), {"empty": torch.empty(0, 3)}],
        optimizer={"0.step": torch.tensor(1.0, dtype=torch.bfloat16)},
        groups=[{"betas": [0.9, 0.99]}],
    )


def plain(found: Checkpoint | None) -> object:
    """All that a checkpoint holds, to be compared."""
    parts = [
        [(name, str(t.dtype), t.shape, t.float().tolist()) for name, t in sorted(part.items())]
        for part in (found.model, found.optimizer)
    ]
    fields, log = TaskEntry.__dataclass_fields__, found.log
    entries = [[str(getattr(each, name)) for name in fields] for each in log.entries]
    told = log.diverged, dict(log.seconds), log.finished, found.groups
    return found.run, found.iteration, parts, str(found.method), entries, told


@pytest.fixture
def path(tmp_path: Path) -> Path:
    checkpoint(tmp_path / "run.checkpoint", entry()).write()
    return tmp_path / "run.checkpoint"


def test_a_checkpoint_is_read_as_it_was_written(path: Path) -> None:
    curve = LambdaCurve((0.1, 1.0), (0.5, math.inf))
    told = checkpoint(
        path,
        entry(1, factor=2.0, loss_before=math.nan, loss_after=-math.inf, steps=3, lam=0.1),
        entry(2, curve=curve, library="numpy", shrinkage=0.5),
    )
    told.write()
    assert plain(read_checkpoint(path, "abc", CPU)) == plain(told)
    assert read_checkpoint(path.with_name("none"), "abc", CPU) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "clinit-checkpoint/4"}, "its format is 'clinit-checkpoint/4'"),
        ({"run": "other"}, "other settings, data or weights"),
        ({"tensors": "0" * 64}, "its tensors have changed"),
        ("[" * 100_000, "nested too deeply"),
        (None, "is damaged"),
        (b"nothing of the kind", "is damaged"),
    ],
)
def test_what_is_no_checkpoint_of_the_run_is_refused(
    path: Path, changes: Any, message: str
) -> None:
    if isinstance(changes, bytes):
        path.write_bytes(changes)
    else:
        with safe_open(path, framework="pt") as file:
            content = json.loads(file.metadata()["clinit_checkpoint"])
        if isinstance(changes, dict):
            content |= changes
            content.pop("sha256")
            changes = json.dumps({**content, "sha256": content_sha256(content)})
        save_file(load_file(path), path, {"clinit_checkpoint": changes} if changes else None)
    with pytest.raises(CheckpointError) as caught:
        read_checkpoint(path, "abc", CPU)
    assert message in str(caught.value)
    assert f"Remove {path}" in caught.value.remedy
