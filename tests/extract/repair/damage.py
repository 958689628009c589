"""Damage to a cache, and its repair."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from clinit.extract.repair.parts import DamagedCache, Mended, RepairConfig
from clinit.extract.repair.repair import repair


def contents(folder: Path) -> dict[Path, tuple[int, bytes]]:
    return {
        path.relative_to(folder): (path.stat().st_mtime_ns, path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


def halve(*paths: Path) -> None:
    for path in paths:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def mend(cache: Path, **config: Any) -> list[Mended]:
    return list(repair(DamagedCache.of(cache), RepairConfig(**config)))
