"""Open a file of arrays, whose format is its suffix, and find features and labels in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from clinit.errors import CacheError
from clinit.extract.arrays.array_file import ArrayFile
from clinit.extract.arrays.numpy_files import NpyFile, NpzFile
from clinit.extract.arrays.parquet_files import ParquetFile
from clinit.extract.arrays.safetensors_files import SafetensorsFile
from clinit.files.paths import check_readable, exists, instead_of

KINDS: dict[str, Callable[[Path], ArrayFile]] = {
    ".npy": NpyFile,
    ".npz": NpzFile,
    ".parquet": ParquetFile,
    ".safetensors": SafetensorsFile,
}
FEATURES, LABELS = ("features",), ("labels", "label")
"""Array names to look for if the user gives no name."""


def open_array_file(path: Path) -> ArrayFile:
    """Return the file of arrays at `path`.

    Raises:
        CacheError: If there is no file, or its suffix is not among `KINDS`.
        StorageError: If the file cannot be read.
    """
    if path.suffix.lower() not in KINDS:
        raise CacheError(
            f"{path} has {f'the suffix {path.suffix!r}' if path.suffix else 'no suffix'}, expected"
            f" one of {', '.join(KINDS)}",
            remedy="Save the features in one of these formats, such as with"
            " `numpy.save(path, tensor.numpy())` or `safetensors.torch.save_file`.",
        )
    if not exists(path):
        raise CacheError(f"no file at {path}", remedy=instead_of(path, "Check the spelling."))
    check_readable(path, CacheError)
    return KINDS[path.suffix.lower()](path)


def find_name(
    file: ArrayFile, path: Path, given: str | None, usual: Sequence[str], option: str
) -> str:
    """Return the name of the array that contains the features, or the labels.

    Args:
        file: The file.
        path: Path of the file, for messages.
        given: The name that the user gives; None looks for the usual names.
        usual: The usual names.
        option: The option for the name, for messages.

    Raises:
        CacheError: If the file contains no such array; the message lists the existing arrays.
    """
    names = file.names()
    if names is None and given is None:
        return ""
    wanted = usual if given is None else (given,)
    for name in wanted:
        if name in (names or ()):
            return name
    listed = "one array without a name" if names is None else ", ".join(names[:20]) or "no array"
    raise CacheError(
        f"{path} contains no {' or '.join(map(repr, wanted))}; it contains {listed}",
        remedy=f"Choose an array with `{option} NAME`, or give another file.",
    )
