"""Compute features of images for a model, hold some of them out, and remember their statistics.

Existing features are not computed again, so that an interrupted command resumes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from clinit.errors import CacheError, ImageError, ManifestError, ModelError
from clinit.extract.cache.features import FeatureSet
from clinit.extract.cache.groups import record_scanned
from clinit.extract.cache.head import accuracy
from clinit.extract.cache.read import open_cache
from clinit.extract.cache.summary import InvalidRow
from clinit.extract.dataset.decode import read_whole
from clinit.extract.dataset.manifest import Manifest
from clinit.extract.dataset.names import near_names
from clinit.extract.dataset.scan import Scan, scan_splits
from clinit.extract.work.run import ExtractConfig, extract
from clinit.extract.work.split_run import Progress
from clinit.files.documents import DocumentKind
from clinit.files.lock import claim_file
from clinit.files.paths import exists
from clinit.headtrain.heads.groups import in_whole_groups
from clinit.headtrain.heads.repeats import groups_of
from clinit.headtrain.heads.seeds import Draw, generator
from clinit.headtrain.model.audit import Images, oddity
from clinit.headtrain.model.facts import Change
from clinit.headtrain.model.memory import Memory
from clinit.headtrain.model.model import Model
from clinit.headtrain.model.settings import RememberConfig
from clinit.headtrain.model.writing import write_model
from clinit.headtrain.protocol.stream.source import Source, read_source, read_sources
from clinit.observer import Observer, ignore
from clinit.words import examples, number_of

LEAST_TO_MEASURE = 5
"""Least number of images of a class from which images are held out."""
LISTED = 20
"""Maximum number of unreadable images that the history of a model lists."""
_CONTENT_FILE = "images.json"
_CONTENT = DocumentKind(
    title="the list of the images of a feature cache",
    format="clinit-images/1",
    error=CacheError,
    remedy="Give another folder with `--features`, or remove this one.",
    max_bytes=2**30,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """Functions that report to the user; by default they do nothing."""

    note: Callable[[str], object] = lambda text: None
    """Called with notes for the user."""
    warn: Callable[[str], object] = lambda text: None
    """Called with warnings of probable mistakes."""
    doing: Callable[[str], AbstractContextManager[object]] = nullcontext
    """Called with a description of work that shows no progress, and entered during this work."""
    extracting: Callable[[], AbstractContextManager[Callable[[Progress], None]]] = lambda: (
        nullcontext(lambda progress: None)
    )
    """Entered while features are computed; yields a function to call after every batch."""
    training: Callable[[], AbstractContextManager[Observer]] = lambda: nullcontext(ignore)
    """Entered while rows are computed and trained; yields the observer of all events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageJob:
    """Images for a model, and the path of the new model."""

    images: Path
    """A folder with one folder of images per class, or with such folders `train` and `val`."""
    out: Path
    """Folder of the new model, or a file that ends in .safetensors."""
    extraction: ExtractConfig
    """Batch size, threads, dtype of the stored features."""
    labels: str | None = None
    """Table of labels (`read_labelled`), if `images` has no class folders."""
    features: Path | None = None
    """Folder of the features of the images; None for `out` with `-features`."""
    overwrite: bool = False
    """Replace an existing model at `out`."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """Further contents of the history, besides the origin of model and images."""
    listener: Listener = Listener()

    @property
    def folder(self) -> Path:
        """Folder of the features."""
        return self.features or self.out.with_name(f"{self.out.name}-features")


def check_apart(writes: Path, reads: Path) -> None:
    """Check that a path to write is not in a folder that is only read.

    Raises:
        ModelError: If `writes` is `reads` or in it.
    """
    place, other = writes.resolve(), reads.resolve()
    if place == other or other in place.parents:
        raise ModelError(
            f"{writes} is in {reads}, which is only read",
            remedy="Choose another place for the new model (`--out`) or for features"
            " (`--features`).",
        )


def list_images(model: Model, job: ImageJob) -> dict[str, Scan]:
    """List the images of each split of a folder; `train` is required.

    Raises:
        ModelError: If an output path is in the folder of the model or of the images.
        ClinitError: If the images cannot be listed.
    """
    for reads in (job.images, Path(model.origin)):
        for writes in (job.out, job.folder):
            check_apart(writes, reads)
    listing: dict[str, Scan] = {}
    with job.listener.doing("Listing the images …"):
        for scanned in scan_splits("folder", job.images, labels=job.labels):
            listing[scanned.manifest.split] = scanned
            scanned.tell(job.listener.warn, job.listener.note)
    if "train" not in listing:
        held_out = job.images / Path(listing["val"].manifest.table["path"][0]).parent.parent
        raise ManifestError(
            f"{job.images} contains images to test, in {held_out}, but none to learn from",
            remedy=f"To learn from them, give `{held_out}` as IMAGES, or name the folder train.",
        )
    train = listing["train"].manifest
    if near := near_names(train.class_names, model.facts.class_names, "the folder", "the model"):
        job.listener.warn(near)
    if empty := train.class_counts().filter(pl.col("images") == 0)["class_name"].to_list():
        raise ManifestError(
            f"{len(empty):,} of {len(train.class_names):,} classes in {job.images} have no image in"
            f" train ({examples(empty)})",
            remedy="Add images to their folders, rename the folders as in train, or remove them.",
        )
    return listing


def image_features(
    model: Model, job: ImageJob, listing: Mapping[str, Scan], hold_out: float
) -> tuple[Source, dict[str, Any]]:
    """Compute the features of listed images; refuse an image that has changed since the last call.

    Args:
        model: Its network computes the features.
        job: The images, and the folder of their features.
        listing: Result of `list_images`.
        hold_out: As `share` in `measured`.

    Returns:
        The features, and facts for the history of a model: model, folder, digests, warnings of the
        listing, and up to `LISTED` unreadable images.

    Raises:
        ClinitError: If the images cannot be read, or if the existing cache comes from another
            model or other images.
    """
    root, folder, listener = job.images, job.folder, job.listener
    manifests = {split: each.manifest for split, each in listing.items()}
    network = model.network(job.extraction.dtype)
    content = _same_content(manifests, root, folder)
    if not exists(folder):  # otherwise only after `extract` has accepted the existing cache
        _CONTENT.write(folder / _CONTENT_FILE, content)
    bad: list[InvalidRow] = []
    with listener.extracting() as on_progress:
        for result in extract(
            manifests,
            root,
            folder,
            job.extraction,
            network=network,
            on_progress=on_progress,
            on_note=listener.note,
        ):
            bad += result.split.summary.invalid
    with claim_file(folder / _CONTENT_FILE, on_busy=lambda: None):  # removes drafts of killed runs
        _CONTENT.write(folder / _CONTENT_FILE, content)
    record_scanned(folder, listing.values(), job.labels)
    left_out: dict[str, Any] = {}
    if warnings := [warning for each in listing.values() for warning in each.warnings]:
        left_out["listing"] = warnings
    if bad:
        every = sum(len(each.table) for each in manifests.values())
        named = examples([f"{each.path}: {each.reason}" for each in bad])
        listener.warn(f"{len(bad):,} of {every:,} images cannot be read and are left out ({named})")
        first = [{"image": each.path, "error": each.reason} for each in bad[:LISTED]]
        left_out["unreadable"] = {"count": len(bad), "first": first}
    source = read_source(folder)
    counts = source.train.counts()
    if unreadable := [source.class_names[row] for row in np.flatnonzero(counts == 0)]:
        raise CacheError(
            f"{len(unreadable):,} of {len(counts):,} classes in {root} have no image that can be"
            f" read ({examples(unreadable)})",
            remedy="Add or replace images, or remove the folders of these classes; then give"
            " another folder with `--features`. Or read the images again with `--retry-invalid`.",
        )
    digests = {"train": source.fingerprint.manifest, "val": source.val_manifest}
    known = {f"{split}_manifest": each for split, each in digests.items() if each is not None}
    if "assumed_names" in model.facts.record:
        left_out["assumed_names"] = model.facts.record["assumed_names"]
    data = {**job.data, "model": model.origin, "images": str(root), **known, **left_out}
    return measured(source, hold_out), data


def images_to_audit(job: ImageJob) -> Images:
    """Return all images of a job whose features are computed, and which of them are odd."""
    content = _CONTENT.load(job.folder / _CONTENT_FILE)
    splits = open_cache(job.folder).splits
    parts = [split.load() for split in splits.values()]
    paths = [split.manifest.table["path"].to_numpy()[split.valid] for split in splits.values()]
    of_split = [name for name, part in zip(splits, parts, strict=True) for _ in part.labels]
    listed = np.concatenate(paths).tolist()
    return Images(
        rows=FeatureSet.joined(parts, parts[0].class_names),
        paths=listed,
        splits=of_split,
        digests=[content["digests"][path] for path in listed],
        odd={path: why for path, why in content["odd"].items() if path in {*listed}},
    )


def _same_content(
    manifests: Mapping[str, Manifest], root: Path, folder: Path
) -> dict[str, dict[str, str]]:
    """Return the digests of the images of this call and of earlier calls, and what is odd of them.

    The sizes in a manifest are not enough: an image can be replaced by another of equal size.

    Raises:
        CacheError: If an image has changed since its features were computed.
    """
    file = folder / _CONTENT_FILE
    before = _CONTENT.load(file)["digests"] if exists(file) else {}
    found, odd = dict(before), {}
    for path in (path for each in manifests.values() for path in each.table["path"]):
        try:
            content = read_whole(root / path)
            found[path] = hashlib.sha256(content).hexdigest()
            if why := oddity(content):
                odd[path] = why
        except (OSError, ImageError):  # the extraction reports it as unreadable
            found.pop(path, None)
    if changed := [path for path in before if found.get(path, before[path]) != before[path]]:
        raise CacheError(
            f"{len(changed):,} images in {root} have changed since their features in {folder} were"
            f" computed ({examples(changed)})",
            remedy=_CONTENT.remedy,
        )
    return {"digests": found, "odd": odd}


def old_features(given: Source | Path, model: Model, listener: Listener) -> Source:
    """Read features of old classes; refuse features of another network."""
    if isinstance(given, Path):
        with listener.doing("Reading the features of old classes …"):
            (given,) = read_sources(given)
    # They may come from this network, or from the network that its base head was trained on.
    found = given.fingerprint.without_rows
    own = model.network(found.dtype or "float16").fingerprint
    differing = [found.differences(each.without_rows) for each in (model.facts.fingerprint, own)]
    if all(differing):
        raise ModelError(
            f"the features in {given.path} do not come from the network of {model.origin}: they"
            f" differ in {', '.join(map(str, differing[0]))}",
            remedy="Give the cache of this network, or the images: `clinit remember`.",
        )
    return given


def measured(source: Source, share: float) -> Source:
    """Hold images out: the split `val` if it exists, else a share of each class.

    At least one image of each class of five or more is held out, and none of smaller classes. The
    choice depends only on the name of the class and its number of images, neither on a seed nor on
    other classes: a folder always gives the same held-out images. Images that repeat each other
    count as one, and stay together.

    Args:
        source: The features.
        share: Share of the images of a class, in [0, 1).
    """
    rows = source.train
    if len(source.val.labels) or not share or source.summed is not None:
        return source

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
    train, val = (
        FeatureSet(rows.features[chosen], rows.labels[chosen], rows.class_names)
        for chosen in (~aside, aside)
    )
    return replace(source, train=train, val=val)


def remember_images(model: Model, job: ImageJob, config: RememberConfig) -> Model:
    """Let a model remember images of its classes, and write the new model.

    The memory of other classes stays. The shared covariance becomes the average of two covariances,
    of the given images and of the other classes, weighted by their numbers of classes.

    Args:
        model: The model; it is not changed.
        job: The images, and the path of the new model.
        config: Settings of the memory.

    Raises:
        ModelError: If the model has no class with the name of a folder.
        ClinitError: If the images or features cannot be used, or the model cannot be written.
    """
    row_of = {name: row for row, name in enumerate(model.facts.class_names)}
    listing = list_images(model, job)
    names = listing["train"].manifest.class_names
    if unknown := [name for name in names if name not in row_of]:
        raise ModelError(
            f"{number_of(len(unknown), 'folder')} without class in the model ({examples(unknown)})",
            remedy="Name the folders as the classes of the model (`clinit model show MODEL`),"
            " or add these classes: `clinit add MODEL IMAGES --out NEW`.",
        )
    source, data = image_features(model, job, listing, config.aside)
    train, held_out = (each.named(model.facts.class_names) for each in (source.train, source.val))
    memory = Memory.of(
        train,
        model.depends_on,
        held_out=held_out,
        keep=config.keep,
    )
    if model.memory is not None:
        memory = model.memory.updated(memory)
    counts = train.counts()
    named = sorted(source.class_names, key=row_of.__getitem__)
    change = Change.now(
        "remember",
        named,
        images={name: int(counts[row_of[name]]) for name in named},
        data=data,
        settings=asdict(config),
        accuracy={"old": accuracy(model.head, held_out)},
    )
    remembering = replace(model, memory=memory).after(change)
    with job.listener.doing("Putting backbone and head together …"):
        write_model(remembering, job.out, overwrite=job.overwrite)
    return remembering
