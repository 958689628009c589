"""Features of the images of new classes, and those of them that are kept aside for measuring."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

import numpy as np

from clinit.errors import CacheError, ManifestError
from clinit.extract.dataset.manifest import Manifest
from clinit.extract.dataset.scan import available_splits, scan
from clinit.extract.features import FeatureSet
from clinit.extract.progress import Progress
from clinit.extract.run import ExtractConfig, extract
from clinit.extract.summary import InvalidRow
from clinit.files.documents import Digest, DocumentKind
from clinit.headtrain.class_draws import in_whole_groups
from clinit.headtrain.deployed.edit import check_apart
from clinit.headtrain.deployed.model import Model
from clinit.headtrain.events import Observer, ignore
from clinit.headtrain.examples import examples
from clinit.headtrain.groups import groups_of
from clinit.headtrain.stream.seeds import Draw, generator
from clinit.headtrain.stream.source import Source, read_source


def _nothing(told: object) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """What is called; by default nothing is told to anybody."""

    note: Callable[[str], None] = _nothing
    """Given what the user may want to know."""
    warn: Callable[[str], None] = _nothing
    """Given what is probably not what the user wanted."""
    doing: Callable[[str], AbstractContextManager[object]] = nullcontext
    """Entered with a few words while something goes on that has no progress to show."""
    extracting: Callable[[], AbstractContextManager[Callable[[Progress], None]]] = lambda: (
        nullcontext(_nothing)
    )
    """Entered while features are computed: what it gives is called after every batch."""
    training: Callable[[], AbstractContextManager[Observer]] = lambda: nullcontext(ignore)
    """Entered while rows are computed and trained: what it gives is called with each event."""


SILENT = Listener()


LEAST_TO_MEASURE = 5
"""A class of fewer images keeps none aside."""
_CONTENT_FILE = "images.json"
_CONTENT = DocumentKind(
    title="the list of the images of a feature cache",
    format="clinit-images/1",
    error=CacheError,
    remedy="Give another folder with `--features`, or remove this one.",
    max_bytes=2**30,
)


class _Content(TypedDict):
    digests: dict[str, Digest]


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """Features to compute rows from, and others of the same classes to measure them on."""

    train: FeatureSet
    held_out: FeatureSet


def list_images(root: Path, listener: Listener = SILENT) -> dict[str, Manifest]:
    """Return the manifests of a folder of class folders, or of its `train` and `val`.

    The listener is warned of files that are left out.

    Raises:
        ManifestError: If there is no class folder, or one of them holds no image.
    """
    splits = available_splits("folder", root) or ("train",)
    manifests = {}
    for split in splits:
        scanned = scan("folder", root, split)
        manifests[split] = scanned.manifest
        for warning in scanned.warnings:
            listener.warn(warning)
    if "train" not in manifests:
        raise ManifestError(
            f"{root} holds a folder val, but no folder train",
            remedy="Give a folder of class folders, or one with train/<class>/ and val/<class>/.",
        )
    train = manifests["train"]
    empty = train.class_counts().filter(images=0)["class_name"].to_list()
    if empty:
        raise ManifestError(
            f"{len(empty):,} of {len(train.class_names):,} class folders in {root} hold no image"
            f" to learn from ({examples(empty)})",
            remedy="Put images into them, or remove them.",
        )
    return manifests


def image_features(
    model: Model,
    root: Path,
    *,
    out: Path,
    features: Path | None,
    config: ExtractConfig,
    check: Callable[[Sequence[str]], object],
    listener: Listener = SILENT,
) -> tuple[Source, Path]:
    """Return the features of a folder of images, and the folder that they are kept in.

    Existing features are not computed again, and are refused if an image has changed since then.

    Args:
        model: Whose network computes them.
        root: The images.
        out: The model that will be written.
        features: Folder of the feature cache; None for `out` with `-features`.
        config: Batch size, threads, type of the stored features.
        check: Called with the class names before anything is computed.
        listener: Hears of it.

    Raises:
        ModelError: If something would be written into the model or the images.
        ClinitError: If the images cannot be read, or the cache is of another model or of others.
    """
    folder = out.with_name(f"{out.name}-features") if features is None else features
    for reads in (root, Path(model.origin)):
        check_apart(out, reads)
        check_apart(folder, reads)
    with listener.doing("Listing the images …"):
        manifests = list_images(root, listener)
    train = manifests["train"]
    check(train.class_names)
    network = model.network(config.dtype)
    content = _same_content(manifests, root, folder)
    if not folder.exists():  # else it may be a cache of others, which the extraction refuses
        _CONTENT.write(folder / _CONTENT_FILE, content)
    bad: list[InvalidRow] = []
    with listener.extracting() as on_progress:
        for result in extract(
            manifests, root, folder, config, network=network, on_progress=on_progress
        ):
            bad += result.split.summary.invalid
    _CONTENT.write(folder / _CONTENT_FILE, content)
    if bad:
        named = examples([f"{each.path}: {each.reason}" for each in bad])
        listener.warn(
            f"{len(bad):,} of {sum(len(each.table) for each in manifests.values()):,} images cannot"
            f" be read and are left out ({named})"
        )
    source = read_source(folder)
    counts = source.train.counts()
    if unreadable := [source.class_names[row] for row in np.flatnonzero(counts == 0)]:
        raise CacheError(
            f"no image of {len(unreadable):,} classes in {root} can be read"
            f" ({examples(unreadable)})",
            remedy="Replace the damaged images, or remove the folders of these classes, and give"
            " another folder with `--features`. If the storage was at fault, give the same command"
            " with `--retry-invalid`.",
        )
    if single := [source.class_names[row] for row in np.flatnonzero(counts == 1)]:
        listener.note(
            f"{len(single):,} of {len(counts):,} classes"
            f" {'has' if len(single) == 1 else 'have'} a single image ({examples(single)}): what"
            " is computed from it is a guess, and nothing is kept aside to measure it on"
        )
    return source, folder


def _same_content(manifests: Mapping[str, Manifest], root: Path, folder: Path) -> _Content:
    """Return the digests of all images, those of the features in `folder` included.

    A manifest knows the sizes alone, and images can be exchanged for others of equal size.

    Raises:
        CacheError: If images are not those that the features were computed from.
    """
    file = folder / _CONTENT_FILE
    before = _CONTENT.read(file, _Content)["digests"] if file.exists() else {}
    found = dict(before)
    for path in (path for each in manifests.values() for path in each.table["path"]):
        try:
            found[path] = hashlib.sha256((root / path).read_bytes()).hexdigest()
        except OSError:  # the extraction names it as unreadable
            found.pop(path, None)
    if changed := [path for path in before if found.get(path, before[path]) != before[path]]:
        raise CacheError(
            f"{len(changed):,} images in {root} have changed since their features in {folder} were"
            f" computed ({examples(changed)})",
            remedy=_CONTENT.remedy,
        )
    return {"digests": found}


def where_from(model: Model, root: Path, source: Source) -> dict[str, str]:
    """Return what the history of a model says of images: the model, the folder, and digests."""
    digests = {"train": source.fingerprint.manifest, "val": source.val_manifest}
    return {
        "model": model.origin,
        "images": str(root),
        **{f"{split}_manifest": each for split, each in digests.items() if each is not None},
    }


def measured(source: Source, share: float) -> Measured:
    """Keep images aside: the split `val` where there is one, else a share of each class.

    At least one image of each class of five or more is kept aside, and none of smaller ones. Which
    ones depends on the name of the class and its number of images alone, not on any seed: the same
    folder keeps the same images aside each time, in whatever company it comes. Images that repeat
    each other count as one, and stay together.

    Args:
        source: The features.
        share: Of the images of a class, in [0, 1).
    """
    if not 0 <= share < 1:
        raise ValueError(f"the share of held-out images must lie in [0, 1), got {share}")
    rows = source.train
    if len(source.val.labels) or not share:
        return Measured(rows, source.val)

    def choose(firsts: np.ndarray) -> np.ndarray:
        chosen = [firsts[:0]]
        for label, name in enumerate(rows.class_names):
            of_class = firsts[rows.labels[firsts] == label]
            digest = hashlib.sha256(name.encode(errors="surrogateescape")).digest()
            random = generator(0, Draw.ASIDE, int.from_bytes(digest[:4]))
            if len(of_class) >= LEAST_TO_MEASURE:
                shuffled = random.permutation(of_class)
                chosen.append(shuffled[: max(1, round(share * len(of_class)))])
        return np.concatenate(chosen)

    aside = in_whole_groups(groups_of(rows), choose)
    return Measured(_picked(rows, ~aside), _picked(rows, aside))


def _picked(rows: FeatureSet, chosen: np.ndarray) -> FeatureSet:
    return FeatureSet(rows.features[chosen], rows.labels[chosen], rows.class_names)
