"""Compute features of a folder of images with the network of a model.

Existing features are not computed again, so that an interrupted command resumes. Each image is read
once: the thread that decodes it also takes its digest and looks whether it shows anything.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from PIL import Image

from clinit.errors import CacheError, ClinitError, ImageError, ManifestError
from clinit.extract.cache.groups import record_scanned
from clinit.extract.cache.read import open_cache
from clinit.extract.cache.summary import InvalidRow
from clinit.extract.dataset.decode import decode, read_whole
from clinit.extract.dataset.manifest import MANIFEST_FILE, read_manifest
from clinit.extract.dataset.scan import Scan, paths_in, scan_splits, without
from clinit.extract.work.run import ExtractConfig, extract
from clinit.files.documents import DocumentKind
from clinit.files.lock import claim_file
from clinit.files.paths import exists
from clinit.headtrain.model import inputs
from clinit.headtrain.model.model import Model
from clinit.headtrain.model.network import engine_of
from clinit.headtrain.model.storage import check_apart
from clinit.observer import Doing, Event, Observer, Progressed, Warned, ignore
from clinit.words import examples, number_of

TINY, DENSE, UNIFORM = 32, 0.1, 4.0
"""Least side in pixels; bytes per pixel below which the look at an image decodes it; least standard
deviation of its pixels, in grey levels of 255."""
_CONTENT_FILE = "images.json"
_CONTENT = DocumentKind(
    title="the list of the images of a feature cache",
    format="clinit-images/1",
    error=CacheError,
    remedy="Give another folder with `--features`, or remove this one.",
    max_bytes=2**30,
)


@dataclass(frozen=True, eq=False, kw_only=True)
class ImageFolder(inputs.Inputs):
    """A folder with one folder of images per class, or with such folders `train` and `val`."""

    root: Path
    labels: str | None = None
    """Table of labels (`read_labelled`), if `root` has no class folders."""
    without: Path | None = None
    """File that lists images to leave out (`scan.without`)."""
    features: Path | None = None
    """Folder of the features; None: they are not kept."""
    extraction: ExtractConfig | None = None
    """Batch size, threads, dtype of the stored features; None: the defaults."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """Further contents of the history, besides the origin of model and images."""
    observe: Observer = ignore

    @cached_property
    def listing(self) -> dict[str, Scan]:
        """The images of each split; `train` is required.

        Raises:
            ClinitError: If the images cannot be listed.
        """
        self.observe(Doing("Listing the images …"))
        scans: Iterable[Scan] = scan_splits("folder", self.root, labels=self.labels)
        scans = scans if self.without is None else without(scans, self.without)
        listing = {each.manifest.split: each for each in scans}
        if "train" not in listing:
            aside = self.root / Path(listing["val"].manifest.table["path"][0]).parent.parent
            raise ManifestError(
                f"{self.root} contains images to test, in {aside}, but none to learn from",
                remedy=f"To learn from them, give `{aside}` as IMAGES, or name the folder train.",
            )
        for scanned in listing.values():
            scanned.tell(self.observe)
        train = listing["train"].manifest
        if empty := train.empty_classes:
            raise ManifestError(
                f"{len(empty):,} of {number_of(len(train.class_names), 'class')} in {self.root}"
                f" without an image to learn from ({examples(empty)})",
                remedy="Add images to their folders, or remove these"
                + (", or name them in train as in val." if "val" in listing else "."),
            )
        return listing

    def kept_at(self, features: Path) -> ImageFolder:
        """Return the same images, not listed again, with another folder for their features."""
        found = replace(self, features=features)
        vars(found)["listing"] = self.listing
        return found

    @property
    def class_names(self) -> tuple[str, ...]:
        """One name per class folder."""
        return self.listing["train"].manifest.class_names

    def arrive(self, model: Model, share: float, observe: Observer) -> inputs.Arrived:
        """Compute the features; refuse an image that has changed since the last call.

        Raises:
            ModelError: If the features would go into the folder of the model or of the images.
            ClinitError: If the images cannot be read, or if the existing cache comes from another
                model or other images.
        """
        inputs.ask_names(self.class_names, model, "the folder", observe)
        kept = self.features
        if kept is not None:
            for reads in (self.root, Path(model.origin)):
                check_apart(kept, reads)
        with TemporaryDirectory(prefix="clinit-") if kept is None else nullcontext() as spare:
            folder = kept or Path(str(spare), "features")
            seen, bad = self._extracted(model, folder, observe)
            found = inputs.features_in(folder)
        names, counts = found.splits["train"].class_names, found.splits["train"].counts()
        if unreadable := [names[row] for row in np.flatnonzero(counts == 0)]:
            raise CacheError(
                f"{len(unreadable):,} of {number_of(len(counts), 'class')} in {self.root}"
                f" without an image that can be read ({examples(unreadable)})",
                remedy="Add or replace images, or remove the folders of these classes.",
            )
        arrived, paths = found.arrive(model, share, ignore), [*chain(*found.names.values())]
        digests = [seen.digests[path] for path in paths]
        odd = {path: why for path, why in seen.odd.items() if path in {*paths}}
        listed = replace(arrived.listed, digests=digests, odd=odd, noun="image")
        data = {**self.data, "model": model.origin, "images": str(self.root), **found.data}
        if self.without is not None:
            data["without"] = {"file": str(self.without), "images": paths_in(self.without)}
        data |= self._left_out(model, bad, observe)
        return replace(arrived, listed=listed, data=data, place=str(kept or ""))

    def _extracted(
        self, model: Model, folder: Path, observe: Observer
    ) -> tuple[_Seen, list[InvalidRow]]:
        """Compute the features into a cache; return what is seen, and what cannot be read."""
        engine = engine_of(model)
        config = self.extraction or ExtractConfig(backbone=engine.backbone.config)
        manifests = {split: each.manifest for split, each in self.listing.items()}
        seen = _Seen.before(self.root, folder)
        bad: list[InvalidRow] = []

        def observer(event: Event) -> None:
            observe(event)
            # Before a shard is written, so that the digests of its images are known.
            if isinstance(event, Progressed) and (
                event.done == event.total or not event.done % config.shard_rows
            ):
                seen.write(folder)

        root, network = self.root, engine.network(config.dtype)
        for result in extract(
            manifests, root, folder, config, network=network, observer=observer, on_image=seen.look
        ):
            bad += result.split.summary.invalid
        out = {each.path for each in bad}
        paths = [path for each in manifests.values() for path in each.table["path"]]
        seen.look_at([path for path in paths if path not in {*seen.digests, *out}])
        with claim_file(folder / _CONTENT_FILE, on_busy=lambda: None):  # drafts of killed runs
            seen.write(folder)
        record_scanned(folder, self.listing.values(), self.labels)
        return seen, bad

    def _left_out(self, model: Model, bad: list[InvalidRow], observe: Observer) -> dict[str, Any]:
        """Return warnings of the listing and unreadable images, for the history."""
        left_out: dict[str, Any] = {}
        if warnings := [text for each in self.listing.values() for text in each.warnings]:
            left_out["listing"] = warnings
        if bad:
            every = sum(len(each.manifest.table) for each in self.listing.values())
            named = examples([f"{each.path}: {each.reason}" for each in bad])
            which = f"{len(bad):,} of {number_of(every, 'image')} cannot be read"
            observe(Warned(f"{which}: left out ({named})"))
            first = [{"image": each.path, "error": each.reason} for each in bad[: inputs.LISTED]]
            left_out["unreadable"] = {"count": len(bad), "first": first}
        if "assumed_names" in model.facts.record:
            left_out["assumed_names"] = model.facts.record["assumed_names"]
        return left_out


@dataclass(frozen=True, slots=True, eq=False)
class _Seen:
    """Digests of the images of this call and of earlier calls, and what is odd of them."""

    root: Path
    digests: dict[str, str]
    odd: dict[str, str]

    @classmethod
    def before(cls, root: Path, folder: Path) -> _Seen:
        """Return what earlier calls have seen.

        Changed images are forgotten: the extraction takes images of another size for new ones.

        Raises:
            CacheError: If an image was replaced by another of equal size.
        """
        file = folder / _CONTENT_FILE
        if not exists(file):
            return cls(root, {}, {})
        content = _CONTENT.load(file)
        then, now, sizes = content["digests"], cls(root, {}, {}), dict[str, int]()
        now.look_at(list(then))
        changed = {path for path, each in now.digests.items() if each != then[path]}
        for place in folder.glob(f"[!.]*/{MANIFEST_FILE}") if changed else ():
            sizes |= read_manifest(place).table.select("path", "size_bytes").iter_rows()
        if same := [path for path in changed if (root / path).stat().st_size == sizes.get(path)]:
            raise CacheError(
                f"{number_of(len(same), 'image')} in {root}, of equal size, changed since"
                f" the features in {folder} were computed ({examples(sorted(same))})",
                remedy=_CONTENT.remedy,
            )
        known = (
            {path: each[path] for path in each.keys() - changed} for each in (then, content["odd"])
        )
        return cls(root, *known)

    def look(self, path: str, content: bytes) -> None:
        """Take the digest of an image, and look whether it shows anything."""
        self.digests[path] = hashlib.sha256(content).hexdigest()
        if why := oddity(content):
            self.odd[path] = why

    def look_at(self, paths: Sequence[str]) -> None:
        """Read images to look at them; the extraction reports what cannot be read."""
        for path in paths:
            with suppress(OSError, ImageError):
                self.look(path, read_whole(self.root / path))

    def write(self, folder: Path) -> None:
        """Write what was seen, next to the features."""
        content = {"digests": dict(self.digests), "odd": dict(self.odd)}
        _CONTENT.write(folder / _CONTENT_FILE, content | {"root": str(self.root.resolve())})


def kept_features(root: Path, model: Model, near: Path) -> Path | None:
    """Return the folder next to a path that keeps the features of these images, if there is one."""
    for folder in sorted(near.absolute().parent.glob("*-features")):
        with suppress(ClinitError):
            is_same = _CONTENT.load(folder / _CONTENT_FILE).get("root") == str(root.resolve())
            cache = next(iter(open_cache(folder).splits.values()), None) if is_same else None
            if is_same and not (cache and inputs.differences(model, cache.fingerprint)):
                return near.with_name(folder.name)
    return None


def oddity(content: bytes) -> str | None:
    """Return why an image is odd (tiny, or nearly of one colour); None if it is not.

    An unreadable image is not odd; the extraction reports it.
    """
    with suppress(ImageError, OSError, SyntaxError, ValueError):
        with Image.open(io.BytesIO(content)) as image:
            width, height = image.size
        if min(width, height) < TINY:
            return f"{width} x {height} pixels"
        dense = len(content) >= DENSE * width * height
        if not dense and float(decode(content).float().std(dim=(1, 2)).max()) < UNIFORM:
            return "nearly one colour"
    return None
