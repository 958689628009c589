from pathlib import Path

import pytest

from clinit.headtrain.model.export import Export
from clinit.headtrain.model.model import Model, load_model
from clinit.headtrain.model.predict import find_images


@pytest.fixture(scope="module")
def model(tiny_onnx: Export) -> Model:
    return load_model(tiny_onnx.path, device="cpu")


@pytest.fixture(scope="module")
def images(tiny_run: Path) -> list[Path]:
    return find_images([tiny_run.parent / side / "val" for side in ("base", "new")])
