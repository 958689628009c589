"""Run a frozen backbone over the images of a data set, once, into a feature cache."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import timm
import torch

from clinit.errors import CacheError, ClusterError, DeviceError, ManifestError
from clinit.extract.cache import plan
from clinit.extract.cache.fingerprint import Fingerprint
from clinit.extract.cache.summary import NamedHead
from clinit.extract.dataset.decode import decoder_version
from clinit.extract.dataset.known import SPLITS
from clinit.extract.dataset.manifest import Manifest
from clinit.extract.network import backbone as backbones
from clinit.extract.network.transform import Transform, View, make_transform
from clinit.extract.work.grow import grow, has_grown
from clinit.extract.work.options import ExtractOptions, NetworkOptions, Settings
from clinit.extract.work.recorded import named_head
from clinit.extract.work.split_run import SplitResult, SplitRun, compiled_alike
from clinit.files.lock import claim_file, make_folder
from clinit.files.paths import exists, is_folder
from clinit.machine import choose_device
from clinit.observer import Noted, Observer, Progressed, ignore
from clinit.ray_tasks import connected, run_tasks

BATCH_SIZES = {"cpu": 32, "cuda": 256}
"""Default images per forward pass, by kind of device. On a CPU, from `benchmarks/extract.py`: the
activations of larger batches do not fit into the processor's cache. A GPU needs large batches, as
it computes small ones faster than they can be launched; those that do not fit are halved."""


@dataclass(frozen=True, kw_only=True)
class ExtractConfig(Settings):
    """How features are extracted."""

    backbone: backbones.BackboneConfig

    @classmethod
    def of(cls, options: NetworkOptions, device: str | None = None) -> ExtractConfig:
        """Return the configuration on `device`; None means the device of the options."""
        backbone = backbones.BackboneConfig(
            name=options.backbone or "",
            weights=options.weights,
            model_args=backbones.parse_model_args(options.model_arg or ()),
            device=device or str(choose_device(options.device)),
            autocast=backbones.PRECISIONS[options.precision],
            output=options.output,
        )
        settings = {each.name: getattr(options, each.name) for each in fields(Settings)}
        return cls(backbone=backbone, **settings)


@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """A backbone, the transform of its images, and the fingerprint of its features."""

    backbone: backbones.Backbone
    transform: Transform
    fingerprint: Fingerprint

    @classmethod
    def of(
        cls, backbone: backbones.Backbone, transform: Transform, dtype: str, decoder: str
    ) -> Network:
        """Return the network with the fingerprint of its features, stored as `dtype`."""
        fingerprint = Fingerprint.of_network(
            backbone=backbone.config.name,
            weights=backbone.weights_sha256,
            model_args=repr(sorted(backbone.config.model_args.items())),
            timm=timm.__version__,
            transform=transform.describe(),
            decoder=decoder_version(decoder),
            dtype=dtype,
            autocast=backbone.config.autocast,
            output=backbone.config.output,
        )
        return cls(backbone, transform, fingerprint)


def load_network(config: ExtractConfig) -> Network:
    """Load the backbone of `config` and check its features.

    Raises:
        ClinitError: If the backbone cannot be used.
    """
    needs = [("--decoder cuda", config.decoder), ("--precision tf32", config.backbone.autocast)]
    for option, value in needs:
        if option.endswith(value) and not config.backbone.device.startswith("cuda"):
            raise DeviceError(
                f"{option} needs a CUDA device, but the network computes on"
                f" {config.backbone.device}",
                remedy="Leave it out, or give `--device cuda` on a machine with a GPU.",
            )
    backbone = backbones.load_backbone(config.backbone, named=config.head_classes is not None)
    own, size = backbone.data_config, config.input_size
    kind, mean, std = config.transform, config.mean, config.std
    transform = make_transform(kind, own, input_size=size, mean=mean, std=std)
    generator = torch.Generator().manual_seed(0)
    shape = (2, 3, *transform.crop)
    noise = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    backbones.check_features(backbone, transform.normalise(noise.to(config.backbone.device)))
    return Network.of(backbone, transform, config.dtype, config.decoder)


def extract(
    manifests: Mapping[str, Manifest],
    root: Path,
    out: Path,
    config: ExtractConfig,
    part: plan.Part = plan.WHOLE,
    *,
    network: Network | None = None,
    observer: Observer = ignore,
    on_image: Callable[[str, bytes], object] | None = None,
) -> Iterator[SplitResult]:
    """Extract the splits of a data set into the cache `out`; yield one result per split and view.

    An interrupted extraction is resumed: undamaged shards are kept, and the cache has the same bits
    as after an uninterrupted extraction on the same device.

    Args:
        manifests: One manifest per split (`train`, `val`); at least one.
        root: The folder that the paths in the manifests start from.
        out: The folder of the cache.
        config: How features are extracted.
        part: The part of every split's shards to compute. Other processes, on any hosts that share
            the folder, may compute other parts; the process that finds all shards of a split writes
            its summary.
        network: The network that `config` describes, if it is loaded already.
        observer: Called after every batch, and with notes.
        on_image: Called with path and content of each image that is read, by several threads.

    Raises:
        ClinitError: If the backbone cannot be used, the cache belongs to another extraction,
            another process writes to it, or the storage fails.
    """
    if not is_folder(root):
        raise ManifestError(f"no folder at {root}", remedy="Give the folder of the images.")
    if out.resolve() == root.resolve():
        why = f"{out} is the folder of the images, which is only read"
        raise CacheError(why, remedy="Give another folder for the features.")
    for split, manifest in manifests.items():
        if manifest.table.is_empty():
            raise ManifestError(
                f"the manifest of {split} names no image",
                remedy="Build it again with `clinit manifest build`.",
            )
    if config.views and "train" not in manifests:
        raise ManifestError(
            f"--views needs training images, but only {', '.join(manifests)} is extracted",
            remedy="Leave out `--views`, or extract the split train too.",
        )
    loaded, named = network or load_network(config), NamedHead()
    if loaded.backbone.note:
        observer(Noted(loaded.backbone.note))
    folders = (out / split for split in SPLITS)
    plan.check_backbone(folders, loaded.fingerprint, loaded.backbone.dim)
    if (head := loaded.backbone.head) is not None:
        class_names = next(iter(manifests.values())).class_names
        head = replace(head, fingerprint=loaded.fingerprint.backbone_identifier)
        named = named_head(head, class_names, config.head_classes, out)

    def run_of(manifest: Manifest, folder: Path, view: View | None = None) -> SplitRun:
        return SplitRun(
            plan=_plan(loaded, config, manifest, folder, view),
            manifest=manifest,
            root=root,
            folder=folder,
            backbone=loaded.backbone,
            transform=loaded.transform,
            view=view,
            settings=config,
            part=part,
            named=named,
            observer=observer,
            on_image=on_image,
        )

    with claim_file(out / "plan", on_busy=lambda: None):  # parts may begin at the same time
        runs = [run_of(manifest, out / split) for split, manifest in manifests.items()]
        for number in range(config.views):
            crop, interpolation = loaded.transform.crop, loaded.transform.interpolation
            view = View(crop, interpolation, config.view_seed, number)
            runs.append(run_of(manifests["train"], out / plan.VIEWS_FOLDER / str(number), view))
        runs = compiled_alike(runs)
        make_folder(runs[0].folder)
        for run in runs:
            started = run is runs[0] or exists(run.folder / plan.PLAN_FILE)
            if started and not has_grown(run.plan, run.folder):
                run.plan.settle(run.folder)  # refuse a wrong plan now, not after hours
    for run in runs:
        yield grow(run) if has_grown(run.plan, run.folder) else run.run()


def extract_as_asked(
    options: ExtractOptions, manifests: Mapping[str, Manifest], observer: Observer
) -> Iterator[SplitResult]:
    """Extract on this machine or on a cluster; see `extract`."""
    root, out = options.root, options.out
    if options.ray is not None:
        config = ExtractConfig.of(options, options.device)
        return extract_on_ray(manifests, root, out, config, options.ray, observer)
    part, config = plan.Part.parse(options.part or str(plan.WHOLE)), ExtractConfig.of(options)
    return extract(manifests, root, out, config, part, observer=observer)


def _plan(
    network: Network, config: ExtractConfig, manifest: Manifest, folder: Path, view: View | None
) -> plan.Plan:
    fingerprint = network.fingerprint.of_rows(manifest.digest)
    if view is not None:
        fingerprint = fingerprint.of_view(view.describe(), seed=view.seed, number=view.number)
    device = config.backbone.device.split(":")[0]
    batch_size = config.batch_size or BATCH_SIZES[device]
    if config.batch_size is None and exists(folder / plan.PLAN_FILE):
        batch_size = plan.Plan.read(folder).batch_size
    return plan.Plan(
        dataset=manifest.dataset,
        split=manifest.split,
        num_rows=len(manifest.table),
        dim=network.backbone.dim,
        dtype=config.dtype,
        shard_rows=config.shard_rows,
        batch_size=batch_size,
        fingerprint=fingerprint,
        device=device,
    )


def extract_on_ray(
    manifests: Mapping[str, Manifest],
    root: Path,
    out: Path,
    config: ExtractConfig,
    address: str,
    observer: Observer = ignore,
) -> Iterator[SplitResult]:
    """Extract on the Ray cluster at `address`, in one task per GPU or, without GPUs, per node.

    Arguments and errors are as in `extract`. `root` and `out` must have the same path on all nodes.
    The device `auto` is CUDA if the cluster has a GPU. A task takes `config.workers` processors;
    None takes all of a node, or an equal share per GPU. `observer` is called every few seconds.

    Raises:
        ClusterError: If there is no cluster at `address`, or no node can run a task.
    """
    out.mkdir(parents=True, exist_ok=True)
    with connected(address) as ray:
        count, resources = _places(ray, config.backbone.device, config.workers)
        device, weights = "cuda" if "num_gpus" in resources else "cpu", config.backbone.weights
        backbone = replace(config.backbone, device=device, weights=weights and weights.absolute())
        config = replace(config, backbone=backbone, workers=resources["num_cpus"])
        rows = {split: len(each.table) for split, each in manifests.items()}
        total = sum(rows.values()) + config.views * rows.get("train", 0)

        def look() -> None:
            done = min(sum(1 for _ in out.rglob("shard-*.h5")) * config.shard_rows, total)
            observer(Progressed("Reading all splits", done, total, "images"))

        shared = (ray.put(dict(manifests)), root.absolute(), out.absolute(), config)
        calls = [(*shared, plan.Part(number + 1, count)) for number in range(count)]
        parts = list(run_tasks(ray, _extract_on_node, calls, on_look=look, **resources))
    for found in zip(*parts, strict=True):
        yield replace(
            max(found, key=lambda each: each.shards_there),
            part=plan.WHOLE,
            computed_rows=sum(each.computed_rows for each in found),
            replaced_shards=tuple(why for each in found for why in each.replaced_shards),
        )


def _places(ray: Any, device: str, threads: int | None) -> tuple[int, dict[str, int]]:
    """Return how many tasks fit on a cluster, and the resources of each task."""
    nodes = [each["Resources"] for each in ray.nodes() if each["Alive"]]
    on_gpu = device != "cpu" and (device != "auto" or any(each.get("GPU") for each in nodes))
    kind = "GPU" if on_gpu else "CPU"
    chosen = [each for each in nodes if each.get(kind, 0) >= 1]
    if not chosen:
        raise ClusterError(
            f"no node of the cluster has a {'GPU' if on_gpu else 'processor'}",
            remedy="Choose another --device, or add nodes: `ray start --address=…`.",
        )
    most = min(int(each.get("CPU", 1) // (each["GPU"] if on_gpu else 1)) for each in chosen)
    cpus = max(1, min(threads or most, most))
    count = sum(int(each[kind] // (1 if on_gpu else cpus)) for each in chosen)
    return count, {"num_cpus": cpus, "num_gpus": 1} if on_gpu else {"num_cpus": cpus}


def _extract_on_node(
    manifests: Mapping[str, Manifest], root: Path, out: Path, config: ExtractConfig, part: plan.Part
) -> list[SplitResult]:
    for folder in (root, out):
        if not is_folder(folder):
            raise ClusterError(
                f"{folder} does not exist on {socket.gethostname()}",
                remedy="Put images and cache on storage that all nodes mount at the same place.",
            )
    return list(extract(manifests, root, out, config, part))
