"""What the top-block runs of one call share: the stream, the images and their activations."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

from clinit.errors import ExperimentError
from clinit.extract.cache.head import Head
from clinit.extract.cache.read import Cache, open_cache
from clinit.extract.network.backbone import Backbone
from clinit.extract.network.transform import Transform
from clinit.extract.work.recorded import reload
from clinit.extract.work.split_run import Progress
from clinit.headtrain.stream.base_head import head_digest
from clinit.headtrain.stream.scenario import Scenario, build_scenario
from clinit.headtrain.stream.source import Source, read_source
from clinit.headtrain.stream.task_plan import TaskPlan
from clinit.headtrain.study.methods import Top
from clinit.headtrain.study.study import Study
from clinit.headtrain.top.activations import ActivationRows, NoRows, PoolActivations, Trunk
from clinit.headtrain.top.images import Images, Storage
from clinit.headtrain.top.network import check_cut, cut_network
from clinit.headtrain.top.trunk_cache import Part, TrunkCache


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """One of the two data sets: its features, its cache and its images."""

    source: Source
    cache: Cache
    root: Path


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StoredPart:
    """Whether the activations of one split are stored, and what they cost."""

    name: str
    rows: int
    bytes: int
    stored: bool
    """Otherwise they are computed from the images each time, and whatever reads them is charged."""
    seconds: float | None = None
    """Time to compute what is stored, now or in an earlier call; None where it was not recorded,
    and where nothing is stored."""
    computed_here: bool = False
    """Whether it was computed for the first run, and not found in the cache."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class TopInputs:
    """Everything that does not depend on how new rows start."""

    base: Source
    new: Source
    initial_head: Head
    scenario: Scenario
    task_plan: TaskPlan
    study: Study
    """The settings that all runs share, resolved."""
    network: nn.Module
    """The pretrained network; each run trains a copy."""
    train: PoolActivations
    val: PoolActivations
    parts: tuple[StoredPart, ...]
    """As the first run finds them; see `reused`."""

    @property
    def device(self) -> torch.device:
        """The device that computes everything."""
        return self.train.device

    @property
    def top(self) -> Top:
        """The settings that say which part of the network learns."""
        assert self.study.top is not None
        return self.study.top

    def reused(self) -> TopInputs:
        """Return the inputs as every later run finds them: all that is stored was there before."""
        return replace(self, parts=tuple(replace(part, computed_here=False) for part in self.parts))

    def digest(self, study: Study) -> str:
        """Return the SHA-256 of everything that a run depends on, except the machine."""
        content = {
            "settings": study.settings(),
            "probe": self.top.probe,
            "head": head_digest(self.initial_head),
            "device": self.device.type,
            **{
                side: {k: v for k, v in source.description.items() if k != "path"}
                for side, source in (("base", self.base), ("new", self.new))
            },
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def prepare_inputs(
    base: Side,
    new: Side,
    head: Head,
    backbone: Backbone,
    transform: Transform,
    study: Study,
    storage: Storage,
    *,
    random_only: bool = False,
    on_parts: Callable[[tuple[StoredPart, ...]], None] = lambda parts: None,
    on_progress: Callable[[str, Progress], None] = lambda name, progress: None,
    on_busy: Callable[[str], None] = lambda name: None,
) -> TopInputs:
    """Build the stream, and compute and store the activations that its runs look at.

    Args:
        base: The data set of the classes of the head.
        new: The data set of the classes that arrive.
        head: The pretrained head.
        backbone: The network of the features; it is not changed.
        transform: The transform of its images.
        study: The study of one of the runs, which differ at most in `study.PER_HEAD`.
        storage: Where activations go.
        random_only: Whether all runs start from random rows, which look at no row.
        on_parts: Told what will be stored, before anything is computed.
        on_progress: Told the name of a part and how far it is.
        on_busy: Told the name of a part that another process computes, before waiting for it.

    Raises:
        ValueError: If settings exclude each other.
        ClinitError: If the sides do not fit together, the network cannot be cut, or the storage
            fails.
    """
    study = study.resolved()
    assert study.top is not None
    scenario = build_scenario(base.source, new.source, head, study.stream)
    task_plan = TaskPlan(scenario, study)
    halves = cut_network(backbone.network, study.top.top_blocks)
    trunk = Trunk(backbone.config, halves, transform)
    noise = torch.rand((2, 3, *transform.crop), generator=torch.Generator().manual_seed(0))
    with backbone.config.arithmetic():
        check_cut(halves, backbone.network, noise.to(backbone.config.device))
    cache = TrunkCache(
        storage.folder, trunk, storage.budget, storage.workers, max_pixels=storage.max_pixels
    )
    wanted = _parts(base, new, scenario, task_plan, study, random_only=random_only)
    keep = cache.chosen(wanted) if storage.budget else [False] * len(wanted)
    parts = tuple(
        StoredPart(name=part.name, rows=len(part.rows), bytes=cache.bytes(part), stored=stored)
        for part, stored in zip(wanted, keep, strict=True)
    )
    on_parts(parts)
    opened: dict[str, ActivationRows] = {}
    paid: list[StoredPart] = []
    for part, planned in zip(wanted, parts, strict=True):
        if not planned.stored:
            opened[part.name] = cache.from_images(part)
            paid.append(planned)
            continue
        found = cache.store(
            part,
            on_progress=partial(on_progress, part.name),
            on_busy=partial(on_busy, part.name),
        )
        opened[part.name] = found.rows
        paid.append(replace(planned, seconds=found.seconds, computed_here=found.computed_here))
    device = torch.device(backbone.config.device)
    return TopInputs(
        base=base.source,
        new=new.source,
        initial_head=head,
        scenario=scenario,
        task_plan=task_plan,
        study=study,
        network=backbone.network,
        train=PoolActivations([opened["base train"], opened["new train"]], device),
        val=PoolActivations(
            [opened.get("base val", NoRows()), opened.get("new val", NoRows())], device
        ),
        parts=tuple(paid),
    )


def _parts(
    base: Side,
    new: Side,
    scenario: Scenario,
    task_plan: TaskPlan,
    study: Study,
    *,
    random_only: bool,
) -> list[Part]:
    """Return the rows that the runs look at, those that they look at most often first."""
    train = []
    for task in scenario.learnt:
        trained = task_plan.rows(task)
        train.append(trained.rows)
        if not random_only:
            train.append(task_plan.start_rows(task, trained).rows)
    if study.stream.method == "ewc" and study.top is not None:
        train.append(task_plan.base_sample(study.top.ewc.samples))
    val = scenario.val.rows_between(0, scenario.num_classes)
    used = {"train": _used(train), "val": _used([val])}
    found = []
    for split in ("val", "train"):
        start = 0
        for name, side in (("base", base), ("new", new)):
            rows = used[split]
            stored = getattr(side.source, split).features
            local = rows[(rows >= start) & (rows < start + len(stored))] - start
            start += len(stored)
            if split in side.cache.splits:
                found.append(
                    Part(f"{name} {split}", side.cache.splits[split], side.root, local, stored)
                )
    return found


def _used(rows: Sequence[np.ndarray]) -> np.ndarray:
    return np.unique(np.concatenate(rows))


def open_sides(images: Images, option: str = "--{}-root") -> tuple[Side, Side]:
    """Open the two data sets; `option` gives the folders of images, for messages."""
    base = open_side(images.base, images.base_root, option=option.format("base"))
    return base, open_side(images.new, images.new_root, option=option.format("new"))


def open_side(cache: Path, root: Path | None, *, option: str) -> Side:
    """Open a feature cache and find its images.

    Args:
        cache: The feature cache.
        root: The folder of its images; default: where they were at extraction.
        option: The option that gives `root`, for the message.

    Raises:
        CacheError: If the cache cannot be read.
        ExperimentError: If its images are not there.
    """
    opened = open_cache(cache)
    train = opened.split("train")
    stored = train.summary.run.root
    if root is None and stored is None:
        raise ExperimentError(
            f"no images are known for the features in {cache}: they were imported",
            remedy="Extract the images with `clinit extract`; imported features are"
            " for `clinit train-head` alone.",
        )
    if root is None and not Path(stored or "").is_absolute():
        raise ExperimentError(
            f"the images of {cache} were in {stored}, seen from a folder that an earlier version of"
            " clinit has not recorded",
            remedy=f"Say where they are with {option}, or run the `clinit extract` command of this"
            " cache again: it records it and computes nothing.",
        )
    found = root if root is not None else Path(stored or "")
    # Not simply the first image: a bad image may have been missing from the start.
    first = found / train.manifest.file_of(int(train.valid.argmax()))
    if not first.is_file():
        raise ExperimentError(
            f"the images of {cache} are not in {found}: there is no {first}",
            remedy=f"Say where they are with {option}.",
        )
    return Side(read_source(cache), opened, found)


def reload_backbone(base: Side, weights: Path | None, device: str) -> tuple[Backbone, Transform]:
    """Return the network that computed the features, and the transform of its images.

    Raises:
        ClinitError: If the weights cannot be loaded, or differ from those of the extraction.
    """
    return reload(base.cache.split("train"), weights=weights, device=device)
