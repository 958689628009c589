from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from clinit.extract.backbone import BackboneConfig
from clinit.extract.run import ExtractConfig, extract
from clinit.extract.scan import scan


@pytest.fixture(scope="session")
def whole(tiny_weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of two splits and two views, beside its images."""
    folder = tmp_path_factory.mktemp("whole")
    rng = np.random.default_rng(0)
    for split, count in (("train", 5), ("val", 2)):
        for name in "abc":
            (folder / "images" / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = rng.integers(0, 256, (36, 40, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / "images" / split / name / f"{number}.png")
    args = {"depths": (1, 1, 1, 1), "dims": (4, 8, 8, 12)}
    backbone = BackboneConfig(name="convnextv2_atto", weights=tiny_weights, model_args=args)
    config = ExtractConfig(backbone=backbone, input_size=32, batch_size=4, shard_rows=6, views=2)
    manifests = {
        split: scan("folder", folder / "images", split).manifest for split in ("train", "val")
    }
    list(extract(manifests, folder / "images", folder / "cache", config))
    return folder / "cache"


@pytest.fixture
def cache(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "cache"))
