"""Shared inputs of the top-block runs of one call: the stream, the images, their activations.

The cache of activations, which are computed once.

Its format is the format of a feature cache, but a row has more than one axis. The trunk is
everything in front of the first *plastic* (trained) block. It is frozen, and images are not
augmented, so that its output for an image never changes. For each split of a feature cache, a
*part* contains the rows that the runs read, in a folder named by the digest of its plan. Runs with
the same rows, network and cut thus share a part, whatever their other settings.

Before activations are computed, the features of a few images are compared with the stored features,
because rows are matched by path, and a folder of other images may have the same paths.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from clinit.errors import CacheError, ExperimentError
from clinit.extract.cache import read
from clinit.extract.cache.head import Head
from clinit.extract.cache.plan import Plan
from clinit.extract.cache.summary import NamedHead
from clinit.extract.dataset.manifest import Manifest
from clinit.extract.work.options import Settings
from clinit.extract.work.recorded import reload
from clinit.extract.work.split_run import SplitRun, compiled_alike
from clinit.files.lock import claim_folder
from clinit.files.paths import is_file
from clinit.headtrain.protocol.experiment import RunData
from clinit.headtrain.protocol.learner import Experiment
from clinit.headtrain.protocol.stream.source import Source, head_digest, read_source
from clinit.headtrain.protocol.study.parts import Top
from clinit.headtrain.protocol.study.study import Study
from clinit.headtrain.top.activations import (
    ActivationRows,
    ImageRows,
    PoolActivations,
    StoredActivations,
    Trunk,
    whole_images,
)
from clinit.headtrain.top.images import Storage, TopImages
from clinit.headtrain.top.network import check_cut, cut_network
from clinit.machine import free_memory
from clinit.observer import Noted, Observer, Progressed, ignore
from clinit.words import size_text

SHARD_BYTES = 2**27
"""Size of a shard: a killed run loses at most one shard."""
MEMORY_SHARE = 0.4
"""Share of the free memory that stored activations may take; larger parts stay in their files."""


@dataclass(frozen=True, slots=True, eq=False)
class PoolPart:
    """Rows of one split of a feature cache that runs read."""

    name: str
    """Name for messages, such as `base train`."""
    split: read.CacheSplit
    root: Path
    """The folder of its images."""
    rows: Int[np.ndarray, " rows"]
    """Indices among the valid rows of the split; sorted, each once."""
    features: Float[np.ndarray, "valid dim"]
    """Features of all valid rows, as stored in the split."""

    def valid(self) -> pl.DataFrame:
        """Return the valid rows of the manifest."""
        return self.split.manifest.table.filter(pl.Series(self.split.valid))

    def manifest(self) -> Manifest:
        """Return the manifest of these rows."""
        return replace(self.split.manifest, table=self.valid()[self.rows])


@dataclass(frozen=True, slots=True, eq=False)
class TrunkCache:
    """Stores activations of one trunk."""

    storage: Storage
    trunk: Trunk
    batch_size: int = 64
    """Images per forward pass of the trunk."""

    def plan(self, part: PoolPart) -> Plan:
        """Return the plan of the stored activations of a part."""
        shape, manifest = self.trunk.shape, part.manifest()
        row_bytes = 2 * math.prod(shape)
        batches = max(1, SHARD_BYTES // (row_bytes * self.batch_size))
        fingerprint = part.split.fingerprint.of_activations(
            manifest.digest, cut=self.trunk.cut.blocks[0], dtype="float16"
        )
        return Plan(
            dataset=manifest.dataset,
            split=manifest.split,
            num_rows=len(manifest.table),
            dim=math.prod(shape),
            shape=shape,
            dtype="float16",
            shard_rows=batches * self.batch_size,
            batch_size=self.batch_size,
            fingerprint=fingerprint,
            device=self.trunk.config.device.split(":")[0],
        )

    def path(self, plan: Plan) -> Path:
        """Return the folder of a part."""
        name = re.sub(r"[^\w.-]", "-", plan.dataset)  # the manifest's text must not become a path
        identifier = replace(plan, compiled=False).identifier  # equal for compiled and other runs
        return self.storage.folder / f"{name}-{plan.split}-{identifier[:16]}"

    def bytes(self, part: PoolPart) -> int:
        """Return the size of a part in float16."""
        return 2 * len(part.rows) * math.prod(self.trunk.shape)

    def chosen(self, parts: Sequence[PoolPart]) -> list[bool]:
        """Return which parts are stored: in order, each part that still fits into the budget."""
        left, chosen = self.storage.budget, []
        for part in parts:
            size = self.bytes(part)
            chosen.append(0 < size <= left)
            left -= size if chosen[-1] else 0
        return chosen

    def store(self, part: PoolPart, observe: Observer) -> ActivationRows:
        """Compute the missing shards of a part, and open it.

        A complete part is only read, so that it may be on a read-only disk, and any number of runs
        can open it at once.

        Raises:
            ClinitError: If an image has become unreadable or the storage fails.
        """

        def busy() -> None:
            observe(Noted(f"Another process computes the activations of {part.name}: waiting"))

        plan = self.plan(part)
        folder = self.path(plan)
        with suppress(CacheError):  # not begun, not finished, or damaged
            return self._open(part, folder)
        self.from_images(part)  # only to check that the images give the stored features
        with claim_folder(folder, on_busy=busy), whole_images():
            pixels, workers = self.storage.max_pixels, self.storage.workers
            run = SplitRun(
                plan=plan,
                manifest=part.manifest(),
                root=part.root,
                folder=folder,
                backbone=self.trunk,
                transform=self.trunk.transform,
                settings=Settings(workers=workers, strict=True, max_pixels=pixels),
                named=NamedHead(),
                observer=lambda event: observe(
                    replace(event, what=f"images of {part.name}", unit="")
                    if isinstance(event, Progressed)
                    else event
                ),
            )
            # A part that was begun continues as it was begun, compiled or not.
            (run,) = compiled_alike([run])
            run.run()
        return self._open(part, folder)

    def _open(self, part: PoolPart, folder: Path) -> ActivationRows:
        split = read.open_split(folder)
        if invalid := split.num_rows - split.num_valid:
            raise CacheError(
                f"{invalid:,} images of {part.root} give activations that are not finite",
                remedy="Check the weights of the backbone.",
            )
        position = np.full(part.split.num_valid, -1, dtype=np.int64)
        position[part.rows] = np.arange(len(part.rows))
        fits = self.bytes(part) <= MEMORY_SHARE * free_memory()
        return StoredActivations(split, position, in_memory=fits)

    def from_images(self, part: PoolPart) -> ActivationRows:
        """Return the rows of a part, which are computed each time they are read.

        Raises:
            CacheError: If the images differ from the images of the features.
            ImageError: If an image has become unreadable.
        """
        rows = ImageRows(part.valid(), part.root, self.trunk, self.storage)
        check_images(part, rows, self.trunk.cut.top)
        return rows


SAMPLE_ROWS = 8
TOLERANCE = 0.1
"""Largest error, as a share of the length of a feature. Mixed precision costs about 0.01, a
different image about 1."""


@torch.no_grad()
def check_images(part: PoolPart, images: ActivationRows, top: Callable[[Tensor], Tensor]) -> None:
    """Check for some rows of a part that their images give the stored features.

    Args:
        part: The rows to choose from, and their features.
        images: Activations, computed from the images.
        top: Activations to features, on the device of the activations.

    Raises:
        CacheError: If a feature differs from the stored feature.
    """
    if not len(part.rows):
        return
    places = np.linspace(0, len(part.rows) - 1, min(SAMPLE_ROWS, len(part.rows)))
    chosen = part.rows[places.astype(np.int64)]
    with closing(images.stream([chosen])) as stream:
        found = top(next(stream).float()).float().cpu().numpy()
    stored = part.features[chosen].astype(np.float32)
    lengths = np.linalg.norm(stored, axis=1)
    error = np.linalg.norm(found - stored, axis=1) / np.maximum(lengths, lengths.mean())
    if not (error <= TOLERANCE).all():
        raise CacheError(
            f"the images of {part.name} give features that differ from those in the cache by"
            f" {np.nanmax(error):.0%} of their length",
            remedy="Give the folders of the extracted images with --base-root and --new-root,"
            " or extract the new images into a new cache.",
        )


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """One of the two data sets: its features, its cache and its images."""

    source: Source
    cache: read.Cache
    root: Path


@dataclass(frozen=True, eq=False, kw_only=True)
class ImageData(RunData):
    """The data of runs with top blocks."""

    images: TopImages
    """Paths of images, weights and activations."""
    sides: tuple[Side, Side]
    """The two data sets with their images."""

    @classmethod
    def open(
        cls, images: TopImages, given: Mapping[str, Head | Path | None] | None = None, **rest: Any
    ) -> ImageData:
        """Return the data with their images; `given` and `rest` as in `RunData.of`."""
        base = open_side(images.base, images.base_root, option="--base-root")
        new = open_side(images.new, images.new_root, option="--new-root")
        read.refuse_shared_images([base.cache, new.cache])
        return cls.of(base.source, new.source, given, images=images, sides=(base, new), **rest)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class TopInputs:
    """Everything that does not depend on how new rows start."""

    data: RunData
    experiment: Experiment
    network: nn.Module
    """The pretrained network; each run trains a copy."""
    train: PoolActivations
    val: PoolActivations
    parts: tuple[dict[str, Any], ...]
    """Name, rows, bytes of activations, and whether the activations are stored."""

    @property
    def device(self) -> torch.device:
        """The device that computes everything."""
        return self.train.device

    @property
    def top(self) -> Top:
        """The settings that define the trained part of the network."""
        top = self.experiment.study.top
        assert top is not None
        return top

    def digest(self, study: Study) -> str:
        """Return the SHA-256 of everything that a run depends on, except the machine."""
        content = {
            "settings": study.settings(),
            "probe": self.top.probe,
            "head": head_digest(self.experiment.head),
            "device": self.device.type,
            **{
                side: {k: v for k, v in source.description.items() if k != "path"}
                for side, source in (("base", self.data.base), ("new", self.data.new))
            },
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def prepare_runs(
    data: ImageData, studies: Sequence[Study], *, observer: Observer = ignore
) -> TopInputs:
    """Load the backbone, and compute and store the activations that runs of one stream read.

    Args:
        data: The two data sets with their images, and the pretrained head.
        studies: The runs, which differ at most in `study.PER_HEAD`.
        observer: Called with sizes before the computation, progress, and notes.

    Raises:
        ClinitError: If the sides do not fit together, the network cannot be cut, or the storage
            fails.
    """
    observer(Progressed("reading the weights", 0, 1))
    sides, images, study = data.sides, data.images, studies[0].resolved()
    (base, new), storage, loss = sides, images.storage, study.training.loss
    head = data.head_for(loss)
    recorded, device = base.cache.split("train"), study.training.device
    backbone, transform = reload(recorded, weights=images.weights, device=device)
    assert study.top is not None
    if backbone.config.output == "projected":
        raise ExperimentError(
            f"{base.source.path} contains projected features: blocks cannot be trained with these",
            remedy="Extract the caches with `--features pooled`.",
        )
    if backbone.head is None:
        backbone.network.reset_classifier(head.num_classes)  # type: ignore[operator]
    experiment = Experiment.of(head, base.source, new.source, [study])
    halves = cut_network(backbone.network, study.top.top_blocks)
    noise = torch.rand((2, 3, *transform.crop), generator=torch.Generator().manual_seed(0))
    with backbone.config.arithmetic():
        check_cut(halves, backbone.network, noise.to(backbone.config.device))
    cache = TrunkCache(storage, Trunk(backbone.config, halves, transform))
    random_only = all(each.start.init == "random" for each in studies)
    wanted = [*_parts(sides, experiment, random_only=random_only)]
    keep = cache.chosen(wanted)
    for kept, where in (
        (True, f"Activations in {storage.folder}, float16"),
        (False, "Activations computed from the images each time"),
    ):
        chosen = [part for part, stored in zip(wanted, keep, strict=True) if stored == kept]
        sizes = [f"{part.name} {size_text(cache.bytes(part))}" for part in chosen]
        if sizes:
            observer(Noted(f"{where}: {', '.join(sizes)}"))
    opened: dict[str, ActivationRows] = {}
    facts = []
    for part, stored in zip(wanted, keep, strict=True):
        opened[part.name] = cache.store(part, observer) if stored else cache.from_images(part)
        size = {"rows": len(part.rows), "bytes": cache.bytes(part)}
        facts.append({"part": part.name, **size, "stored": stored})
    pools: dict[str, PoolActivations] = {}
    for split in ("train", "val"):
        rows = [rows for name, rows in sorted(opened.items()) if name.endswith(split)]
        pools[split] = PoolActivations(rows, torch.device(backbone.config.device))
    inputs = TopInputs(
        data=data, experiment=experiment, network=backbone.network, **pools, parts=tuple(facts)
    )
    for text in data.notes(replace(experiment, studies=tuple(studies))):
        observer(Noted(text))
    return inputs


def _parts(
    sides: tuple[Side, Side], experiment: Experiment, *, random_only: bool
) -> Iterator[PoolPart]:
    """Yield the rows that the runs read; the most frequently read rows are first."""
    scenario, plan, study, train = experiment.scenario, experiment.plan, experiment.study, []
    for task in scenario.learnt:
        trained = plan.rows(task)
        train.append(trained.rows)
        if not random_only:
            train.append(plan.start_rows(task, trained).rows)
    if study.stream.method == "ewc" and study.top is not None:
        train.append(plan.base_sample(study.top.ewc.samples))
    tested = scenario.val.rows_between(0, scenario.num_classes)
    used = {"val": tested, "train": np.concatenate(train)}
    for split, rows in used.items():
        start, rows = 0, np.unique(rows)
        for name, side in zip(("base", "new"), sides, strict=True):
            stored = getattr(side.source, split).features
            local = rows[(rows >= start) & (rows < start + len(stored))] - start
            start += len(stored)
            if split in side.cache.splits:
                opened = side.cache.splits[split]
                yield PoolPart(f"{name} {split}", opened, side.root, local, stored)


def open_side(cache: Path, root: Path | None, *, option: str) -> Side:
    """Open a feature cache and find its images.

    Args:
        cache: The feature cache.
        root: The folder of its images; default: their path at extraction.
        option: The option for `root`, for the message.

    Raises:
        CacheError: If the cache cannot be read.
        ExperimentError: If the images are missing.
    """
    opened = read.open_cache(cache)
    train = opened.split("train")
    stored = train.summary.run.root
    if root is None and stored is None:
        raise ExperimentError(
            f"no images are known for the features in {cache}: they were imported",
            remedy="Extract the images with `clinit extract`; imported features are"
            " for `clinit train-head` only.",
        )
    found = root if root is not None else Path(stored or "")
    # The first valid image: an invalid image may have been missing from the start.
    first = train.manifest.file_of(int(train.valid.argmax()))
    if not is_file(found / first):
        before = f" (at extraction: {stored})" if root is not None and stored is not None else ""
        raise ExperimentError(
            f"the images of {cache} are not in {found}: there is no {found / first}",
            remedy=f"Give the folder that contains {first} with {option}{before}.",
        )
    return Side(read_source(cache), opened, found)
