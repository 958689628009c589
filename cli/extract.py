"""`clinit extract`: images to a feature cache."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clinit.cli.choices import (
    READ_AS_VAL,
    Autocast,
    DeviceOption,
    Dtype,
    MaxPixels,
    ReadSplit,
    TransformKind,
)
from clinit.cli.completion import backbones, datasets
from clinit.cli.config_file import ConfigOption
from clinit.cli.console import note, warn
from clinit.cli.context import Context, command_line, overridden
from clinit.cli.extract_output import print_results, progress_bars
from clinit.cli.extract_workers import workers_on
from clinit.cli.interruption import keeps
from clinit.cli.network_options import (
    InputSize,
    ModelArgs,
    PixelDeviation,
    PixelMean,
    Transform,
    Weights,
    Workers,
    numbers,
)
from clinit.cli.no_val import no_val
from clinit.cli.progress import doing
from clinit.extract.dataset.decode import MAX_PIXELS
from clinit.files.paths import check_writable
from clinit.machine import cpu_count

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clinit.extract.dataset.manifest import Manifest


@keeps("Finished shards are kept: the same command goes on after them.")
def extract(
    context: Context,
    root: Annotated[
        Path,
        typer.Option(
            help="Folder of the images.",
            metavar="FOLDER",
            show_default=False,
            rich_help_panel="Data",
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            help="Folder of the feature cache.",
            metavar="FOLDER",
            show_default=False,
            rich_help_panel="Output",
        ),
    ],
    dataset: Annotated[
        str | None,
        typer.Option(
            help="imagenet1k, places365, digits; or `folder` for any tree of class folders,"
            " `webdataset` for tar shards, `huggingface` for Parquet files.",
            show_default=False,
            autocompletion=datasets,
            rich_help_panel="Data",
        ),
    ] = None,
    manifest: Annotated[
        Path | None,
        typer.Option(
            help="Manifest of `clinit manifest build`, instead of --dataset.",
            metavar="FILE",
            show_default=False,
            rich_help_panel="Data",
        ),
    ] = None,
    split: Annotated[
        ReadSplit | None,
        typer.Option(
            help="Extract only this split." + READ_AS_VAL,
            show_default="train and val, as far as they are there",
            rich_help_panel="Data",
        ),
    ] = None,
    backbone: Annotated[
        str,
        typer.Option(
            help="timm's name of the network, with its tag.",
            rich_help_panel="Network",
            autocompletion=backbones,
        ),
    ] = "convnextv2_femto.fcmae_ft_in1k",
    weights: Weights = None,
    model_arg: ModelArgs = None,
    head_classes: Annotated[
        str | None,
        typer.Option(
            help="What the rows of the pretrained classifier stand for: a file with one name"
            " per line, or `dataset` for the classes of this data set in order.",
            show_default="stored with the weights; ImageNet-1K for 1,000 rows",
            rich_help_panel="Network",
        ),
    ] = None,
    transform: Transform = TransformKind.timm,
    input_size: InputSize = None,
    mean: PixelMean = None,
    std: PixelDeviation = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=10**9,
            help="Images per forward pass.",
            show_default="as begun; else 32 on a CPU, 64 on a GPU",
            rich_help_panel="Computation",
        ),
    ] = None,
    workers: Workers = None,
    dtype: Annotated[
        Dtype, typer.Option(help="How features are stored.", rich_help_panel="Output")
    ] = Dtype.float16,
    device: DeviceOption = "auto",
    autocast: Annotated[
        Autocast,
        typer.Option(help="Lower precision of the forward pass.", rich_help_panel="Network"),
    ] = Autocast.off,
    limit_per_class: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Most images per class; the first ones are taken.",
            show_default="all",
            rich_help_panel="Data",
        ),
    ] = None,
    shard_rows: Annotated[
        int,
        typer.Option(
            min=1,
            max=10**9,
            help="Rows per shard: what a killed run loses at most.",
            rich_help_panel="Output",
        ),
    ] = 4096,
    views: Annotated[
        int,
        typer.Option(
            min=0,
            max=1000,
            help="Random crops of every training image, mirrored half of the time, stored beside"
            " the plain features for `clinit align`; those that are there are kept.",
            rich_help_panel="Views",
        ),
    ] = 0,
    view_seed: Annotated[
        int, typer.Option(min=0, max=2**32 - 1, help="Seed of the views.", rich_help_panel="Views")
    ] = 0,
    max_pixels: MaxPixels = MAX_PIXELS,
    retry_invalid: Annotated[
        bool,
        typer.Option(
            "--retry-invalid",
            help="Read the images of invalid rows again, once they can be read; their shards"
            " are computed anew.",
            rich_help_panel="Data",
        ),
    ] = False,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="Stop at an unreadable image and at counts that differ from the description.",
            rich_help_panel="Data",
        ),
    ] = False,
    part: Annotated[
        str | None,
        typer.Option(
            help="Compute one of n parts of the shards, as i/n; auto: the one that a Slurm array or"
            " torchrun gives this process. Without it, processes on one cache share the shards as"
            " they go.",
            metavar="I/N",
            show_default=False,
            rich_help_panel="Computation",
        ),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            help="Let workers of the Ray cluster at this address compute, one per GPU, else one per"
            " node (--workers: processors of each). Images and cache are on shared storage.",
            metavar="ADDRESS",
            show_default=False,
            rich_help_panel="Computation",
        ),
    ] = None,
    config_file: ConfigOption = None,
) -> None:
    """Run a frozen backbone once over a data set and store its penultimate features.

    An interrupted run goes on when the same command is given again. Several
    processes, on any hosts that share the folder, divide the work among them. An unreadable
    image keeps its row, marked invalid, and is listed at the end. Where the
    machine fails (memory, rights, storage) the run stops, and no row is marked
    for it.

    clinit extract --dataset imagenet1k --root /data/imagenet --out caches/imagenet1k
    """
    from clinit.extract.model_args import parse_model_args
    from clinit.extract.part import Part, parse_part

    # Before PyTorch is loaded, and before a tree of images is scanned.
    dataset = None if overridden(context, "dataset", "manifest") else dataset
    manifest = None if overridden(context, "manifest", "dataset") else manifest
    if part is not None and ray is not None:
        raise typer.BadParameter("--part and --ray exclude each other: give one")
    share = Part() if part is None else parse_part(part, os.environ)
    pixel_mean, pixel_deviation = numbers("--mean", mean), numbers("--std", std)
    _check_images(dataset, manifest, root, split)
    check_writable(out)
    from clinit.extract.backbone import BackboneConfig
    from clinit.extract.run import ExtractConfig, extract_part

    with workers_on(ray, device) as hosts:
        config = ExtractConfig(
            backbone=BackboneConfig(
                name=backbone,
                weights=weights,
                model_args=parse_model_args(model_arg or ()),
                device=hosts.device,
                autocast=autocast.value,
            ),
            transform=transform.value,
            input_size=input_size,
            mean=pixel_mean,
            std=pixel_deviation,
            batch_size=batch_size,
            workers=workers or cpu_count(),
            dtype=dtype.value,
            shard_rows=shard_rows,
            strict=strict,
            max_pixels=max_pixels,
            retry_invalid=retry_invalid,
            head_classes=head_classes,
            views=views,
            view_seed=view_seed,
            command=command_line(),
        )
        manifests = _manifests(dataset, manifest, split, root, strict=strict)
        if limit_per_class is not None:
            manifests = {name: m.limit_per_class(limit_per_class) for name, m in manifests.items()}
        network, crew = hosts.hire(config, root, out, threads=workers)
        with progress_bars() as on_progress:
            results = extract_part(
                manifests,
                root,
                out,
                config,
                share,
                network=network,
                crew=crew,
                on_progress=on_progress,
            )
            print_results(results, out)


def _check_images(
    dataset: str | None, manifest: Path | None, root: Path, split: ReadSplit | None
) -> None:
    """Refuse what is not there: the data set, the manifest, the folder, images in its layout."""
    from clinit.extract.dataset.known import check_known
    from clinit.extract.dataset.tree import Tree

    if (dataset is None) == (manifest is None):
        raise typer.BadParameter("give either --dataset or --manifest")
    if dataset is not None:
        check_known(dataset)
    Tree.at(root)
    if manifest is not None and not manifest.is_file():
        from clinit.extract.dataset.manifest import read_manifest

        read_manifest(manifest)  # says what is wrong with it
    if dataset is not None and split is None:
        from clinit.extract.dataset.scan import available_splits, scan

        if not available_splits(dataset, root):
            scan(dataset, root, ReadSplit.train.value)  # says what was looked for


def _manifests(
    dataset: str | None, path: Path | None, split: ReadSplit | None, root: Path, *, strict: bool
) -> Mapping[str, Manifest]:
    from clinit.extract.dataset.manifest import read_manifest
    from clinit.extract.dataset.scan import available_splits, scan

    if path is not None:
        given = read_manifest(path)
        if split is not None and split.stored != given.split:
            raise typer.BadParameter(f"{path} is the manifest of split {given.split}")
        return {given.split: given}
    assert dataset is not None
    manifests = {}
    # Where no split is found, scanning for one says what was looked for.
    names = available_splits(dataset, root) or (ReadSplit.train.value,)
    for name in (split.value,) if split is not None else names:
        with doing(f"Scanning {name} …"):
            scanned = scan(dataset, root, name, strict=strict)
        for warning in scanned.warnings:
            warn(warning)
        manifests[scanned.manifest.split] = scanned.manifest
    if split is None and "val" not in manifests:
        note(no_val(dataset, root))
    return manifests
