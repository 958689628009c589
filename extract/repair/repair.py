"""Mend a cache by the way it was made; what is whole is not written again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from clinit.errors import CacheError
from clinit.extract.merge import merge
from clinit.extract.progress import Progress
from clinit.extract.recorded import Networks
from clinit.extract.repair.differences import differences
from clinit.extract.repair.extraction import ExtractionRepair
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
    if not cache.plans or (cache.views and "train" not in cache.plans):
        raise cache.problems[0]

    def show(progress: Progress) -> None:
        on_rows(progress.split, progress.rows_done, progress.rows_total)

    networks = Networks(cache.path, config.weights, config.device)
    extraction = ExtractionRepair(cache, config, show, networks)
    names = list(cache.names)
    if cache.views and "train" not in names:
        names.append("train")
    for name in names:
        merged = _merged_from(cache, name)
        if merged:
            list(merge(merged, cache.path, splits=(name,), on_rows=on_rows, on_note=on_note))
            parts = {cache.path / name: Mended(name, None)}
        elif cache.plans[name].fingerprint.is_imported:
            import_again(cache, name, on_rows=on_rows, on_note=on_note)
            parts = {cache.path / name: Mended(name, None)}
        else:
            parts = extraction.extract_again(name)
        for folder, mended in parts.items():
            told = cache.summaries.get(folder)
            yield replace(mended, differences=differences(told, folder, rows=mended.rows))
    left = [problem for part in verify(cache.path) for problem in part.problems]
    if left:
        raise CacheError(f"not all is mended: {left[0]}", remedy=left[0].remedy)


def _merged_from(cache: DamagedCache, name: str) -> list[Path]:
    """Return the caches that a split was merged from; none where its images can be extracted.

    Raises:
        CacheError: If imported features were merged, and a part of them is gone.
    """
    paths = [Path(each) for each in cache.facts(name).merged]
    gone = next((path for path in paths if not path.is_dir()), None)
    if gone is None:
        return paths
    if cache.plans[name].fingerprint.is_imported:
        raise CacheError(
            f"{cache.path} was merged from {len(paths)} caches, and nothing is at {gone} now",
            remedy="Put it back and run `clinit cache repair` again, or merge anew what there is:"
            " `clinit cache merge NEW CACHE CACHE...`.",
        )
    return []
