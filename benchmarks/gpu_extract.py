"""Images per second of `clinit extract`, from pixels in memory and from JPEG files."""

from __future__ import annotations

import itertools
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import torch
from gpu_setting import Lines, Setting
from harness import settle
from torch import Tensor

from clinit.extract.dataset.images import images_of
from clinit.extract.dataset.scan import scan
from clinit.extract.network.backbone import Backbone, BackboneConfig, load_backbone
from clinit.extract.network.compiled import on_its_way
from clinit.extract.network.transform import Transform, make_transform
from clinit.extract.work.options import MOST_THREADS
from clinit.extract.work.pipeline import Decoder, ImageBatch, Timing, features_of
from clinit.extract.work.run import ExtractConfig, Network, extract

HEADINGS = ("extraction", "autocast", "compiled", "images/s", "of the forward pass alone", "bound")
NOTE = """\
*the forward pass alone*: normalisation and network on one batch on the device, launched repeatedly.
*pixels*: pixels in pinned memory through the pipeline of `clinit extract`, which overlaps copies
and forward passes on a CUDA device. *JPEG files*: the command itself, from files to shards, decoded
by threads or by the device, with the bound that it prints. *decoding alone*: reading, decoding and
resizing without a network. *off* is float32."""


def measure(setting: Setting) -> Lines:
    """Yield a line for each source, precision and pipeline, then for each decoder."""
    if setting.device.type == "cpu":
        torch.set_num_threads(1)  # as in the pipeline, for which a program is compiled
    root = _linked(setting)
    for autocast, compile in itertools.product(_precisions(setting), ("off", "on")):
        weights, device = setting.folder / "weights.safetensors", str(setting.device)
        backbone = load_backbone(
            BackboneConfig(
                name=setting.scale.model, weights=weights, device=device, autocast=autocast
            )
        )
        transform = make_transform("timm", backbone.data_config)
        backbone = on_its_way(
            backbone,
            transform,
            compile,
            batch_size=setting.scale.batch,
            images=setting.scale.images,
        )
        alone = _alone(setting, backbone, transform)
        for name, rate, bound in _rates(setting, backbone, transform, root):
            yield [name, autocast, compile, f"{rate:,.0f}", f"{rate / alone:.0%}", bound]
    for decoder, workers in itertools.product(_decoders(setting), _threads(setting)):
        rate = _decoding(setting, transform, root, decoder, workers)
        yield [f"decoding alone, {decoder}, {workers} threads", "", "", f"{rate:,.0f}", "", ""]


def _linked(setting: Setting) -> Path:
    """Return a folder of as many images as `setting` names: links to the photographs."""
    files = sorted((setting.folder / "base" / "train").rglob("*.jpg"))
    for number in range(setting.scale.images):
        file = files[number % len(files)]
        link = setting.folder / "many" / "train" / file.parent.name / f"{number}.jpg"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.hardlink_to(file)
    return setting.folder / "many"


def _threads(setting: Setting) -> tuple[int, ...]:
    return tuple(sorted({1, setting.workers, os.cpu_count() or 1}))


def _precisions(setting: Setting) -> tuple[str, ...]:
    return ("off", "tf32", "bfloat16") if setting.device.type == "cuda" else ("off", "bfloat16")


def _decoders(setting: Setting) -> tuple[Literal["cpu", "cuda"], ...]:
    return ("cpu", "cuda") if setting.device.type == "cuda" else ("cpu",)


def _decoding(
    setting: Setting, transform: Transform, root: Path, decoder: str, workers: int
) -> float:
    """Return the images/s of reading, decoding and resizing."""
    table = scan("folder", root, "train").manifest.table
    size = setting.scale.batch
    rows = [range(start, min(start + size, len(table))) for start in range(0, len(table), size)]
    rows = rows[: -(-len(rows) * min(workers, 8) // 8)]  # few threads get fewer images
    started = time.perf_counter()
    loaded = Decoder(
        images=images_of(table, root),
        transform=transform,
        workers=workers,
        pin_memory=setting.device.type == "cuda",
        for_device=decoder == "cuda",
    )
    for batch in loaded.batches(rows):
        if batch.finish is not None:
            batch.finish(batch.pixels.to(setting.device))
    settle(str(setting.device))
    return sum(map(len, rows)) / (time.perf_counter() - started)


def _rates(
    setting: Setting, backbone: Backbone, transform: Transform, root: Path
) -> Iterator[tuple[str, float, str]]:
    """Yield the name of a measurement, its images/s and its bound."""
    setting.say(f"pixels, autocast {backbone.config.autocast}")
    compute, batches = _step(backbone, transform, setting.device), [*_batches(setting, transform)]
    for counted in (False, True):  # the first pass warms up
        timing, started = Timing(), time.perf_counter()
        images = 0
        again = (batch for batch in batches)
        for batch, _ in features_of(again, compute, setting.device, timing):
            images += len(batch.rows)
        if counted:
            yield "pixels", images / (time.perf_counter() - started), timing.bound
    if backbone.program is None:  # files are slower than both
        return
    manifests = {"train": scan("folder", root, "train").manifest}
    for decoder in _decoders(setting):
        setting.say(f"JPEG files, decoder {decoder}, autocast {backbone.config.autocast}")
        out = setting.folder / "extracted"
        shutil.rmtree(out, ignore_errors=True)
        config = ExtractConfig(
            backbone=backbone.config,
            batch_size=setting.scale.batch,
            workers=min(setting.workers, MOST_THREADS[decoder]),
            compile="off",
            decoder=decoder,
        )
        network = Network.of(backbone, transform, config.dtype, decoder)
        (result,) = extract(manifests, root, out, config, network=network)
        run = result.split.summary.run
        yield f"JPEG files, {decoder}", run.images_per_s or 0.0, run.bound


def _step(
    backbone: Backbone, transform: Transform, device: torch.device
) -> Callable[[Tensor], Tensor]:
    normalise = transform.normalise
    return lambda pixels: backbone.features(normalise(pixels.to(device)))


def _alone(setting: Setting, backbone: Backbone, transform: Transform) -> float:
    """Return the images/s of the forward pass of a batch on the device."""
    pixels = _pixels(setting.scale.batch, transform).to(setting.device)
    step = _step(backbone, transform, setting.device)
    settle(str(setting.device))
    return setting.scale.batch / setting.seconds(lambda: step(pixels))


def _pixels(images: int, transform: Transform) -> Tensor:
    return torch.randint(0, 256, (images, 3, *transform.crop), dtype=torch.uint8)


def _batches(setting: Setting, transform: Transform) -> Iterator[ImageBatch]:
    """Yield decoded batches, from a few batches that repeat."""
    size = setting.scale.batch
    few = [_pixels(size, transform) for _ in range(4)]
    if setting.device.type == "cuda":
        few = [each.pin_memory() for each in few]
    starts = range(0, setting.scale.images, size)
    for start, pixels in zip(starts, itertools.cycle(few), strict=False):
        yield ImageBatch(range(start, start + size), pixels, {}, 0.0, 0.0)
