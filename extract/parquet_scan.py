"""One Parquet file, opened by polars under exactly the name that it has.

polars reads `*`, `?` and `[` in a path as a pattern, also where it is asked for a schema: of
`train-[0].parquet` beside `train-0.parquet` it opens the other one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl


def scan_parquet(path: Path) -> pl.LazyFrame:
    """Return the rows of one file; nothing is read yet, and no column comes from its folders."""
    return pl.scan_parquet(path, glob=False, hive_partitioning=False)


def parquet_schema(path: Path) -> dict[str, Any]:
    """Return the names and types of the columns of one file.

    Raises:
        PolarsError: If it is damaged.
        OSError: If it cannot be read.
    """
    return dict(scan_parquet(path).collect_schema())
