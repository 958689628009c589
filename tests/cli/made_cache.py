from pathlib import Path

import numpy as np

from clinit.extract.cache.fingerprint import Fingerprint
from clinit.extract.cache.head import Head, write_head
from tests.headtrain.protocol.stream.made_caches import write_split

DIM, CLASSES = 8, 4


def write_cache(cache: Path, seed: int, *, bad: tuple[int, ...] = ()) -> Path:
    """Write a cache of four Gaussian classes and a head that knows them."""
    centres = 2 * np.random.default_rng(seed).normal(size=(CLASSES, DIM))
    backbone = Fingerprint({"backbone": "made", "weights": "1"})
    for split in ("train", "val"):
        write_split(cache, split, centres, 10, fingerprint=backbone, bad=bad * (split == "train"))
    names = tuple(f"{cache.name}{index}" for index in range(CLASSES))
    weight, bias = 2.5 * centres, -1.25 * (centres**2).sum(1)
    head = Head(weight.astype("f4"), bias.astype("f4"), names, backbone.backbone_identifier)
    write_head(head, cache / "head.safetensors")
    return cache
