"""Write the workload of `benchmarks/top_blocks.py`.

    python top_blocks_workload.py FOLDER MODEL TOP_BLOCKS THREADS SEED

Photographs, weights, feature caches, and the pixels as they enter the network: in a process of its
own, whose memory is free again when the contenders run.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

BASE, NEW = 64, 16
"""Classes."""
IMAGES = {"base": {"train": 2, "val": 1}, "new": {"train": 12, "val": 4}}
"""A class."""
BUFFER = BASE * IMAGES["base"]["train"]
TESTED = BASE * IMAGES["base"]["val"] + NEW * IMAGES["new"]["val"]
PHOTOGRAPH = (375, 500)
"""Height and width of the files, in pixels."""


def make_workload(folder: Path, model: str, top_blocks: int, threads: int, seed: int) -> None:
    """Write photographs, weights, feature caches, and the pixels as they enter the network."""
    import timm
    import torch
    from safetensors.torch import save_file

    from clinit.extract.backbone import BackboneConfig
    from clinit.extract.run import ExtractConfig, extract
    from clinit.extract.scan import scan
    from clinit.headtrain.top.cut import block_names
    from clinit.headtrain.top.images import open_side, reload_backbone
    from clinit.headtrain.top.lora import layers

    torch.manual_seed(seed)
    torch.set_num_threads(threads)
    network = timm.create_model(model, num_classes=BASE)
    weights = folder / "weights.safetensors"
    names = [f"base{number:02}" for number in range(BASE)]
    save_file(network.state_dict(), weights, metadata={"class_names": json.dumps(names)})
    config = ExtractConfig(backbone=BackboneConfig(name=model, weights=weights))
    pixels: dict[str, list[np.ndarray]] = {"train": [], "val": []}
    labels: dict[str, list[np.ndarray]] = {"train": [], "val": []}
    for side, first, classes in (("base", 0, BASE), ("new", BASE, NEW)):
        write_photographs(folder / side, side, classes, seed)
        manifests = {split: scan("folder", folder / side, split).manifest for split in pixels}
        list(extract(manifests, folder / side, folder / "caches" / side, config))
        opened = open_side(folder / "caches" / side, None, option="--root")
        _, transform = reload_backbone(opened, weights, "cpu")
        for split, manifest in manifests.items():
            pixels[split].append(decoded(folder / side, manifest.table["path"], transform))
            labels[split].append(manifest.table["label"].to_numpy() + first)
    for split in pixels:
        np.save(folder / f"{split}_x.npy", np.concatenate(pixels[split]))
        np.save(folder / f"{split}_y.npy", np.concatenate(labels[split]).astype(np.int64))
    blocks = block_names(network)[-top_blocks:]
    facts = {
        "base": BASE,
        "classes": BASE + NEW,
        "blocks": blocks,
        "layer": layers(network, blocks)[0],
        "size": transform.crop,
        "mean": transform.mean,
        "std": transform.std,
    }
    (folder / "workload.json").write_text(json.dumps(facts))


def write_photographs(root: Path, prefix: str, classes: int, seed: int) -> None:
    """Write JPEG files of smooth noise with grain, about as large as photographs are."""
    from PIL import Image

    rng = np.random.default_rng(seed)
    height, width = PHOTOGRAPH
    for split, number in ((s, n) for s in IMAGES[prefix] for n in range(classes)):
        folder = root / split / f"{prefix}{number:02}"
        folder.mkdir(parents=True)
        for image in range(IMAGES[prefix][split]):
            coarse = rng.integers(0, 256, (12, 16, 3), dtype=np.uint8)
            smooth = np.asarray(Image.fromarray(coarse).resize((width, height)), np.float32)
            grain = rng.normal(scale=10, size=(height, width, 1))
            grained = (smooth + grain).clip(0, 255).astype(np.uint8)
            Image.fromarray(grained).save(folder / f"{image}.jpg", quality=90)


def decoded(root: Path, paths: Iterable[str], transform: Any) -> np.ndarray:
    """Return the pixels of files, as clinit reads them."""
    from clinit.extract.loader import load_batches

    files = list(paths)
    (batch,) = load_batches(root, files, [range(len(files))], transform, workers=2)
    pixels: np.ndarray = batch.pixels.numpy()
    return pixels


if __name__ == "__main__":
    make_workload(Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:]))
