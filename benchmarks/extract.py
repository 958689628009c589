"""Images per second from JPEG files to features: clinit, plain loops and the machine's limits.

    python benchmarks/extract.py networks --out benchmarks/ --realdata FOLDER
    python benchmarks/extract.py decode --out benchmarks/

`networks`: the networks of the paper and two others at 224 pixels, limited by the forward pass; in
float32, the first network in bfloat16 too. `decode`: a ConvNeXtV2 of four narrow blocks at 96
pixels, limited by decoding: its forward pass takes a third of the time of decoding an image.
Contenders are processes that take turns, in another order in every round. A ratio compares two
passes of one round. `--realdata` names a folder with `imagenet_mini/val` and weights of some of the
networks, to measure the top-1 that compiling and bfloat16 cost.
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from extract_contenders import CONTENDERS
from extract_images import QUALITY, SIZES, write_images
from harness import CONSOLE, Process, command, machine, markdown, show, versions, write

from clinit.cli.frame.process import KEPT_BYTES, MAPPED_BYTES, SPIN_COUNT


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """The work of all contenders: a network, and enough images for a pass of some seconds."""

    backbone: str
    autocast: str = "off"
    model_args: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    input_size: int = 224
    images: int = 512
    size: str = next(iter(SIZES))
    """Size of the images, one of `SIZES`."""


FEMTO = "convnextv2_femto"
NARROW: dict[str, Any] = {
    "backbone": "convnextv2_atto",
    "model_args": {"depths": (1, 1, 1, 1), "dims": (8, 16, 32, 64)},
    "input_size": 96,
    "images": 1024,
}
CASES = {
    "networks": (
        Case(backbone=FEMTO),
        Case(backbone="resnet18"),
        Case(backbone="mobilenetv2_100"),
        Case(backbone="vit_tiny_patch16_224"),
        Case(backbone=FEMTO, autocast="bfloat16"),
    ),
    "decode": tuple(Case(**NARROW, size=size) for size in SIZES),
}
OF_THE_COMMAND = {
    "GOMP_SPINCOUNT": str(SPIN_COUNT),
    "MALLOC_MMAP_THRESHOLD_": str(MAPPED_BYTES),
    "MALLOC_TRIM_THRESHOLD_": str(KEPT_BYTES),
    "MALLOC_ARENA_MAX": "1",
}
"""Variables that the command `clinit` sets for itself; the loops run without them."""
HEADINGS = ("contender", "images/s", "CPU ms per image", "clinit / it", "CPU: it / clinit")
NOTE = """\
*images/s*: median of the passes. *clinit / it*: ratio of the rates, the median over the rounds and
in brackets the smallest and the largest. *CPU: it / clinit*: ratio of the CPU seconds (user and
system, including loader processes), in the same form. Both are above 1 if clinit is better.

*clinit*: the function of the library, from files to a cache on the disk, with `--compile on` and
the settings of the command for threads and memory; each thread computes a batch of 32. *timm loop*:
`timm.data.ImageDataset` and `create_loader`. *torchvision loop*: `ImageFolder` with Pillow and
`DataLoader`. Both loops have one loader process per core, batches of 32 and the network as built by
timm. *decoding alone*: reading, decoding and resizing without a network. *model alone*: forward
passes of pixels in memory. *work bound*: 1 / (1 / decoding alone + 1 / model alone), the rate if
both need all cores. *arithmetic limit*: the rate of a network that consists of matrix products
only, from products of two 2,048 x 2,048 matrices on all cores, in turn with the contenders."""


@dataclass(frozen=True, slots=True)
class Pass:
    """A pass of a contender over the images."""

    images: float
    wall_s: float
    cpu_s: float

    @property
    def rate(self) -> float:
        """Images per second."""
        return self.images / self.wall_s


Found = Mapping[str, Sequence[Pass]]
"""The passes of each contender, one per round."""


def compete(
    job: Mapping[str, Any], rounds: int, chosen: Sequence[str], folder: Path
) -> tuple[Found, float]:
    """Let the contenders take turns; return their passes, and the seconds of compiling."""
    threads = len(os.sched_getaffinity(0))

    def start(number: int, name: str) -> Process:
        text = json.dumps({**job, "out": str(folder / f"out-{number}")})
        script, own = "extract_contenders.py", {} if "loop" in name else OF_THE_COMMAND
        return Process(name, sys.executable, script, name, text, threads=threads, **own)

    processes = {name: start(number, name) for number, name in enumerate(chosen)}
    found: dict[str, list[Pass]] = {name: [] for name in chosen}
    try:
        ready = {name: process.answer() for name, process in processes.items()}
        for number in range(rounds):
            turn = number % len(chosen)
            for name in [*chosen[turn:], *chosen[:turn]]:
                found[name].append(Pass(**processes[name].tell("go")))
                CONSOLE.print(f"  round {number + 1}, {name}: {found[name][-1].rate:.1f} images/s")
    finally:
        for process in processes.values():
            process.stop()
    return found, float(ready["clinit"]["compile_s"])


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


def pays_from(found: Found, compile_s: float) -> str:
    """Return the number of images from which compiling saves time."""
    if "clinit, not compiled" not in found:
        return ""
    rates = [
        statistics.median(each.rate for each in found[name])
        for name in ("clinit", "clinit, not compiled")
    ]
    gain_s = 1 / rates[1] - 1 / rates[0]
    return f", which pays from {compile_s / gain_s:,.0f} images on" if gain_s > 0 else ""


def work_bound(found: Found) -> float | None:
    """Return the images/s if decoding and forward passes share the cores without loss."""
    parts = ("decoding alone", "model alone")
    if any(name not in found for name in parts):
        return None
    return 1 / sum(1 / statistics.median(each.rate for each in found[name]) for name in parts)


def _spread(ratios: Sequence[float]) -> str:
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"


def top1_cost(realdata: Path, folder: Path) -> list[str]:
    """Return lines with the top-1 of stored heads on photographs, compiled and in bfloat16."""
    from clinit.extract.dataset.scan import scan
    from clinit.extract.network.backbone import BackboneConfig
    from clinit.extract.work.run import ExtractConfig, extract

    root = realdata / "imagenet_mini"
    manifests = {"val": scan("folder", root, "val").manifest}
    lines = []
    for weights in sorted(realdata.glob("weights/*.safetensors")):
        for compile, autocast in (("off", "off"), ("on", "off"), ("on", "bfloat16")):
            backbone = BackboneConfig(name=weights.stem, weights=weights, autocast=autocast)
            config = ExtractConfig(backbone=backbone, compile=compile, head_classes="dataset")
            out = folder / f"real-{weights.stem}-{compile}-{autocast}"
            (result,) = extract(manifests, root, out, config)
            top1 = result.split.summary.head.top1
            how = f"{weights.stem}, compile {compile}, autocast {autocast}"
            of = f"{top1.percent or 0:.2f} % of {top1.total:,} validation photographs"
            lines.append(f"{how}: top-1 {of}")
    return lines


def report(tables: Mapping[str, list[list[str]]], real: Sequence[str], load: float) -> list[str]:
    """Return the dated text with the tables."""
    lines = [
        f"# Extraction, {datetime.date.today()}",
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


def prepared(case: Case, images: int, folder: Path) -> tuple[dict[str, Any], float]:
    """Write images and weights; return the job, and kB per image."""
    import timm
    import torch
    from safetensors.torch import save_file

    root = folder / f"{case.size.replace(' ', '')}-{images}"
    weights = folder / f"{case.backbone}.safetensors"
    kilobytes = write_images(root, images, *SIZES[case.size])
    if not weights.exists():
        torch.manual_seed(0)
        save_file(timm.create_model(case.backbone, **case.model_args).state_dict(), weights)
    job = {"root": str(root), "weights": str(weights), "backbone": case.backbone}
    facts = {"model_args": dict(case.model_args), "input_size": case.input_size}
    return {**job, **facts, "images": images, "autocast": case.autocast}, kilobytes


def main() -> None:
    """Measure, print the tables, and write them to a dated file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("cases", choices=CASES)
    parser.add_argument("--out", type=Path, help="Folder of the dated file; default: none.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--images", type=int, help="Per pass; default: for a pass of seconds.")
    parser.add_argument("--first", type=int, help="How many of the cases; default: all.")
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--realdata", type=Path, help="Real photographs and weights.")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    chosen = ["clinit", *(name for name in options.contenders if name != "clinit")]
    tables: dict[str, list[list[str]]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for case in CASES[options.cases][: options.first]:
            images = options.images or case.images
            job, kilobytes = prepared(case, images, folder)
            title = (
                f"{case.backbone}, {images:,} images of {case.size} pixels, {kilobytes:.0f} kB each"
                f" at quality {QUALITY}; autocast {case.autocast}"
            )
            CONSOLE.print(title)
            found, compile_s = compete(job, options.rounds, chosen, folder)
            told = f"{title}; compiled in {compile_s:.0f} s{pays_from(found, compile_s)}"
            tables[told] = rows_of(found)
            show(told, HEADINGS, tables[told])
        real = top1_cost(options.realdata, folder) if options.realdata else []
    for line in real:
        CONSOLE.print(line)
    write(options.out, f"extract-{options.cases}", report(tables, real, load))


if __name__ == "__main__":
    main()
