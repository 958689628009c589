"""Free space where a cache is to be written, beside what it will take."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from clinit.extract.doctor.finding import Finding, fault, ok, warning

_SPARE = 1.05
"""Labels, digests and the shard in flight, beside the features."""
_LITTLE = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCache:
    """A cache that is to be extracted."""

    rows: int
    """Images of all splits."""
    dim: int
    item_bytes: int = 2
    """Bytes of a number: 2 of float16, 4 of float32."""

    @property
    def nbytes(self) -> int:
        """Bytes that it will take."""
        return round(self.rows * (self.dim * self.item_bytes + 16) * _SPARE)


def check_disk(folder: Path, plan: PlannedCache | None) -> Iterator[Finding]:
    """Compare the free space of the nearest folder that exists with a planned cache."""
    try:
        there = nearest(folder)
        free = shutil.disk_usage(there).free
    except OSError as error:
        told = f"the free space of {folder} cannot be asked for: {error.strerror or error}"
        yield fault("disk", told, "Choose another folder with `--out`.")
        return
    told = f"{_gigabytes(free)} free at {there}"
    if plan is None:
        if free < _LITTLE:
            yield warning("disk", told, "Free space, or choose another disk with `--out`.")
        else:
            yield ok("disk", told)
        return
    needed = f"a cache of {plan.rows:,} x {plan.dim:,} takes {_gigabytes(plan.nbytes)}"
    if plan.nbytes > free:
        remedy = f"Free {_gigabytes(plan.nbytes - free)}, or choose another disk with `--out`."
        yield fault("disk", f"{told}; {needed}", remedy)
    else:
        yield ok("disk", f"{told}; {needed}")


def nearest(folder: Path) -> Path:
    """Return the folder itself, or the nearest above it that exists.

    Raises:
        OSError: If it cannot be looked at: its name is too long, or it is in a folder that may
            not be read.
    """
    folder = folder.absolute()
    return next(each for each in (folder, *folder.parents) if each.is_dir())


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:,.1f} GB"
