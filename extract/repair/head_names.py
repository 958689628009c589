"""The names that the rows of the head had, from what is still whole of the cache."""

from __future__ import annotations

from pathlib import Path

from clinit.errors import CacheError, HeadError
from clinit.extract.cache import HEAD_FILE
from clinit.extract.class_names import read_class_names
from clinit.extract.contrast import contrast_digests
from clinit.extract.head import Head, read_head, tensors_sha256
from clinit.extract.head_names import name_rows
from clinit.extract.named_rows import NAMED_EARLIER, HeadNames
from clinit.extract.repair.parts import DamagedCache
from clinit.extract.shard import file_sha256
from clinit.extract.summary import UNKNOWN, FileFacts, Summary, names_sha256

_DATASET = "the classes of the data set"
"""How a summary says that the head's rows are named after the classes of the data set."""
_NAME_AGAIN = (
    "Run the `clinit extract` command of this cache again, with its `--head-classes` if it had one:"
    " it names the rows and computes nothing that is whole."
)


def recorded_names(cache: DamagedCache, split: str, head: Head) -> HeadNames:
    """Return how the rows of the head in a cache were named.

    Args:
        cache: The cache. Its head itself tells, where it is whole; its summaries do otherwise.
        split: The split that is extracted again.
        head: The classifier of the network, with the names in its weights, if any.

    Raises:
        CacheError: If nothing says so any more, or a file of names is gone or another one.
    """
    told = list(cache.summaries.values())
    if (stored := _whole_head(cache.path, told)) is not None:
        return _told_of(stored.class_names, cache, split)
    named = {
        (each.head.class_names, each.run.head_classes)
        for each in told
        if each.head.class_names not in (UNKNOWN, NAMED_EARLIER)
    }
    digests = {each.head.names for each in told} - {None}
    if not named and {each.head.class_names for each in told} == {UNKNOWN} and not digests:
        return HeadNames()
    if len(named) != 1:
        raise _unknown(cache.path)
    source, file = named.pop()
    found = _read_again(cache, split, head, source, file)
    if digests - {names_sha256(found.names)}:
        raise _unknown(cache.path)
    return found


def _whole_head(path: Path, told: list[Summary]) -> Head | None:
    """Return the stored head, where it is the one that was judged."""
    try:
        stored = read_head(path / HEAD_FILE)
    except HeadError:
        return None
    judged = {each.head.tensors for each in told} - {None}
    return None if judged - {tensors_sha256(stored)} else stored


def _told_of(names: tuple[str, ...] | None, cache: DamagedCache, split: str) -> HeadNames:
    """Return the names of a whole head with what the split, or another part, says of them."""
    own = cache.summaries.get(cache.path / split)
    for each in (own, *cache.summaries.values()):
        # Without a digest, an earlier version has written it: its word is all there is.
        if each is not None and each.head.names in (None, names_sha256(names)):
            return HeadNames(names, each.head.class_names, each.run.head_classes)
    return HeadNames(names, UNKNOWN if names is None else NAMED_EARLIER)


def _read_again(
    cache: DamagedCache, split: str, head: Head, source: str, file: FileFacts | None
) -> HeadNames:
    if file is not None:
        return HeadNames(_names_of_file(file, cache.path), source, file)
    if Path(source).is_absolute() and Path(source).is_file():  # as earlier versions told of a file
        return HeadNames(read_class_names(Path(source)), source, FileFacts.of(Path(source)))
    choice = "dataset" if source == _DATASET else None
    named, found = name_rows(head, cache.manifest(split).class_names, choice)
    if found != source:
        raise _unknown(cache.path)
    return HeadNames(named.class_names, source)


def _names_of_file(file: FileFacts, cache: Path) -> tuple[str, ...]:
    path = Path(file.path)
    named = f"the rows of the head in {cache} were named by {path}"
    if not path.is_file():
        raise CacheError(
            f"{named}, where nothing is now", remedy=f"Put the file back. Or: {_NAME_AGAIN}"
        )
    if (found := file_sha256(path)) != file.sha256:
        now, then = contrast_digests(found, file.sha256)
        raise CacheError(
            f"{named}, which is another file now: SHA-256 {now}, then it was {then}",
            remedy=f"Put the file of then back. Or: {_NAME_AGAIN}",
        )
    return read_class_names(path)


def _unknown(cache: Path) -> CacheError:
    return CacheError(
        f"the head in {cache} is not whole, and nothing whole there says how its rows were named",
        remedy=_NAME_AGAIN,
    )
