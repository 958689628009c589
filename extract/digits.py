"""Data of `clinit demo`: handwritten digits as PNG files, and a network trained on some of them.

The demo works offline, as scikit-learn contains the 1,797 images of 8 x 8 pixels (E. Alpaydin and
C. Kaynak, "Optical Recognition of Handwritten Digits", UCI, 1998). They are enlarged to 32 x 32.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import timm
import timm.data
import torch
from PIL import Image
from safetensors.torch import save
from torch.nn.functional import cross_entropy

from clinit.extract.dataset.images import images_of
from clinit.extract.dataset.manifest import Manifest
from clinit.extract.network.transform import make_transform
from clinit.extract.work.pipeline import Decoder
from clinit.files.commit import commit_file
from clinit.machine import cpu_count

MODEL, EPOCHS = "convnextv2_atto", 12
MODEL_ARGS: Mapping[str, Any] = {"depths": (1, 1, 2, 1), "dims": (16, 32, 64, 128)}
SIDE = 32
_VAL_EVERY = 3
"""Every third image of a digit goes to the validation split."""


def write_digits(root: Path, digits: Iterable[int]) -> int:
    """Write `root/{train,val}/<digit>/<number>.png`; return the number of images."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    written = 0
    for digit in digits:
        for rank, index in enumerate(np.flatnonzero(labels == digit)):
            split = "val" if rank % _VAL_EVERY == 0 else "train"
            pixels = np.rint(images[index].reshape(8, 8) * (255 / 16)).astype(np.uint8)
            folder = root / split / str(digit)
            folder.mkdir(parents=True, exist_ok=True)
            picture = Image.fromarray(pixels).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
            picture.save(folder / f"{index:04d}.png")
            written += 1
    return written


def pretrain(manifest: Manifest, root: Path, path: Path) -> None:
    """Train `MODEL` of timm from scratch and write its weights with the class names.

    Uses AdamW with a one-cycle learning rate on randomly shifted images, which are all in memory.

    Args:
        manifest: Images and labels.
        root: The folder that the paths of the manifest start from.
        path: The safetensors file to write.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = timm.create_model(MODEL, num_classes=len(manifest.class_names), **MODEL_ARGS)
        config = timm.data.resolve_model_data_config(network)
        transform = make_transform("timm", config, input_size=SIDE)
        rows = [range(len(manifest.table))]
        found = images_of(manifest.table, root)
        decoder = Decoder(images=found, transform=transform, workers=cpu_count())
        (images,) = decoder.batches(rows)
        labels = torch.from_numpy(manifest.table["label"].to_numpy().copy())
        pixels = transform.normalise(images.pixels)
        steps = EPOCHS * -(-len(labels) // 64)
        optimizer = torch.optim.AdamW(network.parameters(), lr=2e-3, weight_decay=0.05)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps)
        network.train()
        for _ in range(EPOCHS):
            for chosen in torch.randperm(len(labels)).split(64):
                shift = torch.randint(-3, 4, (2,)).tolist()
                batch = torch.roll(pixels[chosen], shift, dims=(2, 3))
                loss = cross_entropy(network(batch), labels[chosen], label_smoothing=0.1)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
    metadata = {"class_names": json.dumps(manifest.class_names)}
    state = {key: tensor.contiguous() for key, tensor in network.state_dict().items()}
    commit_file(path, lambda draft: draft.write_bytes(save(state, metadata=metadata)))
