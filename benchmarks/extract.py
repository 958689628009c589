"""Images per second from JPEG files to features: clinit beside plain loops, and beside its limits.

    python benchmarks/extract.py model --out benchmarks/ --realdata FOLDER
    python benchmarks/extract.py decode --out benchmarks/

`model`: ViT-tiny at 224 pixels, where the forward pass bounds; in float32 and bfloat16. `decode`: a
ConvNeXtV2 of four narrow blocks at 96 pixels, where decoding bounds: its forward pass takes a third
of the time of decoding an image. (Those of timm's test networks, which have ImageNet weights, take
at least as long as decoding: `test_vit` at 160 pixels 2.3 ms on one core, decoding and resizing
2.1.) Contenders are processes that take turns, in another order in every round: a ratio is that
of two passes of one round. `--realdata` names a folder with `imagenet_mini/val` and
`weights/vit_tiny_patch16_224.safetensors`: what bfloat16 costs in top-1.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from extract_contenders import CONTENDERS
from extract_images import QUALITY, SIZES, write_images
from harness import CONSOLE, Process, command, machine, markdown, show, versions, write


@dataclass(frozen=True, slots=True)
class Case:
    """What all contenders do."""

    size: str
    """Size of the images, one of `SIZES`."""
    autocast: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A network, and how many images make a pass of some seconds."""

    backbone: str
    model_args: Mapping[str, tuple[int, ...]]
    input_size: int
    images: int
    cases: tuple[Case, ...]


LARGE, SQUARE = SIZES
BOUNDS = {
    "model": Bound(
        backbone="vit_tiny_patch16_224",
        model_args={},
        input_size=224,
        images=512,
        cases=(Case(LARGE, "off"), Case(LARGE, "bfloat16"), Case(SQUARE, "off")),
    ),
    "decode": Bound(
        backbone="convnextv2_atto",
        model_args={"depths": (1, 1, 1, 1), "dims": (8, 16, 32, 64)},
        input_size=96,
        images=1024,
        cases=(Case(LARGE, "off"), Case(SQUARE, "off"), Case(LARGE, "bfloat16")),
    ),
}
HEADINGS = ("contender", "images/s", "CPU ms per image", "clinit / it", "CPU: it / clinit")
NOTE = """\
*images/s*: median of the passes. *clinit / it*: ratio of the rates, the median over the rounds and
in brackets the smallest and the largest; *CPU: it / clinit*: ratio of the CPU seconds (user and
system, with those of loader processes), in the same form. Both are above 1 where clinit is better.

*clinit*: the call of the library, from files to a cache that is on the disk, with its defaults:
each thread computes a batch of 32. *timm loop*: `timm.data.ImageDataset` and `create_loader`;
*torchvision loop*: `ImageFolder` with Pillow and `DataLoader`; each with one loader process per
core, batches of 32 and channels last. *decoding alone*: reading, decoding and resizing without a
network. *model alone*: pixels in memory. The *work bound* is 1 / (1 / decoding alone + 1 / model
alone, 32 per thread): what is left where both need all the cores."""


@dataclass(frozen=True, slots=True)
class Pass:
    """A pass of a contender over the images."""

    images: int
    wall_s: float
    cpu_s: float

    @property
    def rate(self) -> float:
        """Images per second."""
        return self.images / self.wall_s


Found = Mapping[str, Sequence[Pass]]
"""By contender, its pass of each round."""


def compete(job: Mapping[str, Any], rounds: int, chosen: Sequence[str], folder: Path) -> Found:
    """Let the contenders take turns."""
    threads = len(os.sched_getaffinity(0))

    def start(number: int, name: str) -> Process:
        text = json.dumps({**job, "out": str(folder / f"out-{number}")})
        script = "extract_contenders.py"
        return Process(name, sys.executable, script, name, text, threads=threads)

    processes = {name: start(number, name) for number, name in enumerate(chosen)}
    found: dict[str, list[Pass]] = {name: [] for name in chosen}
    try:
        for process in processes.values():
            process.answer()
        for number in range(rounds):
            turn = number % len(chosen)
            for name in [*chosen[turn:], *chosen[:turn]]:
                found[name].append(Pass(**processes[name].tell("go")))
                CONSOLE.print(f"  round {number + 1}, {name}: {found[name][-1].rate:.1f} images/s")
    finally:
        for process in processes.values():
            process.stop()
    return found


def rows_of(found: Found) -> list[list[str]]:
    """Return the lines of the table: medians, and ratios of the passes of one round."""
    lines = []
    for name, passes in found.items():
        rate = statistics.median(each.rate for each in passes)
        cpu = statistics.median(1000 * each.cpu_s / each.images for each in passes)
        pairs = list(zip(found["clinit"], passes, strict=True))
        rates = [own.rate / other.rate for own, other in pairs]
        costs = [other.cpu_s / other.images * own.images / own.cpu_s for own, other in pairs]
        lines.append([name, f"{rate:.1f}", f"{cpu:.1f}", _spread(rates), _spread(costs)])
    if bound := work_bound(found):
        lines.append(["work bound", f"{bound:.1f}", "", "", ""])
    return lines


def work_bound(found: Found) -> float | None:
    """Return the images/s where decoding and forward passes share the cores without loss."""
    parts = ("decoding alone", "model alone, 32 per thread")
    if any(name not in found for name in parts):
        return None
    return 1 / sum(1 / statistics.median(each.rate for each in found[name]) for name in parts)


def _spread(ratios: Sequence[float]) -> str:
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"


def top1_cost(realdata: Path, folder: Path) -> list[str]:
    """Return what bfloat16 costs the stored head of ViT-tiny on real photographs, as lines."""
    from clinit.extract.dataset.scan import scan
    from clinit.extract.network.backbone import BackboneConfig
    from clinit.extract.work.run import ExtractConfig, extract

    root = realdata / "imagenet_mini"
    manifests = {"val": scan("folder", root, "val").manifest}
    lines = []
    for autocast in ("off", "bfloat16"):
        backbone = BackboneConfig(
            name=BOUNDS["model"].backbone,
            weights=realdata / "weights" / "vit_tiny_patch16_224.safetensors",
            autocast=autocast,
        )
        config = ExtractConfig(backbone=backbone)
        (result,) = extract(manifests, root, folder / f"real-{autocast}", config)
        top1, run = result.top1, result.split.summary.run
        lines.append(
            f"autocast {autocast}: top-1 {top1.percent or 0:.2f} % of {top1.total:,} validation"
            f" photographs, {run.images_per_s or 0:.1f} images/s"
        )
    return lines


def report(
    bound: Bound, tables: Mapping[str, list[list[str]]], real: Sequence[str], load: float
) -> list[str]:
    """Return the dated text with the tables."""
    lines = [
        f"# Extraction with {bound.backbone} at {bound.input_size} pixels, {datetime.date.today()}",
        "",
        f"{machine(load)}. {versions('torch', 'torchvision', 'torchcodec', 'timm', 'pillow')}.",
        command(),
        "",
        NOTE,
    ]
    for title, rows in tables.items():
        lines += ["", f"## {title}", "", *markdown(HEADINGS, rows)]
    if real:
        lines += ["", "## Real photographs and weights", "", *(f"* {line}" for line in real)]
    return lines


def prepared(bound: Bound, size: str, images: int, folder: Path) -> tuple[dict[str, Any], float]:
    """Write images and weights; return the job without its arithmetic, and kB per image."""
    import timm
    import torch
    from safetensors.torch import save_file

    root, weights = folder / size.replace(" ", ""), folder / "weights.safetensors"
    kilobytes = write_images(root, images, *SIZES[size])
    if not weights.exists():
        torch.manual_seed(0)
        network = timm.create_model(bound.backbone, **bound.model_args)
        save_file(network.state_dict(), weights)
    job = {"root": str(root), "weights": str(weights), "backbone": bound.backbone}
    network_facts = {"model_args": dict(bound.model_args), "input_size": bound.input_size}
    return {**job, **network_facts, "images": images}, kilobytes


def main() -> None:
    """Measure, print the tables, and write them to a dated file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("bound", choices=BOUNDS)
    parser.add_argument("--out", type=Path, help="Folder of the dated file; default: none.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--images", type=int, help="Per pass; default: for a pass of seconds.")
    parser.add_argument("--cases", type=int, default=3, help="The first ones of three.")
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--realdata", type=Path, help="Real photographs and weights.")
    options = parser.parse_args()
    bound, load = BOUNDS[options.bound], os.getloadavg()[0]
    chosen = ["clinit", *(name for name in options.contenders if name != "clinit")]
    tables: dict[str, list[list[str]]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for case in bound.cases[: options.cases]:
            images = options.images or bound.images
            job, kilobytes = prepared(bound, case.size, images, folder)
            title = (
                f"{images:,} images of {case.size} pixels, {kilobytes:.0f} kB each at quality"
                f" {QUALITY}; autocast {case.autocast}"
            )
            CONSOLE.print(title)
            found = compete({**job, "autocast": case.autocast}, options.rounds, chosen, folder)
            tables[title] = rows_of(found)
            show(title, HEADINGS, tables[title])
        real = top1_cost(options.realdata, folder) if options.realdata else []
    for line in real:
        CONSOLE.print(line)
    write(options.out, f"extract-{options.bound}", report(bound, tables, real, load))


if __name__ == "__main__":
    main()
