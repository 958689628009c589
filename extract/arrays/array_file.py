"""Types and checks that all formats of array files share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from jaxtyping import Float, Int

from clinit.errors import CacheError
from clinit.extract.dataset.names import MAX_NAME, is_text, near_names
from clinit.words import examples

Take = Callable[[Int[np.ndarray, " chosen"]], Float[np.ndarray, "chosen dim"]]
"""Returns the features of the rows with the given numbers, in float32."""
Labels = np.ndarray | list[str]
"""Integers of shape (rows,), or texts."""

ONE_PER_ROW = "Save one label per feature vector, in the same order."
BFLOAT16 = np.dtype([("bfloat16", "<u2")])
"""NumPy has no bfloat16, which is the upper half of a float32."""


@dataclass(frozen=True, slots=True, eq=False)
class StoredFeatures:
    """An array of features, on disk or in memory."""

    origin: str
    """The file, and the name of the array in it."""
    shape: tuple[int, ...]
    dtype: str
    """NumPy's name of the type, or `bfloat16`."""
    take: Take


@dataclass(frozen=True, slots=True)
class ArrayFile(ABC):
    """A file of arrays, in one of the formats of `arrays.open.KINDS`."""

    path: Path

    @abstractmethod
    def names(self) -> tuple[str, ...] | None:
        """Return the names of the arrays; None for a single array without a name."""

    @abstractmethod
    def array(self, name: str) -> np.ndarray:
        """Return an array, on disk if the format allows that; numbers may be `BFLOAT16`."""

    def metadata(self) -> dict[str, str]:
        """Return the texts next to the arrays, if the format has a place for them."""
        return {}

    def class_names(self) -> tuple[str, ...] | None:
        """Return the JSON list `class_names` in the metadata, if any."""
        text = self.metadata().get("class_names")
        return None if text is None else parse_class_names(text, self.path)

    def features(self, name: str) -> StoredFeatures:
        """Return an array of features."""
        array = self.array(name)
        kind = "bfloat16" if array.dtype == BFLOAT16 else array.dtype.name
        return StoredFeatures(
            self._origin(name), array.shape, kind, lambda rows: widened(array[rows])
        )

    def labels(self, name: str) -> Labels:
        """Return an array of labels; texts become a list.

        Raises:
            CacheError: If it does not contain one integer or text per row.
        """
        array, origin = self.array(name), self._origin(name)
        if array.ndim != 1 or array.dtype.kind not in "iuU":
            raise CacheError(
                f"{origin} contains {array.dtype} of shape {array.shape}, expected integers or"
                " text (rows,)",
                remedy=ONE_PER_ROW,
            )
        try:
            return list(map(str, array.tolist())) if array.dtype.kind == "U" else np.array(array)
        except (SystemError, ValueError) as error:  # invalid Unicode code points
            raise CacheError(
                f"{origin} contains a label of invalid Unicode: {error}",
                remedy="Save valid Unicode.",
            ) from error

    def _origin(self, name: str) -> str:
        return f"`{name}` of {self.path}" if name else f"{self.path}"


def widened(features: np.ndarray) -> Float[np.ndarray, ...]:
    """Return features in float32, in the byte order of this machine.

    Values that float32 cannot represent become infinite, and their row invalid: a value that is too
    large, or all values of a row if all are so small that they would lose most of their bits.
    """
    if features.dtype == BFLOAT16:
        return (features["bfloat16"].astype(np.uint32) << 16).view(np.float32)
    with np.errstate(over="ignore", under="ignore"):
        narrow = np.asarray(features, dtype=np.float32)
    if features.dtype.itemsize > 4:
        largest = np.abs(features).max(axis=-1, initial=0)
        narrow[(largest > 0) & (largest < np.finfo(np.float32).smallest_normal)] = np.inf
    return narrow


def parse_class_names(text: str, path: Path) -> tuple[str, ...]:
    """Return class names from the JSON list in the metadata of a file.

    Raises:
        CacheError: If the text is not a list of texts, or a name occurs twice.
    """
    with suppress(msgspec.DecodeError, RecursionError):
        names = msgspec.json.decode(text, type=tuple[str, ...])
        wrong = any(len(name) > MAX_NAME or not is_text(name) for name in names)
        if names and not wrong and len(set(names)) == len(names):
            return names
    raise CacheError(
        f"`class_names` in the metadata of {path} is not a JSON list of different texts",
        remedy="Name the classes with `--classes FILE`, one per line.",
    )


@dataclass(frozen=True, slots=True, eq=False)
class ExportedRows:
    """Rows of a cache to be written into a file, in the order of the manifest."""

    rows: Int[np.ndarray, " exported"]
    """Row numbers in the cache and its manifest, int64."""
    labels: Int[np.ndarray, " exported"]
    class_names: tuple[str, ...]
    dim: int
    dtype: np.dtype
    """float16 or float32, little-endian."""
    metadata: dict[str, str]
    """Class names as a JSON list, and the origin of the features."""
    blocks: Callable[[], Iterator[Float[np.ndarray, "block dim"]]]
    """Yields the features of the rows, a shard at a time."""


def number_labels(
    labels: Labels, rows: int, names: tuple[str, ...] | None, origin: str, *, shared: int = 0
) -> tuple[Int[np.ndarray, " rows"], tuple[str, ...]]:
    """Return labels as int64 in [0, classes), and one name per class.

    Args:
        labels: Integers from 0, or texts.
        rows: Required number of labels.
        names: The class names; None takes the labels themselves, texts in sorted order.
        origin: Source of the labels, for messages.
        shared: Number of classes of the cache's other split; labels below it are allowed even if
            they are not below `rows`.

    Raises:
        CacheError: If there are not `rows` labels, or a label has no name.
    """
    if len(labels) != rows:
        raise CacheError(
            f"{origin} contains {'text' if isinstance(labels, list) else labels.dtype} of shape"
            f" ({len(labels)},), expected integers or text of shape ({rows},)",
            remedy=ONE_PER_ROW,
        )
    if isinstance(labels, list):
        return _number_texts(labels, names, origin)
    most, least = int(labels.max()), int(labels.min())
    if names is None and most >= max(rows, shared):
        raise CacheError(
            f"{origin} contains the label {most:,}, but only {rows:,} rows",
            remedy="Number the classes from 0 without gaps, name them with `--classes`, or first"
            " import the split with rows of all classes.",
        )
    if names is None:
        names = tuple(map(str, range(most + 1)))
    if least < 0 or most >= len(names):
        raise CacheError(
            f"{origin} contains labels from {least} to {most}, expected 0 to {len(names) - 1}",
            remedy="Number the classes from 0, and name all of them in the file of `--classes`.",
        )
    return labels.astype(np.int64), names


def _number_texts(
    texts: list[str], names: tuple[str, ...] | None, origin: str
) -> tuple[Int[np.ndarray, " rows"], tuple[str, ...]]:
    told = sorted(set(texts))
    wrong = [text for text in told if len(text) > MAX_NAME or not is_text(text)]
    if wrong:
        raise CacheError(
            f"{origin} contains a text that is not a class name: {wrong[0][:30]!r}",
            remedy=f"Save texts of at most {MAX_NAME:,} characters.",
        )
    names = tuple(told) if names is None else names
    number = {name: label for label, name in enumerate(names)}
    unknown = [name[:60] for name in told if name not in number]
    if unknown:
        near = near_names(unknown, names, "the file", "the list")
        raise CacheError(
            f"{origin} contains {len(unknown):,} labels that are not among the {len(names):,} class"
            f" names: {'; '.join(filter(None, (examples(unknown), near)))}",
            remedy="Name all classes in the file of `--classes`, one per line.",
        )
    return np.array([number[name] for name in texts], dtype=np.int64), names
