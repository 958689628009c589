"""Which columns of a Parquet file count, where the user says so."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Columns:
    """Names of columns; None where the file is to say them."""

    image: str | None = None
    label: str | None = None


AS_TOLD = Columns()
"""All as the file says."""
