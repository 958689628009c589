"""Contenders of `benchmarks/extract.py`: ways to extract features, one per process.

    python extract_contenders.py CONTENDER '{"root": …, "weights": …, "backbone": …, …}'

Each contender computes the penultimate features of all images with the same network, weights and
preprocessing, and keeps them in float16. Each pass is a turn; its time excludes loading the network
and its first forward pass.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import resource
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import divert_prints, say
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from clinit.extract.dataset.images import images_of
from clinit.extract.dataset.scan import scan
from clinit.extract.network.backbone import BackboneConfig
from clinit.extract.network.compiled import on_its_way
from clinit.extract.work.pipeline import Decoder, ImageBatch, Timing, side_by_side
from clinit.extract.work.run import BATCH_SIZES, ExtractConfig, Network, extract, load_network
from clinit.machine import cpu_count


@dataclass(frozen=True, kw_only=True)
class Job:
    """The work, the same for all contenders."""

    root: str
    """Folder that holds `train/<class>/<image>.jpg`."""
    weights: str
    backbone: str
    model_args: dict[str, Any]
    input_size: int
    autocast: str
    images: int
    out: str
    """Folder for what a contender writes."""


class Contender:
    """The job, network and preprocessing that contenders share."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.root = Path(job.root)
        backbone = BackboneConfig(
            name=job.backbone,
            weights=Path(job.weights),
            model_args={name: tuple(value) for name, value in job.model_args.items()},
            autocast=job.autocast,
        )
        self.config = ExtractConfig(backbone=backbone, input_size=job.input_size)
        self.loaded: Network = load_network(self.config)
        self.data: dict[str, Any] = dict(self.loaded.backbone.data_config)

    @property
    def network(self) -> nn.Module:
        """The network itself, for loops without clinit."""
        return self.loaded.backbone.network

    @torch.inference_mode()
    def features(self, pixels: Tensor) -> Tensor:
        """Return the features of normalised images: the forward pass of a plain loop."""
        dtype, is_on = torch.bfloat16, self.job.autocast == "bfloat16"
        with torch.autocast("cpu", dtype=dtype, enabled=is_on):
            network: Any = self.network
            found: Tensor = network.forward_head(network.forward_features(pixels), pre_logits=True)
        return found.float()

    def kept(self, batches: Iterable[Any]) -> int:
        """Compute and keep the features of normalised batches; return the number of images."""
        found = [self.features(images).numpy().astype(np.float16) for images, _ in batches]
        return len(np.concatenate(found))

    def plain(self) -> Contender:
        """Return a contender with the network as built by timm."""
        self.network.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        return self

    def compiled(self) -> Contender:
        """Return a contender with a compiled network."""
        backbone = self.loaded.backbone
        self.loaded = replace(
            self.loaded,
            backbone=on_its_way(
                backbone,
                self.loaded.transform,
                "on",
                batch_size=BATCH_SIZES["cpu"],
                images=self.job.images,
            ),
        )
        return self


def of_clinit(job: Job, *, compiled: bool) -> Callable[[], int]:
    """Return a pass of `clinit.extract.work.run.extract` into a cache."""
    contender, out = Contender(job), Path(job.out)
    if compiled:
        contender.compiled()
    manifests = {"train": scan("folder", contender.root, "train").manifest}

    def extraction() -> int:
        shutil.rmtree(out, ignore_errors=True)
        (result,) = extract(
            manifests, contender.root, out, contender.config, network=contender.loaded
        )
        return result.split.summary.num_valid

    return extraction


def of_timm(job: Job, batch_size: int) -> Callable[[], int]:
    """Return a pass of timm's own data set and loader."""
    from timm.data import ImageDataset, create_loader

    contender = Contender(job).plain()
    data = contender.data
    loader = create_loader(
        ImageDataset(str(contender.root / "train")),
        input_size=(3, job.input_size, job.input_size),
        batch_size=batch_size,
        is_training=False,
        use_prefetcher=False,
        interpolation=data["interpolation"],
        mean=data["mean"],
        std=data["std"],
        crop_pct=data["crop_pct"],
        num_workers=cpu_count(),
        persistent_workers=False,
        device=torch.device("cpu"),
    )
    return lambda: contender.kept(loader)


def of_torchvision(job: Job, batch_size: int) -> Callable[[], int]:
    """Return a pass of torchvision's folder, with Pillow, and PyTorch's loader."""
    from torch.utils.data import DataLoader
    from torchvision import transforms
    from torchvision.datasets import ImageFolder

    contender = Contender(job).plain()
    data, transform = contender.data, contender.loaded.transform
    steps = transforms.Compose(
        [
            transforms.Resize(
                transform.resize, transforms.InterpolationMode(data["interpolation"])
            ),
            transforms.CenterCrop(list(transform.crop)),
            transforms.ToTensor(),
            transforms.Normalize(data["mean"], data["std"]),
        ]
    )
    loader: DataLoader[Any] = DataLoader(
        ImageFolder(str(contender.root / "train"), steps),
        batch_size=batch_size,
        num_workers=cpu_count(),
    )
    return lambda: contender.kept(loader)


def of_decoding(job: Job) -> Callable[[], int]:
    """Return a pass of only clinit's reading, decoding and resizing."""
    contender = Contender(job)
    table = scan("folder", contender.root, "train").manifest.table
    batches = [range(first, min(first + 32, len(table))) for first in range(0, len(table), 32)]
    images = images_of(table, contender.root)

    def decoding() -> int:
        transform = contender.loaded.transform
        decoder = Decoder(images=images, transform=transform, workers=cpu_count())
        return sum(len(batch.rows) for batch in decoder.batches(batches))

    return decoding


def of_model(job: Job, *, compiled: bool) -> Callable[[], int]:
    """Return a pass of the network alone, from pixels in memory.

    Args:
        job: The work.
        compiled: Whether the network is compiled.
    """
    contender, batch_size = Contender(job), BATCH_SIZES["cpu"]
    if compiled:
        contender.compiled()
    transform = contender.loaded.transform
    shape = (batch_size, 3, *transform.crop)
    few = [torch.randint(0, 256, shape, dtype=torch.uint8) for _ in range(4)]
    normalise = transform.normalise

    def batches() -> Iterator[ImageBatch]:
        starts = range(0, job.images, batch_size)
        for first, pixels in zip(starts, itertools.cycle(few), strict=False):
            rows = range(first, min(first + batch_size, job.images))
            yield ImageBatch(rows, pixels[: len(rows)], {}, 0.0, 0.0)

    def compute(pixels: Tensor) -> Tensor:
        return contender.loaded.backbone.features(normalise(pixels))

    def alone() -> int:
        found = side_by_side(batches(), compute, Timing())
        return sum(len(features) for _, features in found)

    return alone


def of_arithmetic(job: Job) -> Callable[[], float]:
    """Return a pass of matrix products, counted as images with as many operations."""
    contender, size = Contender(job), 2048
    with FlopCounterMode(display=False) as counter:
        contender.features(torch.zeros(1, 3, job.input_size, job.input_size))
    dtype = torch.bfloat16 if job.autocast == "bfloat16" else torch.float32
    one, other = torch.randn(2, size, size).to(dtype)
    products = job.images * counter.get_total_flops() / (2 * size**3)

    def multiply() -> float:
        for _ in range(math.ceil(products)):
            one @ other
        return job.images * math.ceil(products) / products

    return multiply


CONTENDERS: dict[str, Callable[[Job], Callable[[], float]]] = {
    "clinit": lambda job: of_clinit(job, compiled=True),
    "clinit, not compiled": lambda job: of_clinit(job, compiled=False),
    "timm loop": lambda job: of_timm(job, 32),
    "torchvision loop": lambda job: of_torchvision(job, 32),
    "decoding alone": of_decoding,
    "model alone": lambda job: of_model(job, compiled=True),
    "model alone, not compiled": lambda job: of_model(job, compiled=False),
    "arithmetic limit": of_arithmetic,
}


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of ended child processes."""
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(usage.ru_utime + usage.ru_stime for usage in map(resource.getrusage, kinds))


def main() -> None:
    """Prepare, then run a pass for each line on standard input, and print its cost."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("contender", choices=CONTENDERS)
    parser.add_argument("job", type=lambda text: Job(**json.loads(text)))
    options = parser.parse_args()
    divert_prints()
    began = time.perf_counter()
    run = CONTENDERS[options.contender](options.job)
    say(ready=True, compile_s=time.perf_counter() - began)  # and loading, which takes a second
    for _ in sys.stdin:
        started, before = time.perf_counter(), cpu_seconds()
        images = run()
        say(images=images, wall_s=time.perf_counter() - started, cpu_s=cpu_seconds() - before)


if __name__ == "__main__":
    main()
