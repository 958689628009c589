import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from clinit.errors import MachineError, ManifestError
from clinit.extract.dataset.images import ImageFiles
from clinit.extract.network.transform import Transform
from clinit.extract.views import View
from clinit.extract.work.pipeline import ImageBatch, load_batches

TRANSFORM = Transform(
    resize=36, crop=(32, 32), interpolation="bilinear", mean=(0.5,) * 3, std=(0.5,) * 3
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for number in range(5):
        pixels = rng.integers(0, 256, (40, 50, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
    return tmp_path


def load(root: Path, **options: Any) -> list[ImageBatch]:
    sizes = options.pop("sizes", None)
    images = ImageFiles(root, [f"{number}.png" for number in range(5)], sizes)
    settings = {"workers": 2} | options
    return list(load_batches(images, [range(0, 3), range(3, 5)], TRANSFORM, **settings))


def test_sizes_are_compared_and_an_unknown_one_is_not(root: Path) -> None:
    sizes = [(root / f"{number}.png").stat().st_size for number in range(5)]
    assert [batch.reasons for batch in load(root, sizes=sizes)] == [{}, {}]
    assert [batch.reasons for batch in load(root, sizes=[0] * 5)] == [{}, {}]
    for row in range(5):
        wrong = [size + (place == row) for place, size in enumerate(sizes)]
        text = rf"{row}\.png has {sizes[row]:,} bytes, the manifest says {sizes[row] + 1:,}"
        with pytest.raises(ManifestError, match=text):
            load(root, sizes=wrong)


def test_an_image_that_is_too_large_is_one_bad_image(root: Path) -> None:
    Image.new("RGB", (60, 70)).save(root / "1.png")
    first, second = load(root, max_pixels=2000)
    assert first.reasons == {1: "too large: 60 x 70 pixels, more than the 2,000 of --max-pixels"}
    assert second.reasons == {}
    assert not first.pixels[1].any()


def test_a_thin_image_that_resizing_would_make_huge_is_one_bad_image(root: Path) -> None:
    Image.new("RGB", (1, 60_000)).save(root / "1.png")
    first, _ = load(root, max_pixels=10_000_000)
    assert first.reasons == {
        1: "too large: 36 x 2,160,000 pixels after resizing, more than the 10,000,000 of"
        " --max-pixels"
    }
    assert load(root, view=View.of(TRANSFORM, seed=0, number=0))[0].reasons == {}


@pytest.mark.parametrize(
    ("where", "error"),
    [
        ("clinit.extract.work.pipeline.decode", MemoryError()),
        (
            "clinit.extract.dataset.decode.decode_image",
            RuntimeError("can't allocate memory: 36 bytes"),
        ),
        (
            "clinit.extract.network.transform.interpolate",
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1"),
        ),
    ],
)
def test_want_of_memory_stops_everything_and_names_the_image(
    root: Path, monkeypatch: pytest.MonkeyPatch, where: str, error: Exception
) -> None:
    def fail(*args: object, **kwargs: object) -> object:
        raise error

    monkeypatch.setattr(where, fail)
    with pytest.raises(MachineError, match=r"^not enough memory to decode .*/0\.png$") as caught:
        load(root)
    assert caught.value.remedy.startswith("Free memory, give fewer --workers")
    assert caught.value.remedy.endswith("`clinit extract` resumes.")


@pytest.mark.parametrize("what", ["pixels", "thread"])
def test_want_of_memory_for_batches_and_threads_stops_everything(
    root: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    def no_memory(*args: object, **kwargs: object) -> torch.Tensor:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    def no_thread(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    if what == "pixels":
        monkeypatch.setattr(torch, "zeros", no_memory)
    else:
        monkeypatch.setattr(threading.Thread, "start", no_thread)
    with pytest.raises(MachineError, match="not enough memory to decode"):
        load(root)


@pytest.mark.parametrize(
    "error",
    [
        ImportError("Failed to load the HEIC decoding library."),
        OSError("Could not load this library: libtorchcodec_image.so"),
    ],
)
def test_a_decoder_that_is_not_installed_stops_everything(
    root: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*args: object, **kwargs: object) -> object:
        raise error

    monkeypatch.setattr("clinit.extract.dataset.decode.decode_image", fail)
    with pytest.raises(MachineError, match=r"cannot decode .*0\.png: .*load") as caught:
        load(root)
    assert caught.value.remedy.startswith("Install what is missing")
