"""Mend a cache by the way it was made; what is whole is not written again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from clinit.errors import CacheError
from clinit.extract.merge import merge
from clinit.extract.progress import Progress
from clinit.extract.repair.extraction import extract_again
from clinit.extract.repair.imported import import_again
from clinit.extract.repair.parts import DamagedCache, Mended, RepairConfig
from clinit.extract.verify import verify


def repair(
    cache: DamagedCache,
    config: RepairConfig,
    *,
    on_rows: Callable[[str, int, int], None] = lambda title, done, total: None,
    on_note: Callable[[str], None] = lambda note: None,
) -> Iterator[Mended]:
    """Write what is damaged again; yield each part that has been mended.

    Args:
        cache: A cache with problems; without any, nothing is done.
        config: What it may not know any more.
        on_rows: Called with the title of a part, its rows that are done, and their number.
        on_note: Called with what the user may want to know of the storage.

    Raises:
        CacheError: If something cannot be mended: the remedy says which command writes it.
        ClinitError: If images, weights or files are not there any more.
    """
    if not cache.problems:
        return
    if not cache.plans:
        raise cache.problems[0]
    merged = _merged_from(cache)

    def show(progress: Progress) -> None:
        on_rows(progress.split, progress.rows_done, progress.rows_total)

    if merged:
        for name in cache.names:
            list(merge(merged, cache.path, splits=(name,), on_rows=on_rows, on_note=on_note))
            yield Mended(name, None)
    elif any(plan.fingerprint.is_imported for plan in cache.plans.values()):
        yield from import_again(cache, on_rows=on_rows, on_note=on_note)
    else:
        yield from extract_again(cache, config, on_progress=show)
    left = [problem for part in verify(cache.path) for problem in part.problems]
    if left:
        raise CacheError(f"not all is mended: {left[0]}", remedy=left[0].remedy)


def _merged_from(cache: DamagedCache) -> list[Path]:
    """Return the caches that this one was merged from, if all of them are there."""
    told = next((summary.run.merged for summary in cache.summaries.values()), ())
    paths = [Path(each) for each in told]
    return paths if all(path.is_dir() for path in paths) else []
