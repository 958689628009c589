from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

TINY_MODEL = "convnextv2_atto"
TINY_ARGS: dict[str, Any] = {"depths": (1, 1, 1, 1), "dims": (4, 8, 8, 12)}


@pytest.fixture(autouse=True)
def _skip_without_gpu(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")


@pytest.fixture(scope="session")
def tiny_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights of a ConvNeXtV2 of 12 features and the three classes a, b, c."""
    import timm
    from safetensors.torch import save_file

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        network = timm.create_model(TINY_MODEL, num_classes=3, **TINY_ARGS)
        for parameter in network.parameters():
            parameter.data += 0.3 * torch.randn_like(parameter)
    path = tmp_path_factory.mktemp("weights") / "tiny.safetensors"
    save_file(network.state_dict(), path, metadata={"class_names": '["a", "b", "c"]'})
    return path


@pytest.fixture
def make_tree(tmp_path: Path) -> Callable[..., Path]:
    """Write `root/<split>/<class>/<number>.png`, seeded noise of 40 x 36 pixels."""

    def make(name: str = "images", *, classes: str = "abc", train: int = 5, val: int = 2) -> Path:
        root = tmp_path / name
        rng = np.random.default_rng(len(name))
        for split, count in (("train", train), ("val", val)):
            for class_name in classes:
                folder = root / split / class_name
                folder.mkdir(parents=True)
                for number in range(count):
                    pixels = rng.integers(0, 256, (36, 40, 3), dtype=np.uint8)
                    Image.fromarray(pixels).save(folder / f"{number}.png")
        return root

    return make
