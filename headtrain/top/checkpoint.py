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

import msgspec
import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from clinit.errors import CheckpointError
from clinit.extract.backbone import state_sha256
from clinit.extract.commit import commit_file
from clinit.extract.document import DocumentKind
from clinit.extract.readable import check_readable
from clinit.headtrain.init import Initialisation, LambdaCurve, Rows
from clinit.headtrain.ledger import Point, TaskEntry

_FORMAT = "clinit-checkpoint/3"
_DOCUMENT = DocumentKind(
    title="a checkpoint of this version of clinit",
    format=_FORMAT,
    error=CheckpointError,
    remedy="Remove this file to start the run anew, or choose another --out.",
)
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


@dataclass(frozen=True, slots=True)
class _Sealed:
    """The document in the metadata."""

    state: str
    """JSON of `_State`."""
    tensors: str
    """SHA-256 over the tensors (`state_sha256`)."""


@dataclass(frozen=True, slots=True)
class _State:
    """What a checkpoint holds beside its tensors."""

    run: str
    task: int
    iteration: int
    entries: list[dict[str, Any]]
    facts: dict[str, Any]


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
    state = {
        "run": checkpoint.run,
        "task": checkpoint.task,
        "iteration": checkpoint.iteration,
        "entries": told,
        "facts": dict(checkpoint.facts),
    }
    # A text in the document: the losses of a run that diverges are numbers that JSON has not.
    content = {"state": json.dumps(state), "tensors": state_sha256(tensors)}
    # As bytes: a full disk is then an OSError like any other.
    file = save(tensors, {_KEY: _DOCUMENT.text(content, indent=None)})
    commit_file(path, lambda draft: draft.write_bytes(file))


def read_checkpoint(path: Path, run: str, device: torch.device) -> Checkpoint | None:
    """Read the checkpoint at `path`; None where there is none.

    Raises:
        CheckpointError: If it is damaged or belongs to another run.
    """
    if not path.is_file():
        return None
    check_readable(path, CheckpointError)
    try:
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get(_KEY, "null")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, ValueError, TypeError) as error:
        raise _damaged(path, error) from error
    sealed = _DOCUMENT.convert(_DOCUMENT.parse(text, origin=str(path)), _Sealed, origin=str(path))
    if state_sha256(tensors) != sealed.tensors:
        raise _damaged(path, ValueError("its tensors have changed since they were written"))
    tensors = {name: tensor.to(device) for name, tensor in tensors.items()}
    try:
        state = msgspec.convert(json.loads(sealed.state), _State)
        entries = tuple(
            _entry(facts, _under(tensors, f"entry.{index}."))
            for index, facts in enumerate(state.entries)
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _damaged(path, error) from error
    if state.run != run:
        raise CheckpointError(
            f"{path} is the checkpoint of a run with other settings, data or weights",
            remedy=_DOCUMENT.remedy,
        )
    parts = {part: _under(tensors, f"{part}.") for part in ("model", "method", "optimizer")}
    return Checkpoint(
        run=run,
        task=state.task,
        iteration=state.iteration,
        entries=entries,
        facts=state.facts,
        **parts,
    )


def _damaged(path: Path, error: Exception) -> CheckpointError:
    return CheckpointError(f"{path} is damaged: {error}", remedy=_DOCUMENT.remedy)


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
