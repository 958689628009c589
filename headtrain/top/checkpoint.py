"""Checkpoints of a top-block run: one safetensors file, replaced as the run goes on.

It holds what training has changed and what has been written down so far; everything else follows
from the seed. A run that is killed and started again goes on from it and ends with the same bits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from clinit.errors import CheckpointError
from clinit.extract.commit import commit_file
from clinit.headtrain.init import Initialisation, LambdaCurve, Rows
from clinit.headtrain.ledger import Point, TaskEntry

FORMAT = "clinit-checkpoint/2"
FINISHED = -1
"""The iteration of a checkpoint between two tasks."""
_KEY = "clinit_checkpoint"


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """A run between two steps, or between two tasks."""

    run: str
    """Digest of everything that the run depends on."""
    task: int
    """The last task that has begun."""
    iteration: int
    """Its updates so far, or FINISHED."""
    model: Mapping[str, Tensor]
    method: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]
    """State of the optimizer, `<parameter>.<name>`; empty between tasks."""
    entries: tuple[TaskEntry, ...]
    facts: Mapping[str, Any]
    """Plain values: seconds a phase, notes, rates of the schedule."""


def write_checkpoint(checkpoint: Checkpoint, path: Path) -> None:
    """Write or replace the checkpoint at `path`, atomically.

    Raises:
        ClinitError: If it cannot be written.
    """
    tensors = {
        f"{part}.{name}": value.contiguous()
        for part in ("model", "method", "optimizer")
        for name, value in getattr(checkpoint, part).items()
    }
    told = []
    for index, entry in enumerate(checkpoint.entries):
        facts, arrays = _entry_parts(entry)
        told.append(facts)
        tensors |= {f"entry.{index}.{name}": torch.tensor(a) for name, a in arrays.items()}
    content = {
        "format": FORMAT,
        "run": checkpoint.run,
        "task": checkpoint.task,
        "iteration": checkpoint.iteration,
        "entries": told,
        "facts": dict(checkpoint.facts),
    }
    # As bytes: a full disk is then an OSError like any other.
    file = save(tensors, {_KEY: json.dumps(content)})
    commit_file(path, lambda draft: draft.write_bytes(file))


def read_checkpoint(path: Path, run: str, device: torch.device) -> Checkpoint | None:
    """Read the checkpoint at `path`; None where there is none.

    Raises:
        CheckpointError: If it is damaged or belongs to another run.
    """
    if not path.is_file():
        return None
    remedy = f"Remove {path} to start the run anew, or choose another --out."
    try:
        with safe_open(path, framework="pt", device=str(device)) as file:
            content = json.loads((file.metadata() or {})[_KEY])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if content["format"] != FORMAT:
            raise ValueError(f"its layout is {content['format']!r}, expected {FORMAT!r}")
        entries = tuple(
            _entry(facts, _under(tensors, f"entry.{index}."))
            for index, facts in enumerate(content["entries"])
        )
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"cannot read {path}: {error}", remedy=remedy) from error
    if content["run"] != run:
        raise CheckpointError(
            f"{path} is the checkpoint of a run with other settings, data or weights",
            remedy=remedy,
        )
    parts = {part: _under(tensors, f"{part}.") for part in ("model", "method", "optimizer")}
    return Checkpoint(
        run=run,
        task=content["task"],
        iteration=content["iteration"],
        entries=entries,
        facts=content["facts"],
        **parts,
    )


def _under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): value
        for name, value in tensors.items()
        if name.startswith(prefix)
    }


def _entry_parts(entry: TaskEntry) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the plain values and the arrays of an entry of one head."""
    (start,) = entry.starts
    curve = start.curve
    facts = {
        "task": entry.task,
        "facts": entry.facts,
        "start": {
            **{name: getattr(start, name) for name in _START},
            "curve": None if curve is None else [list(curve.lams), list(curve.errors)],
        },
        "start_seconds": [dict(each) for each in entry.start_seconds],
        "iterations": [point.iteration for point in entry.points],
    }
    arrays = {"new_share": entry.new_share}
    if entry.losses is not None:
        arrays["losses"] = entry.losses
    if entry.points:
        for name in ("correct", "loss_new", "elapsed_s"):
            arrays[name] = np.stack([getattr(point, name) for point in entry.points])
    return facts, arrays


_START = ("factor", "shift", "loss_before", "loss_after", "steps", "lam", "library")


def _entry(facts: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> TaskEntry:
    arrays = {name: value.cpu().numpy() for name, value in tensors.items()}
    start = dict(facts["start"])
    curve = start.pop("curve")
    columns = [arrays[name] for name in ("correct", "loss_new", "elapsed_s") if name in arrays]
    return TaskEntry(
        task=facts["task"],
        facts=facts["facts"],
        new_share=arrays["new_share"],
        starts=[
            Initialisation(
                Rows(np.empty((0, 0)), np.empty(0)),  # they are in the model
                curve=None if curve is None else LambdaCurve(*map(tuple, curve)),
                **start,
            )
        ],
        start_seconds=list(facts["start_seconds"]),
        points=[Point(*values) for values in zip(facts["iterations"], *columns, strict=True)],
        losses=arrays.get("losses"),
    )
