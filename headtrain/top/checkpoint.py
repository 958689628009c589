"""Checkpoints of a top-block run: one safetensors file, replaced during the run.

It contains the changed parameters and the entries so far; everything else follows from the seed. A
killed run that is started again resumes from the checkpoint, and ends with the same bits. The
metadata is a sealed document with the SHA-256 of the tensors, so that a changed byte is detected
before a run resumes.
"""

from __future__ import annotations

import math
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
from clinit.extract.network.backbone import state_sha256
from clinit.files.commit import commit_file
from clinit.files.documents import DocumentKind
from clinit.files.paths import check_readable, is_file
from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.start.scale import Initialisation
from clinit.headtrain.heads.statistics.lambda_curve import LambdaCurve
from clinit.headtrain.protocol.record.task_log import Point, TaskEntry

FINISHED = -1
"""The iteration of a checkpoint between two tasks."""
_KEY = "clinit_checkpoint"
_PARTS = ("model", "method", "optimizer")


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """A run between two steps, or between two tasks."""

    run: str
    """Digest of everything that the run depends on."""
    task: int
    """The last task that has begun."""
    iteration: int
    """Number of updates of this task so far, or FINISHED."""
    model: Mapping[str, Tensor]
    method: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]
    """State of the optimizer, `<parameter>.<name>`; empty between tasks."""
    entries: tuple[TaskEntry, ...]
    facts: Mapping[str, Any]
    """Plain values: seconds per phase, notes, rates of the schedule."""


def _document(path: Path) -> DocumentKind:
    return DocumentKind(
        title="the checkpoint of a run",
        format="clinit-checkpoint/4",
        error=CheckpointError,
        remedy=_remedy(path),
    )


def _remedy(path: Path) -> str:
    return f"Remove {path} to start the run again, or choose another --out."


def misfit(path: Path, why: object) -> CheckpointError:
    """Return the error of a checkpoint that a run cannot resume from."""
    return CheckpointError(f"{path} is damaged: {why}", remedy=_remedy(path))


def write_checkpoint(checkpoint: Checkpoint, path: Path) -> None:
    """Write or replace the checkpoint at `path`, atomically.

    Raises:
        ClinitError: If the checkpoint cannot be written.
    """
    tensors = {
        f"{part}.{name}": value.contiguous()
        for part in _PARTS
        for name, value in getattr(checkpoint, part).items()
    }
    entries = []
    for index, entry in enumerate(checkpoint.entries):
        facts, arrays = _entry_parts(entry)
        entries.append(facts)
        tensors |= {f"entry.{index}.{name}": torch.tensor(a) for name, a in arrays.items()}
    content = {
        "run": checkpoint.run,
        "task": checkpoint.task,
        "iteration": checkpoint.iteration,
        "entries": entries,
        "facts": dict(checkpoint.facts),
        "tensors": state_sha256(tensors),
    }
    # Written as bytes, so that a full disk raises an OSError.
    file = save(tensors, {_KEY: _document(path).text(content, indent=None)})
    commit_file(path, lambda draft: draft.write_bytes(file))


def read_checkpoint(path: Path, run: str, device: torch.device) -> Checkpoint | None:
    """Read the checkpoint at `path`; None if the file does not exist.

    Raises:
        CheckpointError: If it is damaged or belongs to another run.
    """
    if not is_file(path):
        return None
    check_readable(path, CheckpointError)
    try:
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get(_KEY, "")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, ValueError, TypeError) as error:
        raise misfit(path, error) from error
    content = _document(path).parse(text, origin=str(path))
    if content["tensors"] != state_sha256(tensors):
        raise misfit(path, "its tensors have changed since they were written")
    if content["run"] != run:
        raise CheckpointError(
            f"{path} is the checkpoint of a run with other settings, data or weights",
            remedy=_remedy(path),
        )
    entries = tuple(
        _entry(facts, _under(tensors, f"entry.{index}."))
        for index, facts in enumerate(content["entries"])
    )
    parts = {
        part: {name: value.to(device) for name, value in _under(tensors, f"{part}.").items()}
        for part in _PARTS
    }
    return Checkpoint(
        run, content["task"], content["iteration"], **parts, entries=entries, facts=content["facts"]
    )


def _under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): value
        for name, value in tensors.items()
        if name.startswith(prefix)
    }


def _entry_parts(entry: TaskEntry) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    (start,) = entry.starts
    curve = start.curve
    facts = {
        "task": entry.task,
        "facts": entry.facts,
        "start": {
            **{name: _storable(getattr(start, name)) for name in _START},
            "curve": None
            if curve is None
            else [[*map(_storable, curve.lams)], [*map(_storable, curve.errors)]],
            "measure": None if curve is None else curve.measure,
        },
        "start_seconds": [dict(each) for each in entry.start_seconds],
        "iterations": [point.iteration for point in entry.points],
    }
    arrays = {"new_share": entry.new_share}
    if entry.losses is not None:
        arrays["losses"] = entry.losses
    if entry.points:
        for name in _OF_POINTS:
            arrays[name] = np.stack([getattr(point, name) for point in entry.points])
    if entry.mistakes:
        (arrays["mistakes"],) = entry.mistakes
    return facts, arrays


_OF_POINTS = ("correct", "correct_in_task", "loss_new", "elapsed_s")
_REALS = ("factor", "shift", "loss_before", "loss_after", "lam")
_START = (*_REALS, "steps", "library", "repeats")


def _storable(value: Any) -> Any:
    """Return a value as text if it is not finite, since JSON has no such numbers."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _real(value: Any) -> Any:
    return float(value) if isinstance(value, str) else value


def _entry(facts: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> TaskEntry:
    arrays = {name: value.numpy() for name, value in tensors.items()}
    start = dict(facts["start"])
    measure = start.pop("measure")
    if start["curve"] is not None:
        lams, errors = (tuple(map(_real, values)) for values in start["curve"])
        start["curve"] = LambdaCurve(lams, errors, measure)
    start |= {name: _real(start[name]) for name in _REALS}
    columns = [arrays[name] for name in _OF_POINTS] if facts["iterations"] else []
    return TaskEntry(
        task=facts["task"],
        facts=facts["facts"],
        new_share=arrays["new_share"],
        starts=[Initialisation(Rows(np.empty((0, 0)), np.empty(0)), **start)],
        start_seconds=list(facts["start_seconds"]),
        points=[Point(*values) for values in zip(facts["iterations"], *columns, strict=True)],
        losses=arrays.get("losses"),
        mistakes=(arrays["mistakes"],) if "mistakes" in arrays else (),
    )
