"""The cost of an anchor: seconds per step without an anchor, with l2 and with moments.

    python benchmarks/anchors.py --out benchmarks/

One head of 1,365 classes over 384 features, batches of 256, on one CPU thread or a CUDA device. The
three trainings take turns after each block of steps, so that they run under the same load of the
machine. The ratio is the median over blocks.
"""

from __future__ import annotations

import argparse
import datetime
import os
import statistics
import time
from pathlib import Path

import numpy as np
import torch
from harness import CONSOLE, markdown, processor, versions, write

from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.statistics.class_statistics import ClassStatistics
from clinit.headtrain.protocol.study.parts import Training
from clinit.headtrain.protocol.train.anchor import Anchor
from clinit.headtrain.protocol.train.heads import Bank
from clinit.headtrain.protocol.train.old_classes import OldClasses
from clinit.headtrain.protocol.train.step import Updates
from clinit.machine import choose_device, device_name

DIM, CLASSES, BATCH, STEPS, BLOCKS = 384, 1365, 256, 20, 15


def made(device: torch.device) -> dict[str, Updates]:
    """Return one training per kind of anchor, with equal heads."""
    random = np.random.default_rng(0)
    features = random.normal(size=(4096, DIM)).astype(np.float32)
    old = OldClasses.of(ClassStatistics.of(features, np.arange(4096) % 1292))
    head = Rows(random.normal(size=(CLASSES, DIM)) / 20, np.zeros(CLASSES))
    anchors = {"none": None, "l2": Anchor(0.1), "moments": Anchor(0.1, old)}
    return {
        name: Updates(Bank(head, [Training(lr=1e-3)], device), BATCH, [anchor])
        for name, anchor in anchors.items()
    }


@torch.no_grad()
def main() -> None:
    """Measure, print and write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument("--out", type=Path, help="Folder of the dated file; default: none.")
    options = parser.parse_args()
    device = choose_device(options.device)
    torch.set_num_threads(1)
    updates = made(device)
    batch = torch.randn(BATCH, DIM, device=device), torch.randint(CLASSES, (BATCH,), device=device)
    seconds: dict[str, list[float]] = {name: [] for name in updates}
    for _ in range(BLOCKS + 1):
        for name, each in updates.items():
            started = time.perf_counter()
            for _ in range(STEPS):
                each.step(*batch)
            if device.type == "cuda":
                torch.cuda.synchronize()
            seconds[name].append((time.perf_counter() - started) / STEPS)
    lines = []
    for name, times in seconds.items():
        ratios = [mine / none for mine, none in zip(times[1:], seconds["none"][1:], strict=True)]
        middle = 1000 * statistics.median(times[1:])
        lines.append([name, f"{middle:.2f}", f"{statistics.median(ratios):.2f}"])
    where = device_name(device) if device.type == "cuda" else processor()
    text = [
        f"# Cost of an anchor, {datetime.date.today()}",
        "",
        f"{where}, {os.cpu_count()} cores, one thread. {versions('torch')}. One head,"
        f" {CLASSES:,} classes, {DIM} features, batches of {BATCH}; {BLOCKS} blocks of {STEPS}"
        " steps in turn.",
        "",
        *markdown(["anchor", "ms per step", "beside none"], lines),
    ]
    CONSOLE.print("\n".join(text), soft_wrap=True)
    write(options.out, f"anchors_{'gpu' if device.type == 'cuda' else 'cpu'}", text)


if __name__ == "__main__":
    main()
