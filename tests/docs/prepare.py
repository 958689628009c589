"""What the pages name: small images, caches of them, runs, and a model."""

import shutil
from pathlib import Path

import clinit
from clinit.headtrain.model.export import export_model
from tests.conftest import TINY_ARGS, TINY_MODEL, write_images, write_weights

BASE = ("0", "1", "2", "3")
NEW = ("bridge", "harbour", "meadow", "orchard", "quarry", "viaduct")
LATER = ("lighthouse", "windmill")


def prepare(folder: Path) -> None:
    """Fill a folder."""
    for name, classes in (("digits", BASE), ("new", NEW), ("photographs", LATER)):
        write_images(folder / name, classes, train=8, val=4)
    shutil.copytree(folder / "photographs" / "val", folder / "test-photographs")
    for name, digit in (("horn", "0"), ("iceberg", "1"), ("holiday", "2")):
        shutil.copy(folder / "digits" / "val" / digit / "0.png", folder / f"{name}.jpg")
    weights = write_weights(folder / "weights.safetensors", classes=BASE)
    for side, images in (("base", "digits"), ("new", "new")):
        clinit.extract_features(
            folder / images,
            folder / "caches" / side,
            TINY_MODEL,
            device="cpu",
            weights=weights,
            model_args=TINY_ARGS,
            input_size=32,
        )
    for name, side in (("imagenet1k", "base"), ("places365", "new")):
        shutil.copytree(folder / "caches" / side, folder / "caches" / name)
    base, new = (clinit.load_cache(folder / "caches" / side) for side in ("base", "new"))
    settings = {"tasks": 2, "iterations": 8, "eval_every": 4, "batch_size": 4, "device": "cpu"}
    starts = [settings | {"init": init} for init in ("random", "least-square")]
    clinit.train(base, new, starts, out=folder / "runs")
    export_model(folder / "runs" / "least-square-calibrated", folder / "scenes")
