"""The head of a run without its backbone, for features that are computed elsewhere.

It names rows of features: classes with probabilities.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from safetensors import SafetensorError, safe_open

from clinit.errors import CacheError, HeadError
from clinit.extract.arrays.array_file import StoredFeatures
from clinit.extract.arrays.open import FEATURES, find_name, open_array_file
from clinit.extract.cache.fingerprint import Fingerprint
from clinit.extract.cache.head import Head, Top1, read_head, write_head
from clinit.headtrain.array import as_array, to_numpy
from clinit.headtrain.model.export import TrainedRun
from clinit.headtrain.model.folder import check_free
from clinit.headtrain.model.model_file import METADATA, caution
from clinit.headtrain.model.predict import Named, Prediction, Rejection
from clinit.headtrain.temperature import Temperature, divided

BLOCK_ROWS = 4096
NOT_FINITE = "its features are not finite"
OVERFLOW = "its logits overflow: features of this size are not those that the head was trained on"


def is_head_file(path: Path) -> bool:
    """Return whether the file at `path` holds a head alone, and no network with one."""
    if path.suffix != ".safetensors" or not path.is_file():
        return path.suffix == ".npz"
    try:
        with safe_open(path, framework="numpy") as file:
            return METADATA not in (file.metadata() or {}) and {"weight", "bias"} <= {*file.keys()}
    except (SafetensorError, OSError):
        return False


def caution_of_head(head: Head) -> str | None:
    """Return why the probabilities of a head are none, as far as its file says how it came about.

    None where they are probabilities; see `ModelFacts.caution`.
    """
    origin = head.origin or {}
    if origin.get("temperature") is not None:
        return None
    return caution({"method": origin.get("fitted"), **origin})


def predict_features(
    head: Head | str | Path,
    features: Float[Any, "rows dim"] | str | Path,
    *,
    top: int = 5,
    features_name: str | None = None,
    reject: Rejection | None = None,
) -> list[Prediction]:
    """Name rows of features with a head: the likeliest classes of each.

    Args:
        head: With class names, or its file: of `clinit export`, or from elsewhere.
        features: An array of NumPy, torch or CuPy, or a file: .npy, .npz, .safetensors or
            .parquet.
        top: Classes per row; all of them where there are fewer.
        features_name: Which array of a file; default: `features`.
        reject: When a row is of none of the classes; None for never.

    Raises:
        ValueError: If `top` is not positive, or an array has another width than the head.
        HeadError: If there is no such head, it has no class names, or reads features of another
            width.
        CacheError: If the file is not as described.
    """
    if top < 1:
        raise ValueError(f"top must be positive, got {top}")
    head = head if isinstance(head, Head) else read_head(Path(head))
    named, path = named_head(head), Path()
    blocks: Iterable[np.ndarray]
    if isinstance(features, str | Path):
        path = Path(features)
        stored = _stored(path, features_name)
        if len(stored.shape) != 2 or stored.shape[1] != head.dim:
            raise HeadError(
                f"{stored.origin} holds an array of shape {stored.shape}, the head reads (rows,"
                f" {head.dim})",
                remedy="Give features of the backbone that the head was trained on.",
            )
        blocks = _blocks(stored)
    else:
        array = to_numpy(as_array(features))
        if array.ndim != 2 or array.shape[1] != head.dim:
            raise ValueError(f"features have shape {array.shape}, expected (rows, {head.dim})")
        blocks = (array[start : start + BLOCK_ROWS] for start in range(0, len(array), BLOCK_ROWS))
    found: list[Prediction] = []
    for block in blocks:
        logits, reasons = _logits(head, named, block)
        answers = named.answers(torch.from_numpy(logits), top, reject)
        for answer, reason in zip(answers, reasons, strict=True):
            told = {"guesses": (), "reason": reason} if reason else answer
            found.append(Prediction(path, row=len(found), **told))
    return found


def named_head(head: Head) -> Named:
    """Return what the rows of a head stand for.

    Raises:
        HeadError: If nothing says it.
    """
    if head.class_names is None:
        raise HeadError(
            f"the {head.num_classes:,} rows of the head have no class names",
            remedy="Write it again with `clinit.save_head(path, weight, bias, class_names)`.",
        )
    origin = head.origin or {}  # of any file: its values may be of any type
    tasks, temperature = origin.get("tasks"), origin.get("temperature")
    value = temperature.get("value") if isinstance(temperature, dict) else temperature
    known = (
        isinstance(tasks, list | tuple)
        and len(tasks) == head.num_classes
        and all(isinstance(task, int) and task >= 0 for task in tasks)
    )
    return Named(
        head.class_names,
        tuple(tasks or ()) if known else (0,) * head.num_classes,
        float(value) if isinstance(value, int | float) and 0 < value < np.inf else 1.0,
    )


def _stored(path: Path, name: str | None) -> StoredFeatures:
    if path.is_dir():
        raise CacheError(
            f"{path} is a folder, not a file of features",
            remedy="Give a file; of a feature cache, `clinit cache export CACHE FOLDER` writes"
            " some.",
        )
    file = open_array_file(path)
    stored = file.features(find_name(file, path, name, FEATURES, "--features-name"))
    if stored.dtype not in ("float16", "bfloat16", "float32", "float64"):
        raise CacheError(
            f"{stored.origin} holds {stored.dtype}, expected floats (rows, dim)",
            remedy="Save one feature vector per row: `numpy.save(path, features)`.",
        )
    return stored


def _blocks(stored: StoredFeatures) -> Iterator[np.ndarray]:
    with tempfile.TemporaryDirectory() as folder, stored.open(Path(folder)) as take:
        for start in range(0, stored.shape[0], BLOCK_ROWS):
            yield take(np.arange(start, min(start + BLOCK_ROWS, stored.shape[0])))


def _logits(
    head: Head, named: Named, block: Float[np.ndarray, "rows dim"]
) -> tuple[Float[np.ndarray, "rows classes"], list[str | None]]:
    """Return the logits of rows, and of each the reason why it has none."""
    rows = np.asarray(block, dtype=np.float64)
    finite = np.asarray(np.isfinite(rows).all(axis=1))
    with np.errstate(over="ignore", invalid="ignore"):
        wide = np.where(finite[:, None], rows, 0) @ head.weight.T.astype(np.float64) + head.bias
        logits = wide.astype(np.float32)
        # Scores of a rejection are of the logits as they were trained.
        fits = np.isfinite(logits * np.float32(max(1.0, named.temperature))).all(axis=1)
    logits[~fits] = 0
    reasons = [
        (None if fit else OVERFLOW) if good else NOT_FINITE
        for good, fit in zip(finite, fits, strict=True)
    ]
    return logits, reasons


@dataclass(frozen=True, slots=True, eq=False)
class HeadExport:
    """What was exported of a head alone."""

    path: Path
    head: Head
    """As it is in the file: divided by the temperature, where there is one."""
    tasks: tuple[int, ...]
    """The task in which each class arrived; 0 for the classes of the base."""
    backbone: str
    """What computed the features that it reads."""
    temperature: Temperature | None
    ended: Top1
    """What the run had right at its end, of old and new classes."""
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        return f"<HeadExport {self.path}: {self.head} of {self.backbone}>"


def export_head(
    run: Path,
    out: Path,
    *,
    calibrated: bool = True,
    base: Path | None = None,
    new: Path | None = None,
    overwrite: bool = False,
) -> HeadExport:
    """Write the final head of a run record to a file, for features that are computed elsewhere.

    Args:
        run: The folder of the record.
        out: The file, .npz or .safetensors.
        calibrated: Whether its rows are divided by a temperature, as in `export_run`.
        base: The feature cache of the base classes, where it is not where the record says.
        new: That of the classes that arrived.
        overwrite: Whether a model or a head that is there is replaced.

    Raises:
        ModelError: If there is something at `out` already.
        RecordError: If there is no record at `run`, it is damaged or holds no head.
        HeadError: If the head is damaged, its training has diverged, it is no linear head on
            features, or those of a backbone that training has changed.
    """
    if out.suffix not in (".npz", ".safetensors"):
        raise ValueError(f"a head is written as .npz or .safetensors, got {out}")
    check_free(out, overwrite=overwrite)
    trained = TrainedRun.read(run, base, new)
    info = trained.record.info
    if trained.changed:
        raise HeadError(
            f"training has changed the backbone of {run}: its head alone does not fit the features"
            " of any cache",
            remedy="Export both: `clinit export RUN --out FOLDER`.",
        )
    temperature, notes = trained.temperature() if calibrated else (None, ())
    config = {name: info["config"].get(name) for name in ("method", "loss")}
    origin = {
        "run": info["id"],
        "tasks": list(trained.tasks),
        "temperature": None if temperature is None else asdict(temperature),
        **{name: value for name, value in config.items() if value is not None},
    }
    head = replace(divided(trained.head, temperature), origin=origin)
    write_head(head, out)
    backbone = Fingerprint(info["base"]["fingerprint"]).backbone or "an unknown backbone"
    ended = trained.accuracies()["all"]
    return HeadExport(out, head, trained.tasks, backbone, temperature, ended, notes)
