"""Tar and Parquet files as their usual writers make them."""

import io
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import polars as pl

IMAGE = pl.Struct({"bytes": pl.Binary, "path": pl.String})


def make_tar(
    path: Path, members: Sequence[tuple[str, bytes]], kind: int = tarfile.USTAR_FORMAT
) -> Path:
    """Write members in their order; two may have the same name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=kind) as tar:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def make_parquet(
    path: Path,
    images: Sequence[bytes | None],
    labels: Sequence[object] | pl.Series,
    *,
    names: Sequence[str] | None = None,
    row_group_size: int | None = None,
    compression: Literal["snappy", "gzip"] = "snappy",
) -> Path:
    """Write images as the Hugging Face library does; `names` are those of its ClassLabel."""
    path.parent.mkdir(parents=True, exist_ok=True)
    column = pl.Series([{"bytes": each, "path": "x.png"} for each in images], dtype=IMAGE)
    table, told = pl.DataFrame({"image": column, "label": labels}), None
    if names is not None:
        label = {"_type": "ClassLabel", "names": list(names)}
        features = {"image": {"_type": "Image"}, "label": label}
        told = {"huggingface": json.dumps({"info": {"features": features}})}
    table.write_parquet(path, metadata=told, row_group_size=row_group_size, compression=compression)
    return path
