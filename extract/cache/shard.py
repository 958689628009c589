"""Shards: immutable HDF5 files that hold the features of consecutive rows.

    features         (rows, ...) float16 or float32, in one chunk, not compressed
    labels           (rows,) int64
    valid            (rows,) bool; the features of an invalid row are zeros
    invalid_rows     (k,) int64, counted from the first row of the shard
    invalid_reasons  (k,) strings

The file is written under a temporary name, read back, flushed and renamed. Its first 512 bytes (the
user block of HDF5) contain the SHA-256 of the rest, which is checked before HDF5 opens the file:
HDF5 does not notice most flipped bytes, and some make it read for ever. (Shards of earlier versions
have a digest of their content among their attributes instead.)

An HDF5 file can refer to other files, run its content through plug-ins and declare more rows than
it contains. So layout and types are compared with the plan before any content is read.
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

from clinit.errors import unreadable
from clinit.extract.cache.features import fit_float16, largest_values
from clinit.extract.cache.plan import Plan, damaged
from clinit.files.commit import commit_file
from clinit.files.paths import exists, is_file

_SEAL = b"clinit-shard/2 sha256 "
_BLOCK = 512
"""Bytes of the user block, the smallest that HDF5 allows."""
_CHUNK_BYTES = 2**31
"""Largest chunk. The features of a shard are one chunk if possible; HDF5 allows less than 2^32."""
_COUNTS_BLOCK = (1, 14, 4)
"""First HDF5 version whose chunk offsets include the user block (HDFGroup/hdf5 #3003)."""
_ALIGNMENT = 64
"""The features begin at a multiple of this many bytes, so that the buffer that the file is read
into can be used as their array."""


@dataclass(frozen=True, slots=True, eq=False)
class Shard:
    """Features of consecutive rows of a manifest."""

    features: Float[np.ndarray, "rows ..."]
    """Penultimate features (rows, dim), or activations with more axes."""
    labels: Int[np.ndarray, " rows"]
    valid: Bool[np.ndarray, " rows"]
    reasons: dict[int, str]
    """Why each invalid row is invalid; the keys count rows from the first row of the shard."""
    place: int | None = None
    """Byte of the file at which the features begin, row after row; None if the features are not
    contiguous in the file, or the shard has no file."""

    def digest(self) -> str:
        """Return the SHA-256 of the content, as stored in shards of earlier versions."""
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

    Despite `dtype` float16, the shard is float32 if a row does not fit (`fit_float16`).
    """
    reasons = dict(reasons)
    finite = np.isfinite(largest_values(features))
    for row in np.flatnonzero(~finite):
        reasons.setdefault(int(row), "the features are not finite")
    valid = np.ones(len(features), dtype=bool)
    valid[list(reasons)] = False
    kept = features
    if not valid.all():
        kept = kept.copy()
        kept[~valid] = 0
    if dtype == "float16" and fit_float16(kept).all():
        kept = kept.astype(np.float16)
    return Shard(kept, labels.astype(np.int64), valid, reasons)


def write_shard(shard: Shard, path: Path, *, plan: Plan, index: int) -> None:
    """Write shard `index` of a plan, completely or not at all.

    Raises:
        ClinitError: If the folder cannot be written or the disk is full.
    """
    assert len(shard.labels) == len(plan.rows(index))
    content = _encode(shard, plan.identifier)

    def write(draft: Path) -> None:
        draft.write_bytes(content)
        if draft.read_bytes() != content:
            raise OSError("the file read back differs from the written bytes")

    commit_file(path, write)


def _encode(shard: Shard, plan_identifier: str) -> memoryview:
    """Return the bytes of the HDF5 file of a shard.

    HDF5 writes into memory (a shard is some megabytes), because on a full disk it raises again
    and again, even from the garbage collector.
    """
    rows, *shape = shard.features.shape
    chunk_rows = max(1, min(rows, _CHUNK_BYTES // (shard.features.itemsize * math.prod(shape))))
    invalid = sorted(shard.reasons)
    buffer = io.BytesIO()
    with h5py.File(
        buffer, "w", userblock_size=_BLOCK, alignment_threshold=1024, alignment_interval=_ALIGNMENT
    ) as file:
        file.create_dataset("features", data=shard.features, chunks=(chunk_rows, *shape))
        file.create_dataset("labels", data=shard.labels)
        file.create_dataset("valid", data=shard.valid)
        file.create_dataset("invalid_rows", data=np.array(invalid, dtype=np.int64))
        reasons = [shard.reasons[row] for row in invalid]
        file.create_dataset("invalid_reasons", (len(invalid),), h5py.string_dtype(), reasons)
        file.attrs["plan"] = plan_identifier
    digest = hashlib.sha256(buffer.getbuffer()[_BLOCK:]).hexdigest()
    buffer.seek(0)
    buffer.write(_SEAL + digest.encode())
    return buffer.getbuffer()


def read_shard(path: Path, plan: Plan, index: int) -> Shard:
    """Read and verify shard `index` of a plan; even a hostile shard opens no other file.

    Raises:
        CacheError: If the shard is absent, truncated, changed or belongs to another plan.
        StorageError: If the shard exists and cannot be read.
    """
    if not is_file(path):
        raise damaged(f"{path} is {'not a regular file' if exists(path) else 'missing'}")
    try:
        # HDF5 itself would lock the file, and call an unreadable file damaged.
        content = path.read_bytes()
    except OSError as error:
        raise unreadable(path, error) from error
    told = content[: len(_SEAL) + 64]
    sealed = told.startswith(_SEAL)
    digest = hashlib.sha256(memoryview(content)[_BLOCK:]).hexdigest().encode()
    if sealed and digest != told[len(_SEAL) :]:
        raise damaged(f"{path} has changed since it was written")
    try:
        # With its chunk cache, HDF5 would copy a whole chunk for the two rows `_place` compares.
        with h5py.File(io.BytesIO(content), "r", rdcc_nbytes=0) as file:
            if str(file.attrs["plan"]) != plan.identifier:
                raise damaged(f"{path} belongs to another extraction")
            shard = _decode(file, plan, index, content)
            stored = None if sealed else str(file.attrs["sha256"])
    except (OSError, KeyError, ValueError, TypeError, AttributeError, RuntimeError) as error:
        why = str(error.args[0] if error.args else error).partition("\n")[0]
        raise damaged(f"{path} cannot be read as a shard: {why}") from error
    if stored is not None and shard.digest() != stored:
        raise damaged(f"{path} has changed since it was written")
    return shard


def _decode(file: h5py.File, plan: Plan, index: int, content: bytes) -> Shard:
    """Read a shard from an open file, whose bytes are `content`.

    Raises:
        ValueError: If anything in the file is not as `write_shard` writes it.
    """
    rows, size = len(plan.rows(index)), len(content)
    types = ("float32",) if plan.dtype == "float32" else ("float16", "float32")
    features = _dataset(file, "features", types, (rows, *(plan.shape or (plan.dim,))), size)
    labels = _dataset(file, "labels", ("int64",), (rows,), size)
    valid = _dataset(file, "valid", ("bool",), (rows,), size)
    invalid = _dataset(file, "invalid_rows", ("int64",), None, size)
    reasons = _dataset(file, "invalid_reasons", ("object",), (invalid.shape[0],), size)
    if h5py.check_string_dtype(reasons.dtype) is None:
        raise ValueError("`invalid_reasons` are not texts")
    place = _place(features, content)
    shard = Shard(
        features=np.asarray(features[:]) if place is None else _numbers(features, content, place),
        labels=labels[:],
        valid=valid[:],
        reasons=dict(zip(invalid[:].tolist(), reasons.asstr()[:], strict=True)),
        place=place,
    )
    if np.flatnonzero(~shard.valid).tolist() != list(shard.reasons):
        raise ValueError("`valid` and `invalid_rows` disagree")
    return shard


def _dataset(
    file: h5py.File, name: str, types: tuple[str, ...], shape: tuple[int, ...] | None, size: int
) -> h5py.Dataset:
    """Check a data set of the file and return it, without reading its content.

    Args:
        file: The file.
        name: Name of the data set.
        types: Types that the data set may have.
        shape: Shape that the data set must have; None for one axis of any length.
        size: Size of the file in bytes, which the data set must not exceed.

    Raises:
        ValueError: If the data set has another type, shape or size, or its numbers are filtered or
            in other files.
    """
    if file.id.links.get_info(name.encode()).type != h5py.h5l.TYPE_HARD:
        raise ValueError(f"`{name}` is a link to another place")
    dataset = file[name]
    if not isinstance(dataset, h5py.Dataset):
        raise ValueError(f"`{name}` is not a data set")
    created = dataset.id.get_create_plist()
    if created.get_layout() == h5py.h5d.VIRTUAL or created.get_external_count():
        raise ValueError(f"`{name}` is stored in other files")
    if created.get_nfilters():
        raise ValueError(f"`{name}` is stored through a filter")
    if dataset.dtype not in map(np.dtype, types):
        raise ValueError(f"`{name}` contains {dataset.dtype}, expected {' or '.join(types)}")
    if (len(dataset.shape or ()) != 1) if shape is None else (dataset.shape != shape):
        raise ValueError(f"`{name}` has shape {dataset.shape}, expected {shape or '(rows,)'}")
    if dataset.nbytes > size or math.prod(dataset.chunks or ()) * dataset.dtype.itemsize > size:
        raise ValueError(f"`{name}` declares {dataset.nbytes:,} bytes in a file of {size:,}")
    return dataset


def _place(dataset: h5py.Dataset, content: bytes) -> int | None:
    """Return the byte at which the numbers of a data set begin; None if not contiguous."""
    place = None
    if dataset.chunks is None:
        place = dataset.id.get_offset()
    elif dataset.chunks == dataset.shape and h5py.version.hdf5_version_tuple >= _COUNTS_BLOCK:
        place = dataset.id.get_chunk_info(0).byte_offset
    if place is None or place % dataset.dtype.itemsize or place + dataset.nbytes > len(content):
        return None
    numbers = _numbers(dataset, content, place)
    ends = ((numbers[row].tobytes(), dataset[row].tobytes()) for row in (0, -1))
    if any(here != there for here, there in ends):  # HDF5 itself reads other numbers
        return None
    return int(place)


def _numbers(dataset: h5py.Dataset, content: bytes, place: int) -> Float[np.ndarray, "rows ..."]:
    """Return the numbers at byte `place` of the content as an array, without a copy."""
    size = math.prod(dataset.shape)
    return np.frombuffer(content, dataset.dtype.name, size, place).reshape(dataset.shape)


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file.

    Raises:
        StorageError: If the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise unreadable(path, error) from error
