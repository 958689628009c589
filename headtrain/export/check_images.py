"""Images of a run, to compare two forms of its network on."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from clinit.errors import ClinitError
from clinit.extract.cache import open_split
from clinit.extract.manifest import Manifest
from clinit.headtrain.record.format import RunRecord

MOST = 64


def images_of(record: RunRecord) -> list[Path]:
    """Return at most `MOST` test images of a run, of old and new classes, evenly spread.

    They are looked for where the caches of the run were extracted from; none where these or their
    images are gone, and none where they lie in containers.
    """
    caches = _caches(record)
    return [path for cache in caches for path in _images(cache, MOST // len(caches))]


def in_containers(record: RunRecord) -> tuple[Path, ...]:
    """Return the caches of a run whose test images lie in tar or Parquet files."""
    told = ((cache, _test_images(cache)) for cache in _caches(record))
    return tuple(cache for cache, found in told if found is not None and found[1].is_contained)


def _caches(record: RunRecord) -> tuple[Path, ...]:
    return tuple(Path(record.info[side]["path"]) for side in ("base", "new"))


def _test_images(cache: Path) -> tuple[str | None, Manifest] | None:
    """Return the folder and the manifest of the test images; None where the cache is gone."""
    try:
        split = open_split(cache / "val")
        return split.summary.run.root, split.manifest
    except (ClinitError, OSError):
        return None


def _images(cache: Path, count: int) -> list[Path]:
    root, manifest = _test_images(cache) or (None, None)
    if root is None or manifest is None or manifest.table.is_empty():
        return []
    names = manifest.table["path"]
    rows = np.unique(np.linspace(0, len(names) - 1, num=count).astype(int))
    paths = (Path(root) / names[int(row)] for row in rows)
    return [path for path in paths if path.is_file()]
