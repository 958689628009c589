"""What differs between a part that was written again and the one before its damage."""

from __future__ import annotations

from pathlib import Path

from clinit.extract.cache import open_split
from clinit.extract.summary import Summary


def differences(told: Summary | None, folder: Path, *, rows: int | None) -> tuple[str, ...]:
    """Compare a part with the digests and the invalid rows that its summary had.

    Args:
        told: The summary from before; None where it was damaged too.
        folder: The part, whole now.
        rows: Rows that were computed; None where they were read from other files.

    Raises:
        CacheError: If it is not whole.
    """
    found = open_split(folder).summary
    if told is None:
        unknown = (
            "its cache.json was damaged too: nothing says whether the bits are those of before"
        )
        return (unknown,) if rows else ()
    before, now = ({entry.row for entry in summary.invalid} for summary in (told, found))
    others = sum(
        one.sha256 != other.sha256 for one, other in zip(told.shards, found.shards, strict=True)
    )
    lines = []
    if lost := len(now - before):
        lines.append(f"rows that had features and have none now: {lost:,}")
    if gained := len(before - now):
        lines.append(f"rows that had no features and have some now: {gained:,}")
    if others:
        lines.append(f"shards of other bits than before: {others:,} of {len(found.shards):,}")
    return tuple(lines)
