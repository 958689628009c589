"""What a file of arrays offers: features of chosen rows, labels, class names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import msgspec
import numpy as np
from jaxtyping import Float, Int

from clinit.errors import CacheError
from clinit.extract.class_names import MAX_NAME, is_text
from clinit.files.commit import draft_of

Take = Callable[[Int[np.ndarray, " chosen"]], Float[np.ndarray, "chosen dim"]]
"""From numbers of rows to their features, in float32."""
Labels = np.ndarray | list[str]
"""Integers of shape (rows,), or texts."""

ONE_PER_ROW = "Save one label per feature vector, in the same order."


@dataclass(frozen=True, slots=True, eq=False)
class StoredFeatures:
    """An array of features that has not been read yet."""

    origin: str
    """The file, and the name of the array in it."""
    shape: tuple[int, ...]
    dtype: str
    """As NumPy calls it, or `bfloat16`."""
    open: Callable[[Path], AbstractContextManager[Take]]
    """Opens it; a format without access to single rows is copied into a draft in this folder."""


@runtime_checkable
class ArrayFile(Protocol):
    """A file of arrays."""

    def names(self) -> tuple[str, ...] | None:
        """Return the names of its arrays; None where it holds one without a name."""
        ...

    def features(self, name: str) -> StoredFeatures:
        """Return the array of a name."""
        ...

    def labels(self, name: str) -> Labels:
        """Return labels, all in memory."""
        ...

    def class_names(self) -> tuple[str, ...] | None:
        """Return the class names in the file; None without any."""
        ...


def widened(features: np.ndarray) -> Float[np.ndarray, ...]:
    """Return features in float32, in the order of bytes of this machine.

    What float32 does not hold becomes infinite, and its row invalid: what is too large, and a row
    whose values are all too small, of which zeros or a few bits would be left.
    """
    with np.errstate(over="ignore", under="ignore"):
        narrow = np.asarray(features, dtype=np.float32)
    if features.dtype.itemsize > 4:
        largest = np.abs(features).max(axis=-1, initial=0)
        narrow[(largest > 0) & (largest < np.finfo(np.float32).smallest_normal)] = np.inf
    return narrow


def parse_class_names(text: str, path: Path) -> tuple[str, ...]:
    """Return class names from the JSON list in the metadata of a file.

    Raises:
        CacheError: If it is none, or a name occurs twice.
    """
    with suppress(msgspec.DecodeError, RecursionError):
        names = msgspec.json.decode(text, type=tuple[str, ...])
        wrong = any(len(name) > MAX_NAME or not is_text(name) for name in names)
        if names and not wrong and len(set(names)) == len(names):
            return names
    raise CacheError(
        f"`class_names` in the metadata of {path} are no JSON list of different texts",
        remedy="Name the classes with `--classes FILE`, one per line.",
    )


@contextmanager
def spooled(
    blocks: Iterable[bytes | memoryview], shape: tuple[int, ...], dtype: np.dtype, folder: Path
) -> Iterator[Take]:
    """Copy an array into a draft in `folder`, a block at a time, and give access to its rows.

    Args:
        blocks: The bytes of the array, in parts.
        shape: (rows, dim) of the whole.
        dtype: Its type.
        folder: A claimed folder: the draft of a killed process is removed with its next claim.

    Raises:
        OSError: If the disk is full.
    """
    draft = draft_of(folder / "features")
    try:
        with draft.open("xb") as file:
            for block in blocks:
                file.write(block)
        features = np.memmap(draft, dtype=dtype, mode="r", shape=shape)
        yield lambda rows: widened(features[rows])
    finally:
        draft.unlink(missing_ok=True)
