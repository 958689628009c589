"""Checkpoints of a top-block run: one safetensors file, replaced during the run.

It contains the changed parameters and the log so far; everything else follows from the seed. A
killed run that is started again resumes from the checkpoint, and ends with the same bits. The
metadata is a sealed document with the SHA-256 of the tensors, so that a changed byte is detected
before a run resumes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from clinit.errors import CheckpointError, ClinitError
from clinit.extract.network.backbone import state_sha256
from clinit.files.commit import commit_file
from clinit.files.documents import DocumentKind
from clinit.files.paths import check_readable, is_file
from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.start.scale import Initialisation
from clinit.headtrain.heads.statistics.solve import LambdaCurve
from clinit.headtrain.protocol.learner import Log
from clinit.headtrain.protocol.record.task_log import Point, TaskEntry
from clinit.headtrain.top.methods import Quadratic

_KEY = "clinit_checkpoint"
_STORED = (Log, TaskEntry, Point, Initialisation, Rows, LambdaCurve, Quadratic)
_PARTS = ("log", "model", "method", "optimizer", "groups")
_KINDS = {kind.__name__: kind for kind in _STORED}


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """A run between two steps, or between two tasks."""

    path: Path
    run: str
    """Digest of everything that the run depends on."""
    iteration: int
    """Number of updates of the last task so far, or FINISHED."""
    log: Log
    model: Mapping[str, Tensor]
    method: Any
    """The memory of the method."""
    optimizer: Mapping[str, Tensor]
    """State of the optimizer, `<parameter>.<name>`; empty between tasks."""
    groups: Sequence[Mapping[str, Any]] = ()
    """Rates of the schedule."""

    def write(self) -> None:
        """Write or replace the checkpoint, atomically.

        Raises:
            ClinitError: If the checkpoint cannot be written.
        """
        tensors: dict[str, Tensor] = {}
        parts = {name: _packed(getattr(self, name), tensors) for name in _PARTS}
        digest = state_sha256(tensors)
        content = {"run": self.run, "iteration": self.iteration, **parts, "tensors": digest}
        # Written as bytes, so that a full disk raises an OSError.
        file = save(tensors, {_KEY: _document(self.path).text(content, indent=None)})
        commit_file(self.path, lambda draft: draft.write_bytes(file))


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
        raise damaged(path, error) from error
    content = _document(path).parse(text, origin=str(path))
    if content["tensors"] != state_sha256(tensors):
        raise damaged(path, "its tensors have changed since they were written")
    if content["run"] != run:
        why = "is the checkpoint of a run with other settings, data or weights"
        raise _document(path).refusal(f"{path} {why}")
    parts = {name: _unpacked(content[name], tensors, device) for name in _PARTS}
    return Checkpoint(path, run, content["iteration"], **parts)


def _document(path: Path) -> DocumentKind:
    return DocumentKind(
        title="the checkpoint of a run",
        format="clinit-checkpoint/6",
        error=CheckpointError,
        remedy=f"Remove {path} to start the run again, or choose another --out.",
    )


def damaged(path: Path, why: object) -> ClinitError:
    """Return the error of a checkpoint that a run cannot resume from."""
    return _document(path).refusal(f"{path} is damaged: {why}")


def _packed(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Return a value for JSON; its arrays are added to `tensors`.

    Whatever JSON lacks becomes a table with the key "=": arrays, tensors, tuples, dataclasses, and
    numbers that are not finite.
    """
    if isinstance(value, np.ndarray | Tensor):
        tensors[name := f"{len(tensors)}"] = torch.as_tensor(value).contiguous()
        return {"=": "array" if isinstance(value, np.ndarray) else "tensor", "name": name}
    if is_dataclass(value):
        parts = {each.name: getattr(value, each.name) for each in fields(value)}
        return {"=": type(value).__name__, **_packed(parts, tensors)}
    if isinstance(value, Mapping):
        return {name: _packed(each, tensors) for name, each in value.items()}
    if isinstance(value, tuple):
        return {"=": "tuple", "items": _packed([*value], tensors)}
    if isinstance(value, list):
        return [_packed(each, tensors) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"=": "number", "text": str(value)}
    return value


def _unpacked(value: Any, tensors: Mapping[str, Tensor], device: torch.device) -> Any:
    """Return the value that `_packed` was given."""
    if isinstance(value, list):
        return [_unpacked(each, tensors, device) for each in value]
    if not isinstance(value, dict):
        return value
    parts = {n: _unpacked(each, tensors, device) for n, each in value.items() if n != "="}
    match value.get("="):
        case None:
            return parts
        case "array":
            return tensors[parts["name"]].numpy()
        case "tensor":
            return tensors[parts["name"]].to(device)
        case "tuple":
            return tuple(parts["items"])
        case "number":
            return float(parts["text"])
        case kind:
            return _KINDS[kind](**parts)
