"""Images of a run, to compare two forms of its network on."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from clinit.errors import ClinitError
from clinit.extract.cache import open_split
from clinit.headtrain.record.format import RunRecord

MOST = 64


def images_of(record: RunRecord) -> list[Path]:
    """Return at most `MOST` test images of a run, of old and new classes, evenly spread.

    They are looked for where the caches of the run were extracted from; none where these or their
    images are gone.
    """
    sides = (record.info["base"], record.info["new"])
    return [path for side in sides for path in _images(Path(side["path"]), MOST // len(sides))]


def _images(cache: Path, count: int) -> list[Path]:
    try:
        split = open_split(cache / "val")
        root, names = split.summary.run.root, split.manifest.table["path"]
    except (ClinitError, OSError):
        return []
    if root is None or not len(names):
        return []
    rows = np.unique(np.linspace(0, len(names) - 1, num=count).astype(int))
    paths = (Path(root) / names[int(row)] for row in rows)
    return [path for path in paths if path.is_file()]
