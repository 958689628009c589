"""The workload of `benchmarks/top_blocks.py`: writing it, and reading it in the contenders.

    python top_blocks_workload.py FOLDER MODEL TOP_BLOCKS THREADS SEED

The script writes photographs, weights, feature caches, and the pixels as they enter the network. It
is a separate process, so that its memory is free when the contenders run.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Numbers of classes and of photographs per class."""

    base: int = 64
    new: int = 16
    base_train: int = 2
    base_val: int = 1
    new_train: int = 12
    new_val: int = 4
    photograph: tuple[int, int] = (375, 500)
    """Height and width of the files, in pixels."""
    distinct: int = 1000
    """Maximum number of different photographs of a side; further ones are repetitions."""

    @property
    def images(self) -> dict[str, dict[str, int]]:
        """Photographs per class, by side and split."""
        return {
            "base": {"train": self.base_train, "val": self.base_val},
            "new": {"train": self.new_train, "val": self.new_val},
        }

    @property
    def buffer(self) -> int:
        """Number of training rows of the base classes, which are all in the buffer."""
        return self.base * self.base_train

    @property
    def tested(self) -> int:
        """Number of validation rows."""
        return self.base * self.base_val + self.new * self.new_val


SIZE = Size()


class TopBlocksWorkload:
    """Images of base and new classes, and a network with a head for the base."""

    def __init__(self, folder: Path, options: dict[str, Any]) -> None:
        self.folder, self.options = folder, options
        self.facts = json.loads((folder / "workload.json").read_text())
        self.base, self.classes = self.facts["base"], self.facts["classes"]
        self.batch, self.steps = options["batch"], options["steps"]

    def network(self) -> Any:
        """Return the pretrained network with a head for all classes, frozen."""
        import timm
        import torch
        from safetensors.torch import load_file

        network = timm.create_model(self.options["model"], num_classes=self.base)
        network.load_state_dict(load_file(self.folder / "weights.safetensors"))
        old = network.get_classifier()
        network.reset_classifier(self.classes)
        with torch.no_grad():
            network.get_classifier().weight[: self.base] = old.weight
            network.get_classifier().bias[: self.base] = old.bias
        return network.eval().requires_grad_(False).to(self.options["device"])

    def images(self, split: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the normalised images of `train` or `val` in float32, and their labels."""
        import torch

        pixels = torch.from_numpy(np.load(self.folder / f"{split}_x.npy"))
        mean, std = (torch.tensor(self.facts[key]).view(3, 1, 1) for key in ("mean", "std"))
        images = pixels.float().div_(255).sub_(mean).div_(std)
        return images, torch.from_numpy(np.load(self.folder / f"{split}_y.npy"))


def make_workload(
    folder: Path,
    size: Size,
    *,
    model: str,
    top_blocks: int,
    seed: int,
    device: str = "cpu",
    workers: int = 2,
    with_pixels: bool = True,
) -> None:
    """Write photographs, weights, feature caches, and the pixels as they enter the network.

    Args:
        folder: Folder to write to.
        size: Numbers of classes and photographs.
        model: Network of timm; its weights are random.
        top_blocks: Number of blocks that will be trained.
        seed: Seed of weights and photographs.
        device: Device that extracts features.
        workers: Number of threads that decode.
        with_pixels: Whether to write decoded images too.
    """
    import timm
    import torch
    from safetensors.torch import save_file

    from clinit.extract.dataset.scan import scan
    from clinit.extract.network.backbone import BackboneConfig
    from clinit.extract.work.recorded import reload
    from clinit.extract.work.run import ExtractConfig, extract
    from clinit.headtrain.top.families import steps_of
    from clinit.headtrain.top.inputs import open_side
    from clinit.headtrain.top.network import layers

    torch.manual_seed(seed)
    network = timm.create_model(model, num_classes=size.base)
    weights = folder / "weights.safetensors"
    names = [class_name("base", number) for number in range(size.base)]
    save_file(network.state_dict(), weights, metadata={"class_names": json.dumps(names)})
    backbone = BackboneConfig(name=model, weights=weights, device=device)
    config = ExtractConfig(backbone=backbone, workers=workers)
    pixels: dict[str, list[np.ndarray]] = {"train": [], "val": []}
    labels: dict[str, list[np.ndarray]] = {"train": [], "val": []}
    for side, first in (("base", 0), ("new", size.base)):
        write_photographs(folder / side, side, size, seed)
        manifests = {split: scan("folder", folder / side, split).manifest for split in pixels}
        list(extract(manifests, folder / side, folder / "caches" / side, config))
        opened = open_side(folder / "caches" / side, None, option="--root")
        _, transform = reload(opened.cache.split("train"), weights=weights, device=device)
        for split, manifest in manifests.items() if with_pixels else ():
            pixels[split].append(decoded(folder / side, manifest.table["path"], transform))
            labels[split].append(manifest.table["label"].to_numpy() + first)
    for split in pixels if with_pixels else ():
        np.save(folder / f"{split}_x.npy", np.concatenate(pixels[split]))
        np.save(folder / f"{split}_y.npy", np.concatenate(labels[split]).astype(np.int64))
    blocks = tuple(step.block for step in steps_of(network) if step.block)[-top_blocks:]
    facts = {
        "base": size.base,
        "classes": size.base + size.new,
        "blocks": blocks,
        "layer": layers(network, blocks)[0],
        "size": transform.crop,
        "mean": transform.mean,
        "std": transform.std,
    }
    (folder / "workload.json").write_text(json.dumps(facts))


def class_name(side: str, number: int) -> str:
    """Return the name of a class."""
    return f"{side}{number:04}"


def write_photographs(root: Path, side: str, size: Size, seed: int) -> None:
    """Write JPEG files of smooth noise with grain, about as large as photographs."""
    classes, images = getattr(size, side), size.images[side]
    rng = np.random.default_rng(seed)
    made = min(size.distinct, classes * sum(images.values()))
    files = cycle([photograph(rng, *size.photograph) for _ in range(made)])
    for split, number in ((s, n) for s in images for n in range(classes)):
        folder = root / split / class_name(side, number)
        folder.mkdir(parents=True)
        for image in range(images[split]):
            (folder / f"{image}.jpg").write_bytes(next(files))


def photograph(rng: np.random.Generator, height: int, width: int) -> bytes:
    """Return the content of one JPEG file."""
    from PIL import Image

    coarse = rng.integers(0, 256, (12, 16, 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(coarse).resize((width, height)), np.float32)
    grain = rng.normal(scale=10, size=(height, width, 1))
    file = io.BytesIO()
    grained = (smooth + grain).clip(0, 255).astype(np.uint8)
    Image.fromarray(grained).save(file, "JPEG", quality=90)
    return file.getvalue()


def decoded(root: Path, paths: Iterable[str], transform: Any) -> np.ndarray:
    """Return the pixels of files, read by clinit."""
    from clinit.extract.dataset.images import ImageFiles
    from clinit.extract.work.pipeline import Decoder

    files = list(paths)
    images = ImageFiles(root, files)
    decoder = Decoder(images=images, transform=transform, workers=2)
    (batch,) = decoder.batches([range(len(files))])
    pixels: np.ndarray = batch.pixels.numpy()
    return pixels


def main() -> None:
    """Write the workload of `benchmarks/top_blocks.py`."""
    import torch

    folder, model, *numbers = sys.argv[1:]
    top_blocks, threads, seed = map(int, numbers)
    torch.set_num_threads(threads)
    make_workload(Path(folder), SIZE, model=model, top_blocks=top_blocks, seed=seed)


if __name__ == "__main__":
    main()
