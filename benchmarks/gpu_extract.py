"""Images a second of `clinit extract`: from pixels in memory, and from JPEG files."""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial

import torch
from gpu_setting import Lines, Setting
from harness import settle
from jaxtyping import Float
from top_blocks_contenders import flop_of
from torch import Tensor

from clinit.extract.dataset.scan import scan
from clinit.extract.network.backbone import Backbone, BackboneConfig, load_backbone
from clinit.extract.network.transform import Transform, make_transform
from clinit.extract.work.pipeline import Compute, ImageBatch, Timing, features_of
from clinit.extract.work.run import ExtractConfig, extract

HEADINGS = (
    *("extraction", "autocast", "images/s", "of the forward pass alone", "of the copy alone"),
    *("TFLOP/s", "bound"),
)
NOTE = """\
*the forward pass alone*: normalisation and network on one batch that is on the device, launched
again and again. *the copy alone*: pixels (uint8) at the rate of pinned memory to the device.
*pixels* are in pinned memory and go the way of `clinit extract`, which overlaps copies and forward
passes on a CUDA device; *in turn*, each batch is waited for. *JPEG files*: the command itself, from
files to shards; the bound is what it says. Convolutions of float32 are in TF32 where PyTorch allows
them, its default."""


def in_turn(
    batches: Iterable[ImageBatch], compute: Compute, device: torch.device, timing: Timing
) -> Generator[tuple[ImageBatch, Float[Tensor, "batch ..."]]]:
    """Yield each batch with its features; nothing overlaps."""
    for batch in batches:
        with timing.phase("transfer"):
            pixels = batch.pixels.to(device)
        with timing.phase("forward"):  # .cpu() waits for the device
            features = compute(pixels).cpu()
        yield batch, features


def measure(setting: Setting) -> Lines:
    """Yield a line for each source and arithmetic."""
    for autocast in ("off", "bfloat16"):
        config = BackboneConfig(
            name=setting.scale.model,
            weights=setting.folder / "weights.safetensors",
            device=str(setting.device),
            autocast=autocast,
        )
        backbone = load_backbone(config)
        transform = make_transform("timm", backbone.data_config)
        alone = _alone(setting, backbone, transform)
        flop = flop_of(partial(_step(backbone, transform, setting.device), _pixels(1, transform)))
        for name, rate, bound in _rates(setting, backbone, transform):
            copied = setting.limits["host to device"] / (3 * transform.crop[0] * transform.crop[1])
            shares = [f"{rate / alone:.0%}", f"{rate / copied:.0%}", f"{rate * flop / 1e12:.3g}"]
            yield [name, autocast, f"{rate:,.0f}", *shares, bound]


def _rates(
    setting: Setting, backbone: Backbone, transform: Transform
) -> Iterator[tuple[str, float, str]]:
    """Yield what was measured, its images/s and its bound."""
    for name, way in (("pixels", features_of), ("pixels, in turn", in_turn)):
        setting.say(f"{name}, autocast {backbone.config.autocast}")
        compute = _step(backbone, transform, setting.device)
        for counted in (False, True):  # the first pass warms up
            timing, started = Timing(), time.perf_counter()
            images = 0
            for batch, _ in way(_batches(setting, transform), compute, setting.device, timing):
                images += len(batch.rows)
            if counted:
                yield name, images / (time.perf_counter() - started), timing.bound
    setting.say(f"JPEG files, autocast {backbone.config.autocast}")
    out = setting.folder / "extracted"
    shutil.rmtree(out, ignore_errors=True)
    config = ExtractConfig(
        backbone=backbone.config, batch_size=setting.scale.batch, workers=setting.workers
    )
    root = setting.folder / "base"
    manifests = {"train": scan("folder", root, "train").manifest}
    (result,) = extract(manifests, root, out, config)
    run = result.split.summary.run
    yield "JPEG files", run.images_per_s or 0.0, run.bound


def _step(
    backbone: Backbone, transform: Transform, device: torch.device
) -> Callable[[Tensor], Tensor]:
    normalise = transform.normaliser(device)
    return lambda pixels: backbone.features(normalise(pixels.to(device)))


def _alone(setting: Setting, backbone: Backbone, transform: Transform) -> float:
    """Return the images/s of the forward pass of a batch that is on the device."""
    pixels = _pixels(setting.scale.batch, transform).to(setting.device)
    step = _step(backbone, transform, setting.device)
    settle(str(setting.device))
    return setting.scale.batch / setting.seconds(lambda: step(pixels))


def _pixels(images: int, transform: Transform) -> Tensor:
    return torch.randint(0, 256, (images, 3, *transform.crop), dtype=torch.uint8)


def _batches(setting: Setting, transform: Transform) -> Iterator[ImageBatch]:
    """Yield batches that are decoded already, from a few that come again and again."""
    size = setting.scale.batch
    few = [_pixels(size, transform) for _ in range(4)]
    if setting.device.type == "cuda":
        few = [each.pin_memory() for each in few]
    starts = range(0, setting.scale.images, size)
    for start, pixels in zip(starts, itertools.cycle(few), strict=False):
        yield ImageBatch(range(start, start + size), pixels, {}, 0.0, 0.0)
