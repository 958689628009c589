"""Import again what is damaged, from the files that the cache records, if they are the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from clinit.errors import CacheError
from clinit.extract.cache import HEAD_FILE
from clinit.extract.contrast import contrast_digests
from clinit.extract.fitted_head import FIT_AGAIN, readable_head, was_fitted
from clinit.extract.import_features import ImportConfig, import_features
from clinit.extract.repair.parts import DamagedCache
from clinit.extract.shard import file_sha256
from clinit.extract.summary import FileFacts, RunFacts

_IMPORT = "Run the `clinit cache import` command of this cache again: it writes what is damaged."


def import_again(
    cache: DamagedCache,
    name: str,
    *,
    on_rows: Callable[[str, int, int], None],
    on_note: Callable[[str], None],
) -> None:
    """Import a damaged split again.

    Raises:
        CacheError: If nothing says which files they were, or these are others now.
    """
    _refuse_lost_fit(cache)
    plan, facts = cache.plans[name], _facts(cache, name)
    features, labels = _same(facts.features), _same(facts.labels)
    assert facts.features is not None
    assert facts.labels is not None
    classes = None if facts.classes is None else _same(facts.classes)
    config = ImportConfig(
        backbone=plan.fingerprint.backbone or "",
        split=name,
        dataset=plan.dataset,
        classes=classes,
        class_names=_class_names(cache, name) if classes is None else None,
        head=_head(cache),
        features_name=facts.features.name,
        labels_name=facts.labels.name,
    )
    import_features(
        features,
        labels,
        cache.path,
        config,
        on_rows=lambda done, total: on_rows(name, done, total),
        on_note=on_note,
    )


def _refuse_lost_fit(cache: DamagedCache) -> None:
    head = cache.path / HEAD_FILE
    if was_fitted(cache.path) and readable_head(head) is None:
        raise CacheError(
            f"{head} is damaged or missing, and no file has brought it: it was fitted to the rows",
            remedy=FIT_AGAIN,
        )


def _facts(cache: DamagedCache, name: str) -> RunFacts:
    summary = cache.summaries.get(cache.path / name)
    if summary is None or summary.run.features is None or summary.run.labels is None:
        raise CacheError(
            f"nothing whole in {cache.path / name} says which files were imported", remedy=_IMPORT
        )
    return summary.run


def _class_names(cache: DamagedCache, name: str) -> tuple[str, ...] | None:
    """Return the class names of the manifest; None where it is not whole: the files have them."""
    try:
        return cache.manifest(name).class_names
    except CacheError:
        return None


def _head(cache: DamagedCache) -> Path | None:
    """Return the file of the head, where the one in the cache is not whole.

    Whichever import has brought it: all splits share it.
    """
    if readable_head(cache.path / HEAD_FILE) is not None:
        return None
    heads = (each.run.head for each in cache.summaries.values() if each.run.head is not None)
    found = next(heads, None)
    return None if found is None else _same(found)


def _same(facts: FileFacts | None) -> Path:
    """Return where a file is, if it is the one that was imported."""
    assert facts is not None
    path = Path(facts.path)
    if not path.is_file():
        raise CacheError(
            f"{path} was imported, and nothing is there now",
            remedy="Put the file back, then run `clinit cache repair` again.",
        )
    found = file_sha256(path)
    if found != facts.sha256:
        now, then = contrast_digests(found, facts.sha256)
        raise CacheError(
            f"{path} is not the file that was imported: SHA-256 {now}, then it was {then}",
            remedy="Put back the file of then, or import this one into a new folder.",
        )
    return path
