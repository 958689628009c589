"""What the pages name: small images, caches of them, runs, and a model."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from PIL import Image
from safetensors.torch import save_file

import clinit
from clinit.headtrain.model.export import export_model

MODEL = "convnextv2_atto"
ARGUMENTS: dict[str, Any] = {"depths": (1, 1, 1, 1), "dims": (4, 8, 8, 12)}
BASE = ("0", "1", "2", "3")
NEW = ("bridge", "harbour", "meadow", "orchard", "quarry", "viaduct")
LATER = ("lighthouse", "windmill")
COUNTS = {"train": 8, "val": 4}


def prepare(folder: Path) -> None:
    """Fill a folder."""
    write_images(folder / "digits", BASE)
    write_images(folder / "new", NEW)
    write_images(folder / "photographs", LATER)
    shutil.copytree(folder / "photographs" / "val", folder / "test-photographs")
    for name, digit in (("horn", "0"), ("iceberg", "1"), ("holiday", "2")):
        shutil.copy(folder / "digits" / "val" / digit / "0.png", folder / f"{name}.jpg")
    weights = write_weights(folder / "weights.safetensors")
    for side, images in (("base", "digits"), ("new", "new")):
        clinit.extract_features(
            folder / images,
            folder / "caches" / side,
            MODEL,
            device="cpu",
            weights=weights,
            model_args=ARGUMENTS,
            input_size=32,
        )
    for name, side in (("imagenet1k", "base"), ("places365", "new")):
        shutil.copytree(folder / "caches" / side, folder / "caches" / name)
    base, new = (clinit.load_cache(folder / "caches" / side) for side in ("base", "new"))
    settings = {"tasks": 2, "iterations": 8, "eval_every": 4, "batch_size": 4, "device": "cpu"}
    starts = [settings | {"init": init} for init in ("random", "least-square")]
    clinit.train(base, new, starts, out=folder / "runs")
    export_model(folder / "runs" / "least-square-calibrated", folder / "scenes")


def write_images(root: Path, classes: tuple[str, ...]) -> None:
    """Write images of one colour per class, with noise."""
    for name in classes:
        rng = np.random.default_rng(sum(name.encode()))
        colour = rng.integers(60, 196, 3)
        for split, count in COUNTS.items():
            folder = root / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = (colour + rng.integers(-50, 50, (32, 32, 3))).astype(np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.png")


def write_weights(path: Path) -> Path:
    """Write a network that has learnt nothing."""
    torch.manual_seed(5)
    network = timm.create_model(MODEL, num_classes=len(BASE), **ARGUMENTS)
    for parameter in network.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    save_file(network.state_dict(), path, metadata={"class_names": json.dumps(BASE)})
    return path
