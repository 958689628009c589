"""`cache.json`: what a complete split holds.

It is written last, so its presence means that the split is complete.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clinit.extract.commit import commit_json
from clinit.extract.head import Head
from clinit.extract.manifest import Manifest
from clinit.extract.plan import Plan, shard_name
from clinit.extract.shard import Shard, file_sha256, read_shard
from clinit.extract.top1 import Top1, head_rows, top1


def write_summary(
    folder: Path,
    plan: Plan,
    manifest: Manifest,
    *,
    head: Head | None,
    head_classes: str,
    run: Mapping[str, Any],
) -> None:
    """Read all shards once more, verified, and write `cache.json`.

    Args:
        folder: The folder of the split.
        plan: Its plan.
        manifest: Its manifest.
        head: The head whose accuracy on the features is stored.
        head_classes: Where the head's class names came from.
        run: How the features came about.

    Raises:
        CacheError: If a shard is missing or damaged.
    """
    rows_of_classes = head_rows(head, manifest.class_names) if head is not None else None
    paths = manifest.table["path"]
    shards: list[dict[str, Any]] = []
    invalid: list[dict[str, Any]] = []
    accuracy = Top1(0, 0)
    for index in range(plan.num_shards):
        path, first = folder / shard_name(index), plan.rows(index).start
        shard = read_shard(path, plan_identifier=plan.identifier)
        if head is not None and rows_of_classes is not None:
            kept = shard.features[shard.valid]
            accuracy += top1(head, kept, shard.labels[shard.valid], rows_of_classes)
        invalid += [
            {"row": first + row, "path": paths[first + row], "reason": reason}
            for row, reason in sorted(shard.reasons.items())
        ]
        shards.append(_describe(shard, path))
    content = {
        "format": "clinit-cache/1",
        "plan": plan.identifier,
        "num_rows": plan.num_rows,
        "num_valid": plan.num_rows - len(invalid),
        "dim": plan.dim,
        "dtype": max((shard["dtype"] for shard in shards), default=plan.dtype),
        "shards": shards,
        "invalid": invalid,
        "head": {
            "class_names": head_classes,
            "correct": accuracy.correct,
            "total": accuracy.total,
            "top1_percent": accuracy.percent,
        },
        "run": dict(run),
    }
    commit_json(folder / "cache.json", content)


def _describe(shard: Shard, path: Path) -> dict[str, Any]:
    valid = shard.features[shard.valid]
    return {
        "name": path.name,
        "rows": len(shard.labels),
        "sha256": file_sha256(path),
        "dtype": str(shard.features.dtype),
        "min": float(valid.min()) if len(valid) else None,
        "max": float(valid.max()) if len(valid) else None,
        "non_finite": sum("not finite" in reason for reason in shard.reasons.values()),
    }
