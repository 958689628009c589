"""Shared inputs of the top-block runs of one call: the stream, the images, their activations."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from clinit.errors import ExperimentError
from clinit.extract.cache.head import Head
from clinit.extract.cache.read import Cache, open_cache
from clinit.extract.work.recorded import reload
from clinit.files.paths import is_file
from clinit.headtrain.protocol.experiment import RunData
from clinit.headtrain.protocol.learner import Experiment
from clinit.headtrain.protocol.stream.source import Source, head_digest, read_source
from clinit.headtrain.protocol.study.methods import Top
from clinit.headtrain.protocol.study.study import Study
from clinit.headtrain.top.activations import ActivationRows, PoolActivations, Trunk
from clinit.headtrain.top.images import Images
from clinit.headtrain.top.network import check_cut, cut_network
from clinit.headtrain.top.trunk_cache import Part, TrunkCache
from clinit.observer import Noted, Observer, Progressed, ignore


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """One of the two data sets: its features, its cache and its images."""

    source: Source
    cache: Cache
    root: Path


@dataclass(frozen=True, eq=False, kw_only=True)
class ImageData(RunData):
    """The data of runs with top blocks."""

    images: Images
    """Paths of images, weights and activations."""
    sides: tuple[Side, Side]
    """The two data sets with their images."""

    @classmethod
    def open(
        cls,
        images: Images,
        given: Mapping[str, Head | Path | None] | None = None,
        *,
        option: str = "--{}-root",
        **rest: Any,
    ) -> ImageData:
        """Return the data with their images; `given` and `rest` as in `RunData.of`."""
        sides = open_sides(images, option)
        base, new = (side.source for side in sides)
        return cls.of(base, new, given, images=images, sides=sides, **rest)


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
    wanted = _parts(sides, experiment, random_only=random_only)
    keep = cache.chosen(wanted)
    for kept, where in (
        (True, f"Activations in {storage.folder}, float16"),
        (False, "Activations computed from the images each time"),
    ):
        chosen = [part for part, stored in zip(wanted, keep, strict=True) if stored == kept]
        sizes = [f"{part.name} {cache.bytes(part) / 1e9:.2f} GB" for part in chosen]
        if sizes:
            observer(Noted(f"{where}: {', '.join(sizes)}"))
    opened: dict[str, ActivationRows] = {}
    facts = []
    for part, stored in zip(wanted, keep, strict=True):
        opened[part.name] = cache.store(part, observer) if stored else cache.from_images(part)
        size = {"rows": len(part.rows), "bytes": cache.bytes(part)}
        facts.append({"part": part.name, **size, "stored": stored})
    pools = {
        split: PoolActivations(
            [rows for name, rows in sorted(opened.items()) if name.endswith(split)],
            torch.device(backbone.config.device),
        )
        for split in ("train", "val")
    }
    inputs = TopInputs(
        data=data,
        experiment=experiment,
        network=backbone.network,
        **pools,
        parts=tuple(facts),
    )
    for text in data.notes(replace(experiment, studies=tuple(studies))):
        observer(Noted(text))
    return inputs


def _parts(sides: tuple[Side, Side], experiment: Experiment, *, random_only: bool) -> list[Part]:
    """Return the rows that the runs read; the most frequently read rows are first."""
    scenario, plan, study, train = experiment.scenario, experiment.plan, experiment.study, []
    for task in scenario.learnt:
        trained = plan.rows(task)
        train.append(trained.rows)
        if not random_only:
            train.append(plan.start_rows(task, trained).rows)
    if study.stream.method == "ewc" and study.top is not None:
        train.append(plan.base_sample(study.top.ewc.samples))
    used = {
        "val": scenario.val.rows_between(0, scenario.num_classes),
        "train": np.concatenate(train),
    }
    found = []
    for split, rows in used.items():
        start, rows = 0, np.unique(rows)
        for name, side in zip(("base", "new"), sides, strict=True):
            stored = getattr(side.source, split).features
            local = rows[(rows >= start) & (rows < start + len(stored))] - start
            start += len(stored)
            if split in side.cache.splits:
                found.append(
                    Part(f"{name} {split}", side.cache.splits[split], side.root, local, stored)
                )
    return found


def open_sides(images: Images, option: str = "--{}-root") -> tuple[Side, Side]:
    """Open the two data sets; `option` gives the folders of images, for messages."""
    base = open_side(images.base, images.base_root, option=option.format("base"))
    return base, open_side(images.new, images.new_root, option=option.format("new"))


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
    opened = open_cache(cache)
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
    first = found / train.manifest.file_of(int(train.valid.argmax()))
    if not is_file(first):
        raise ExperimentError(
            f"the images of {cache} are not in {found}: there is no {first}",
            remedy=f"Give their folder with {option}.",
        )
    return Side(read_source(cache), opened, found)
