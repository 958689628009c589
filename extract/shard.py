"""Shards: immutable HDF5 files that hold the features of consecutive rows.

    features         (rows, ...) float16 or float32, chunked, not compressed
    labels           (rows,) int64
    valid            (rows,) bool; an invalid row holds zeros
    invalid_rows     (k,) int64, counted from the first row of the shard
    invalid_reasons  (k,) strings

The file is written under a temporary name, closed, read back, flushed and renamed. A digest of
its content is among its attributes: HDF5 reads a flipped byte without a word.
"""

from __future__ import annotations

import hashlib
import io
import math
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
from jaxtyping import Bool, Float, Int

from clinit.errors import CacheError
from clinit.extract.commit import commit_file

_CHUNK_BYTES = 16 * 2**20
_FLOAT16 = np.finfo(np.float16)


@dataclass(frozen=True, slots=True, eq=False)
class Shard:
    """Features of consecutive rows of a manifest."""

    features: Float[np.ndarray, "rows ..."]
    """Penultimate features (rows, dim), or activations with more axes."""
    labels: Int[np.ndarray, " rows"]
    valid: Bool[np.ndarray, " rows"]
    reasons: dict[int, str]
    """Why a row is invalid, by row counted from the first of the shard."""

    def digest(self) -> str:
        """Return the SHA-256 of the content."""
        sha256 = hashlib.sha256(str((self.features.dtype, self.features.shape)).encode())
        for array in (self.features, self.labels, self.valid):
            sha256.update(np.ascontiguousarray(array).data)
        sha256.update(repr(sorted(self.reasons.items())).encode())
        return sha256.hexdigest()


def assemble(
    features: Float[np.ndarray, "rows ..."],
    labels: Int[np.ndarray, " rows"],
    reasons: dict[int, str],
    *,
    dtype: str,
) -> Shard:
    """Make a shard from float32 features; rows that are not finite become invalid.

    The shard is stored in float32 where float16 would overflow, or would round a row to fewer
    than its eleven bits, down to zeros.
    """
    reasons = dict(reasons)
    finite = np.isfinite(features).all(axis=tuple(range(1, features.ndim)))
    for row in np.flatnonzero(~finite):
        reasons.setdefault(int(row), "the features are not finite")
    valid = np.ones(len(features), dtype=bool)
    valid[list(reasons)] = False
    kept = features
    if not valid.all():
        kept = kept.copy()
        kept[~valid] = 0
    if dtype == "float16" and fits_float16(kept):
        kept = kept.astype(np.float16)
    return Shard(kept, labels.astype(np.int64), valid, reasons)


def fits_float16(features: Float[np.ndarray, "rows ..."]) -> bool:
    """Return whether float16 holds every row to its precision.

    It does not hold what overflows, nor a row all of whose values lie below the smallest normal
    number, 2^-14: there the spacing of numbers stays 2^-24, and below that there is only zero. Such
    a row is held all the same where its values are float16 already. A small value beside larger
    ones is rounded as finely as those are.
    """
    largest = np.abs(features).max(axis=tuple(range(1, features.ndim)), initial=0)
    if not (largest < _FLOAT16.max).all():
        return False
    small = features[largest < _FLOAT16.smallest_normal]
    return np.array_equal(small.astype(np.float16).astype(np.float32), small)


def write_shard(shard: Shard, path: Path, *, plan_identifier: str) -> None:
    """Write a shard so that it is there whole or not at all.

    Raises:
        ClinitError: If the folder cannot be written or the disk is full.
    """

    def write(draft: Path) -> None:
        draft.write_bytes(_encode(shard, plan_identifier))
        if read_shard(draft, plan_identifier=plan_identifier).digest() != shard.digest():
            raise OSError("the file read back differs from what was written")

    commit_file(path, write)


def _encode(shard: Shard, plan_identifier: str) -> bytes:
    """Return the HDF5 file of a shard.

    In memory, because HDF5 that meets a full disk raises again and again, from the garbage
    collector too; a shard is some megabytes.
    """
    rows, *shape = shard.features.shape
    row_bytes = shard.features.itemsize * math.prod(shape)
    chunk_rows = max(1, min(rows, _CHUNK_BYTES // row_bytes))
    invalid = sorted(shard.reasons)
    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        file.create_dataset("features", data=shard.features, chunks=(chunk_rows, *shape))
        file.create_dataset("labels", data=shard.labels)
        file.create_dataset("valid", data=shard.valid)
        file.create_dataset("invalid_rows", data=np.array(invalid, dtype=np.int64))
        file.create_dataset(
            "invalid_reasons",
            data=[shard.reasons[row] for row in invalid],
            shape=(len(invalid),),
            dtype=h5py.string_dtype(),
        )
        file.attrs["plan"] = plan_identifier
        file.attrs["sha256"] = shard.digest()
    return buffer.getvalue()


def read_shard(path: Path, *, plan_identifier: str | None = None) -> Shard:
    """Read and verify a shard.

    Args:
        path: The file.
        plan_identifier: The plan that it must belong to.

    Raises:
        CacheError: If it is absent, truncated, changed or of another plan.
    """
    remedy = "Run the `clinit extract` command of this cache again: it computes this shard anew."
    if not path.is_file():
        raise CacheError(f"{path} is missing", remedy=remedy)
    try:
        with h5py.File(path, "r") as file:
            reasons = [text.decode() for text in file["invalid_reasons"][:]]
            shard = Shard(
                features=file["features"][:],
                labels=file["labels"][:],
                valid=file["valid"][:],
                reasons=dict(zip(file["invalid_rows"][:].tolist(), reasons, strict=True)),
            )
            stored, plan = str(file.attrs["sha256"]), str(file.attrs["plan"])
    except (OSError, KeyError, ValueError, RuntimeError) as error:
        raise CacheError(f"{path} cannot be read as a shard: {error}", remedy=remedy) from error
    if shard.digest() != stored:
        raise CacheError(f"{path} has changed since it was written", remedy=remedy)
    if plan_identifier is not None and plan != plan_identifier:
        raise CacheError(f"{path} belongs to another extraction", remedy=remedy)
    return shard


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
