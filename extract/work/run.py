"""Run a frozen backbone over the images of a data set, once, into a feature cache."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import timm
import torch
from jaxtyping import Float
from torch import Tensor

from clinit.errors import CacheError, ClusterError, ManifestError
from clinit.extract.cache.fingerprint import Fingerprint
from clinit.extract.cache.folder import VIEWS_FOLDER
from clinit.extract.cache.plan import FILE as PLAN_FILE
from clinit.extract.cache.plan import WHOLE, Part, Plan, read_plan, settle_plan
from clinit.extract.dataset.decode import decoder_version
from clinit.extract.dataset.known import MAX_PIXELS, SPLITS
from clinit.extract.dataset.manifest import Manifest
from clinit.extract.head_names import find_head_names
from clinit.extract.network.backbone import (
    Backbone,
    BackboneConfig,
    check_penultimate,
    load_backbone,
)
from clinit.extract.network.transform import Transform, make_transform
from clinit.extract.views import View
from clinit.extract.work.shard_work import Progress, ShardWork
from clinit.extract.work.split_run import SplitResult, SplitRun
from clinit.files.lock import make_folder
from clinit.machine import cpu_count
from clinit.ray_tasks import connected, run_tasks
from clinit.stopwatch import Stopwatch

BATCH_SIZES = {"cpu": 32, "cuda": 64}
"""Images per forward pass where nobody says, by kind of device: on a CPU, activations of more leave
the cache. Measured by `benchmarks/extract.py`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractConfig:
    """How features are extracted."""

    backbone: BackboneConfig
    transform: str = "timm"
    """`timm` (the model's own preprocessing) or `paper` (256 x 256, centre crop 224)."""
    input_size: int | None = None
    """Height and width of the network's input in pixels; the model's own when None."""
    mean: tuple[float, ...] | None = None
    """Pixel mean in [0, 1], one number or one per channel; the model's own when None."""
    std: tuple[float, ...] | None = None
    """Standard deviation of a pixel, one number or one per channel; the model's own when None."""
    batch_size: int | None = None
    """Images per forward pass; None for what the cache was begun with, else `BATCH_SIZES`."""
    workers: int = field(default_factory=cpu_count)
    """Threads that read and decode."""
    dtype: str = "float16"
    """How features are stored; float16 keeps three digits and halves the file."""
    shard_rows: int = 4096
    """Rows per shard: what a killed run loses at most."""
    strict: bool = False
    """Stop at the first unreadable image instead of marking its row invalid."""
    max_pixels: int = MAX_PIXELS
    """Largest image that is decoded, in pixels; a larger one is a bad image."""
    retry_invalid: bool = False
    """Read the images of invalid rows again."""
    head_classes: str | None = None
    """Names of the classifier's rows: a file, `dataset`, or None (see `name_rows`)."""
    views: int = 0
    """Random views of the training images, beside the plain features."""
    view_seed: int = 0
    """Seed of the views, in [0, 2^32)."""
    command: str | None = None
    """The command line, which `cache verify` prints where a shard is damaged."""

    def __post_init__(self) -> None:
        if self.views < 0:
            raise ValueError(f"views must be at least 0, got {self.views}")
        for name in ("batch_size", "workers", "shard_rows", "max_pixels"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be positive, got {value}")


def extract(
    manifests: Mapping[str, Manifest],
    root: Path,
    out: Path,
    config: ExtractConfig,
    part: Part = WHOLE,
    *,
    network: Network | None = None,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> Iterator[SplitResult]:
    """Extract the splits of a data set into the cache `out`; yield one result per split and view.

    An interrupted extraction is resumed: the shards that verify are kept, and the result is
    bit-identical to an uninterrupted one on the same device.

    Args:
        manifests: One manifest per split (`train`, `val`); at least one.
        root: The folder that the paths in the manifests start from.
        out: The folder of the cache.
        config: How features are extracted.
        part: The shards of every split that are computed. Processes that compute different parts,
            on any hosts that share the folder, need not know of each other: whoever finds all
            shards of a split there writes its summary.
        network: The network that `config` names and its transform, where they are loaded already.
        on_progress: Called after every batch.

    Raises:
        ClinitError: If the backbone does not serve, the cache belongs to another extraction or
            is being extracted by another process, or the storage fails.
    """
    if not root.is_dir():
        raise ManifestError(f"no folder at {root}", remedy="Give the folder of the images.")
    for split, manifest in manifests.items():
        if manifest.table.is_empty():
            raise ManifestError(
                f"the manifest of {split} names no image",
                remedy="Build it again with `clinit manifest build`.",
            )
    if config.views and "train" not in manifests:
        raise ManifestError(
            f"views are of the training images, but only {', '.join(manifests)} is extracted",
            remedy="Leave out `--views`, or extract the split train too.",
        )
    network = network or load_network(config)
    backbone, transform, fingerprint = network.backbone, network.transform, network.fingerprint
    refuse_other_backbone(out, fingerprint)
    class_names = next(iter(manifests.values())).class_names
    names = find_head_names(backbone.head, class_names, config.head_classes, out)
    head = replace(
        backbone.head, class_names=names.names, fingerprint=fingerprint.backbone_identifier
    )
    targets = _targets(manifests, out, transform, backbone.dim, fingerprint, config)
    for target in targets:
        if (target.folder / PLAN_FILE).exists():
            settle_plan(target.plan, target.folder)  # refused now, not after hours
    for target in targets:
        make_folder(target.folder, within=out)
        work = ShardWork(
            plan=target.plan,
            manifest=manifests[target.plan.split],
            root=root,
            folder=target.folder,
            backbone=backbone,
            transform=transform,
            view=target.view,
            workers=config.workers,
            strict=config.strict,
            max_pixels=config.max_pixels,
        )
        yield SplitRun(
            work=work,
            part=part,
            head=head,
            head_names=names,
            names_given=config.head_classes is not None,
            retry_invalid=config.retry_invalid,
            command=config.command,
            on_progress=on_progress,
        ).run()


def extract_on_ray(
    manifests: Mapping[str, Manifest],
    root: Path,
    out: Path,
    config: ExtractConfig,
    address: str,
    *,
    threads: int | None = None,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> Iterator[SplitResult]:
    """Extract on a Ray cluster: one task per part, and a part for each GPU or each node.

    Arguments and errors are those of `extract`, except:

    Args:
        manifests: As there.
        root: The folder of the images, the same on all nodes.
        out: The folder of the cache, shared by all nodes.
        config: A device `auto` is CUDA if the cluster has a GPU.
        address: Address of the cluster.
        threads: Processors and decoding threads of a task; None for its share of a node.
        on_progress: Called every few seconds.

    Raises:
        ClusterError: If there is no cluster, or it has no place for a task.
    """
    out.mkdir(parents=True, exist_ok=True)
    with connected(address) as ray:
        count, resources = _places(ray, config.backbone.device, threads)
        weights = config.backbone.weights
        backbone = replace(
            config.backbone,
            device="cuda" if "num_gpus" in resources else "cpu",
            weights=weights and weights.absolute(),
        )
        config = replace(config, backbone=backbone, workers=int(resources["num_cpus"]))
        stored, watch = ray.put(dict(manifests)), Stopwatch()
        total = sum(
            len(m.table) * (1 + config.views * (s == "train")) for s, m in manifests.items()
        )

        def look() -> None:
            found = sum(1 for _ in out.rglob("shard-*.h5"))
            done = min(found * config.shard_rows, total)
            on_progress(Progress("all splits", done, total, done / watch.total, {}))

        calls = [
            (stored, root.absolute(), out.absolute(), config, Part(number + 1, count))
            for number in range(count)
        ]
        parts = list(run_tasks(ray, _extract_on_node, calls, on_look=look, **resources))
    for found in zip(*parts, strict=True):
        retried = [each.retried_rows for each in found if each.retried_rows is not None]
        yield replace(
            max(found, key=lambda each: each.shards_there),
            part=WHOLE,
            computed_rows=sum(each.computed_rows for each in found),
            replaced_shards=tuple(why for each in found for why in each.replaced_shards),
            retried_rows=sum(retried) if retried else None,
        )


def _places(ray: Any, device: str, threads: int | None) -> tuple[int, dict[str, Any]]:
    """Return how many tasks a cluster has room for, and what each of them takes."""
    nodes = [each["Resources"] for each in ray.nodes() if each["Alive"]]
    with_gpu = [each for each in nodes if each.get("GPU")]
    on_gpu = bool(with_gpu) if device == "auto" else device.startswith("cuda")
    chosen = with_gpu if on_gpu else [each for each in nodes if each.get("CPU", 0) >= 1]
    if not chosen:
        raise ClusterError(
            f"the cluster has no {'GPU' if on_gpu else 'processor'} to work on",
            remedy="Choose another --device, or add nodes: `ray start --address=…`.",
        )
    most = min(int(each.get("CPU", 1) // (each["GPU"] if on_gpu else 1)) for each in chosen)
    cpus = max(1, min(threads or most, most))
    if on_gpu:
        return sum(int(each["GPU"]) for each in chosen), {"num_cpus": cpus, "num_gpus": 1}
    return sum(int(each["CPU"] // cpus) for each in chosen), {"num_cpus": cpus}


def _extract_on_node(
    manifests: Mapping[str, Manifest], root: Path, out: Path, config: ExtractConfig, part: Part
) -> list[SplitResult]:
    """Extract a part on a node of a cluster."""
    for folder in (root, out):
        if not folder.is_dir():
            raise ClusterError(
                f"{folder} is not there on {socket.gethostname()}",
                remedy="Put the images and the cache on storage that all nodes mount at the same"
                " place.",
            )
    return list(extract(manifests, root, out, config, part))


@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """A backbone, what its images go through, and what its features depend on."""

    backbone: Backbone
    transform: Transform
    fingerprint: Fingerprint


def load_network(config: ExtractConfig) -> Network:
    """Load the backbone of `config` and check that its classifier reads penultimate features.

    Raises:
        ClinitError: If the backbone does not serve.
    """
    backbone = load_backbone(config.backbone)
    transform = make_transform(
        config.transform,
        backbone.data_config,
        input_size=config.input_size,
        mean=config.mean,
        std=config.std,
    )
    check_penultimate(backbone, _probe(transform, config.backbone.device))
    fingerprint = Fingerprint.of_network(
        backbone=config.backbone.name,
        weights=backbone.weights_sha256,
        model_args=config.backbone.model_args,
        timm=timm.__version__,
        transform=transform.describe(),
        decoder=decoder_version(),
        dtype=config.dtype,
        autocast=config.backbone.autocast,
    )
    return Network(backbone, transform, fingerprint)


@dataclass(frozen=True, slots=True)
class _Target:
    """A split, or a view of one."""

    folder: Path
    plan: Plan
    view: View | None


def _targets(
    manifests: Mapping[str, Manifest],
    out: Path,
    transform: Transform,
    dim: int,
    fingerprint: Fingerprint,
    config: ExtractConfig,
) -> list[_Target]:
    """Return all that is to be extracted: plain images first, then the views of train."""

    def target(folder: Path, split: str, view: View | None) -> _Target:
        manifest = manifests[split]
        found = fingerprint.of_rows(manifest.digest)
        if view is not None:
            found = found.of_view(view.describe(), seed=view.seed, number=view.number)
        device = config.backbone.device.split(":")[0]
        plan = Plan(
            dataset=manifest.dataset,
            split=split,
            num_rows=len(manifest.table),
            dim=dim,
            dtype=config.dtype,
            shard_rows=config.shard_rows,
            batch_size=config.batch_size or _begun_with(folder) or BATCH_SIZES[device],
            fingerprint=found,
            device=device,
        )
        return _Target(folder, plan, view)

    views = [View.of(transform, seed=config.view_seed, number=n) for n in range(config.views)]
    return [
        *(target(out / split, split, None) for split in manifests),
        *(target(out / VIEWS_FOLDER / str(view.number), "train", view) for view in views),
    ]


def _begun_with(folder: Path) -> int | None:
    """Return the batch size of the extraction that began a split; None where there is none."""
    return read_plan(folder).batch_size if (folder / PLAN_FILE).exists() else None


def _probe(transform: Transform, device: str) -> Float[Tensor, "2 3 height width"]:
    """Return two normalised images of seeded noise."""
    generator = torch.Generator().manual_seed(0)
    shape = (2, 3, *transform.crop)
    noise = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    return transform.normalise(noise.to(device))


def refuse_other_backbone(out: Path, fingerprint: Fingerprint) -> None:
    """Compare with every split that is there: one cache holds features of one backbone.

    Raises:
        CacheError: If `fingerprint` is not that of the splits in `out`.
    """
    for split in SPLITS:
        if not (out / split / PLAN_FILE).is_file():
            continue
        for each in read_plan(out / split).fingerprint.without_rows.differences(fingerprint):
            raise CacheError(
                f"{out / split} holds features with {each.name} = {each.one},"
                f" this command has {each.name} = {each.other}",
                remedy="Give the options it was begun with, or another folder with `--out`.",
            )
