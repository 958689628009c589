"""The head of a run without its backbone, for features that are computed elsewhere.

It names rows of features: classes with probabilities.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from safetensors import SafetensorError, safe_open

from clinit.errors import CacheError, HeadError
from clinit.extract.arrays.open import FEATURES, find_name, open_array_file
from clinit.extract.cache.head import Head, read_head
from clinit.headtrain.array import as_array, to_numpy
from clinit.headtrain.model.model_file import METADATA, caution
from clinit.headtrain.model.predict import Named, Prediction, Rejection

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
    if isinstance(features, str | Path):
        path = Path(features)
        array = _stored(path, features_name)
        if array.ndim != 2 or array.shape[1] != head.dim:
            raise HeadError(
                f"{path} holds features of shape {array.shape}, the head reads (rows, {head.dim})",
                remedy="Give features of the backbone that the head was trained on.",
            )
    else:
        array = to_numpy(as_array(features))
        if array.ndim != 2 or array.shape[1] != head.dim:
            raise ValueError(f"features have shape {array.shape}, expected (rows, {head.dim})")
    found: list[Prediction] = []
    for start in range(0, len(array), BLOCK_ROWS):
        rows = np.asarray(array[start : start + BLOCK_ROWS], dtype=np.float64)
        finite = np.isfinite(rows).all(axis=1)
        with np.errstate(over="ignore", invalid="ignore"):
            wide = np.where(finite[:, None], rows, 0) @ head.weight.T.astype(np.float64) + head.bias
            logits = wide.astype(np.float32)
            # Scores of a rejection are of the logits as they were trained.
            fits = np.isfinite(logits * np.float32(max(1.0, named.temperature))).all(axis=1)
        logits[~fits] = 0
        answers = named.answers(torch.from_numpy(logits), top, reject)
        for answer, good, fit in zip(answers, finite, fits, strict=True):
            told = answer
            if not (good and fit):
                told = {"guesses": (), "reason": OVERFLOW if good else NOT_FINITE}
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
    known = isinstance(tasks, list) and all(isinstance(task, int) and task >= 0 for task in tasks)
    return Named(
        head.class_names,
        tuple(tasks) if known and len(tasks) == head.num_classes else (0,) * head.num_classes,
        float(value) if isinstance(value, int | float) and 0 < value < np.inf else 1.0,
    )


def _stored(path: Path, name: str | None) -> np.ndarray:
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
    with tempfile.TemporaryDirectory() as folder, stored.open(Path(folder)) as take:
        return np.asarray(take(np.arange(stored.shape[0])))
