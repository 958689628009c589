"""`clinit extract`: images to a feature cache."""

from __future__ import annotations

import math
import os
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clinit.cli.console import err, note, say, warn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from clinit.extract.manifest import Manifest
    from clinit.extract.split_run import Progress, SplitResult

_BAD_IMAGES_SHOWN = 20


class Split(StrEnum):
    """A split of a data set."""

    train = "train"
    val = "val"


class TransformKind(StrEnum):
    """Preprocessing without augmentation."""

    timm = "timm"
    paper = "paper"


class Dtype(StrEnum):
    """How features are stored."""

    float16 = "float16"
    float32 = "float32"


class Device(StrEnum):
    """Where to compute."""

    auto = "auto"
    cuda = "cuda"
    cpu = "cpu"


class Autocast(StrEnum):
    """Arithmetic of the forward pass."""

    off = "off"
    bfloat16 = "bfloat16"
    float16 = "float16"


def extract(
    root: Annotated[Path, typer.Option(help="Folder of the images.", show_default=False)],
    out: Annotated[Path, typer.Option(help="Folder of the feature cache.", show_default=False)],
    dataset: Annotated[
        str | None,
        typer.Option(
            help="imagenet1k, places365, digits, or `folder` for any tree of class folders.",
            show_default=False,
        ),
    ] = None,
    manifest: Annotated[
        Path | None,
        typer.Option(
            help="Manifest of `clinit manifest build`, instead of --dataset.", show_default=False
        ),
    ] = None,
    split: Annotated[
        Split | None, typer.Option(help="Only this split.", show_default="all there are")
    ] = None,
    backbone: Annotated[
        str, typer.Option(help="timm's name of the network, with its tag.")
    ] = "convnextv2_femto.fcmae_ft_in1k",
    weights: Annotated[
        Path | None,
        typer.Option(
            help="Checkpoint (.safetensors, or .pth that holds tensors only).",
            show_default="timm's download",
        ),
    ] = None,
    model_arg: Annotated[
        list[str] | None,
        typer.Option(
            help="Argument of timm.create_model, as name=value; repeatable.", show_default=False
        ),
    ] = None,
    head_classes: Annotated[
        str | None,
        typer.Option(
            help="What the rows of the pretrained classifier stand for: a file with one name a"
            " line, or `dataset` for the classes of this data set in order.",
            show_default="stored with the weights; ImageNet-1K for 1,000 rows",
        ),
    ] = None,
    transform: Annotated[
        TransformKind,
        typer.Option(help="The model's own, or the paper's (256 x 256, centre crop 224)."),
    ] = TransformKind.timm,
    input_size: Annotated[
        int | None,
        typer.Option(min=1, help="Side of the network's input in pixels.", show_default="model's"),
    ] = None,
    mean: Annotated[
        str | None,
        typer.Option(help="Pixel mean in [0, 1]: 0.5 or 0.5,0.5,0.5.", show_default="model's"),
    ] = None,
    std: Annotated[
        str | None, typer.Option(help="Pixel deviation, likewise.", show_default="model's")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Images a forward pass.")] = 64,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Threads that read and decode.", show_default="CPU cores"),
    ] = None,
    dtype: Annotated[Dtype, typer.Option(help="How features are stored.")] = Dtype.float16,
    device: Annotated[Device, typer.Option(help="Where to compute.")] = Device.auto,
    autocast: Annotated[
        Autocast, typer.Option(help="Lower precision of the forward pass.")
    ] = Autocast.off,
    limit_per_class: Annotated[
        int | None,
        typer.Option(min=1, help="Only the first images of each class.", show_default="all"),
    ] = None,
    shard_rows: Annotated[
        int, typer.Option(min=1, help="Rows a shard: what a killed run loses at most.")
    ] = 4096,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="Stop at an unreadable image and at counts that differ from the description.",
        ),
    ] = False,
) -> None:
    """Run a frozen backbone once over a data set and store its penultimate features.

    Killed or interrupted, it goes on when the same command is run again. An unreadable image
    keeps its row, marked invalid, and is listed at the end.

    clinit extract --dataset imagenet1k --root /data/imagenet --out caches/imagenet1k
    """
    from clinit.extract.backbone import BackboneConfig, parse_model_args
    from clinit.extract.device import choose_device
    from clinit.extract.run import ExtractConfig
    from clinit.extract.run import extract as run

    config = ExtractConfig(
        backbone=BackboneConfig(
            name=backbone,
            weights=weights,
            model_args=parse_model_args(model_arg or ()),
            device=str(choose_device(device.value)),
            autocast=autocast.value,
        ),
        transform=transform.value,
        input_size=input_size,
        mean=_numbers("--mean", mean),
        std=_numbers("--std", std),
        batch_size=batch_size,
        workers=workers or os.cpu_count() or 1,
        dtype=dtype.value,
        shard_rows=shard_rows,
        strict=strict,
        head_classes=head_classes,
    )
    manifests = _manifests(dataset, manifest, split, root, strict=strict)
    if limit_per_class is not None:
        manifests = {name: m.limit_per_class(limit_per_class) for name, m in manifests.items()}
    with _progress(manifests) as on_progress:
        for result in run(manifests, root, out, config, on_progress=on_progress):
            _print_result(result)


def _manifests(
    dataset: str | None, path: Path | None, split: Split | None, root: Path, *, strict: bool
) -> Mapping[str, Manifest]:
    from clinit.extract.manifest import read_manifest
    from clinit.extract.scan import available_splits, scan

    if (dataset is None) == (path is None):
        raise typer.BadParameter("give either --dataset or --manifest")
    if path is not None:
        given = read_manifest(path)
        if split is not None and split.value != given.split:
            raise typer.BadParameter(f"{path} is the manifest of split {given.split}")
        return {given.split: given}
    assert dataset is not None
    manifests = {}
    # Where no split is found, scanning for one says what was looked for.
    names = available_splits(dataset, root) or (Split.train.value,)
    for name in (split.value,) if split is not None else names:
        with err.status(f"Scanning {name} …"):
            scanned = scan(dataset, root, name, strict=strict)
        for warning in scanned.warnings:
            warn(warning)
        manifests[name] = scanned.manifest
    return manifests


def _numbers(option: str, text: str | None) -> tuple[float, ...] | None:
    if text is None:
        return None
    try:
        numbers = tuple(float(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if len(numbers) not in (1, 3) or not all(math.isfinite(number) for number in numbers):
        raise typer.BadParameter(f"{option} takes one number or three, got {text!r}")
    if option == "--std" and min(numbers) <= 0:
        raise typer.BadParameter(f"--std must be positive, got {text!r}")
    return numbers


@contextmanager
def _progress(manifests: Mapping[str, Any]) -> Iterator[Callable[[Progress], None]]:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.fields[shares]}"),
        console=err,
        disable=not err.is_terminal,
    )
    with bar:
        tasks = {}

        def update(progress: Any) -> None:
            if progress.split not in tasks:
                tasks[progress.split] = bar.add_task(
                    progress.split, total=progress.rows_total, rate="", shares=""
                )
            bar.update(
                tasks[progress.split],
                completed=progress.rows_done,
                rate=f"{progress.images_per_s:,.0f} images/s",
                shares=_shares(progress.shares, short=True),
            )

        yield update


def _shares(shares: Mapping[str, float], *, short: bool = False) -> str:
    parts = ((name[:3] if short else name, share) for name, share in shares.items())
    if short:
        return " ".join(f"{name} {100 * share:.0f}" for name, share in parts if share >= 0.005)
    return ", ".join(f"{name} {100 * share:.0f} %" for name, share in parts)


def _print_result(result: SplitResult) -> None:
    split, run = result.split, result.split.summary["run"]
    shards = split.plan.num_shards
    say(
        f"{split.plan.split}: {split.num_rows:,} images, features {split.num_valid:,} x {split.dim}"
        f" {split.dtype} in {shards:,} shard{'s' if shards > 1 else ''} at {split.path}"
    )
    for reason in result.replaced_shards:
        note(f"computed again: {reason}")
    if not result.computed_rows:
        say("  already complete: every shard verified, nothing to do")
    else:
        found = split.num_rows - result.computed_rows
        resumed = f" ({found:,} found from an earlier run)" if found else ""
        say(
            f"  {result.computed_rows:,} images at {run['images_per_s']:,.0f} images/s{resumed}:"
            f" {_shares(run['shares'])}; the bound is {run['bound']}"
        )
    if split.dtype != split.plan.dtype:
        note("some features exceed the range of float16: their shards are stored in float32")
    _print_top1(result)
    invalid = split.summary["invalid"]
    if invalid:
        warn(f"{len(invalid):,} of {split.num_rows:,} images have no features:")
        for entry in invalid[:_BAD_IMAGES_SHOWN]:
            say(f"    row {entry['row']:,}  {entry['path']}: {entry['reason']}")
        if len(invalid) > _BAD_IMAGES_SHOWN:
            say(f"    … all of them are listed in {split.path / 'cache.json'}")


def _print_top1(result: SplitResult) -> None:
    head = result.split.summary["head"]
    percent = result.top1.percent
    if percent is not None:
        say(
            f"  stored head: top-1 {percent:.2f} % of {result.top1.total:,} images"
            f" (its classes: {head['class_names']})"
        )
    elif head["class_names"] == "unknown":
        note(
            "the stored head's rows have no names, so its accuracy is unknown and `clinit"
            " train-head` cannot use it: name them with --head-classes"
        )
    else:
        say(f"  stored head: knows none of these classes (its classes: {head['class_names']})")
