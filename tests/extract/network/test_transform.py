import zlib
from typing import Any

import numpy as np
import pytest
import timm.data
import torch
from PIL import Image
from torchvision.transforms import InterpolationMode, functional as pil_functional

from clinit.extract.network.transform import Transform, make_transform, resize

CONFIG: dict[str, Any] = {"input_size": (3, 64, 64), "interpolation": "bicubic"}
CONFIG |= {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
CONFIG |= {"crop_pct": 0.875, "crop_mode": "center"}


@pytest.fixture(params=[(90, 140), (140, 90), (20, 33), (1, 1), (64, 64)])
def photograph(request: pytest.FixtureRequest) -> Image.Image:
    height, width = request.param
    small = Image.fromarray(np.random.default_rng(0).integers(0, 256, (7, 9, 3), dtype=np.uint8))
    return small.resize((width, height), Image.Resampling.BICUBIC)


def tensor(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("mode", ["center", "squash"])
def test_timm_gives_the_tensors_of_timms_own_transform(
    photograph: Image.Image, interpolation: str, mode: str
) -> None:
    config: dict[str, Any] = {**CONFIG, "interpolation": interpolation, "crop_mode": mode}
    ours = make_transform("timm", config)
    theirs = timm.data.create_transform(**config, is_training=False)
    found = ours.normalise(ours.to_input(tensor(photograph))[None])[0]
    level = 1 / 255 / 0.224  # one grey level, divided by the smallest deviation
    difference = (found - theirs(photograph)).abs()
    assert difference.max() < 2.02 * level
    assert difference.mean() < 0.1 * level


def test_paper_resizes_to_256_by_256_and_crops_224(photograph: Image.Image) -> None:
    ours = make_transform("paper", {**CONFIG, "input_size": (3, 224, 224)})
    resized = pil_functional.resize(photograph, [256, 256], InterpolationMode.BILINEAR)
    expected = tensor(pil_functional.center_crop(resized, [224, 224]))
    difference = (ours.to_input(tensor(photograph)).int() - expected.int()).abs()
    assert difference.max() <= 1
    assert difference.float().mean() < 0.005


@pytest.mark.parametrize(
    ("interpolation", "bits"), [("bilinear", 3709195866), ("bicubic", 3039114346)]
)
def test_a_resized_image_has_the_same_bits_on_any_cpu(interpolation: str, bits: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (60, 80, 3), dtype=np.uint8)
    smaller = resize(torch.from_numpy(pixels).permute(2, 0, 1), (40, 30), interpolation)
    assert zlib.crc32(smaller.contiguous().numpy().tobytes()) == bits


def test_the_input_size_scales_the_resize() -> None:
    assert make_transform("paper", CONFIG, input_size=112).resize == (128, 128)
    assert make_transform("timm", CONFIG, input_size=56).resize == 64
    assert make_transform("timm", CONFIG, input_size=56).crop == (56, 56)


@pytest.mark.parametrize("kind", ["timm", "paper"])
@pytest.mark.parametrize("mode", ["center", "squash"])
def test_a_description_gives_the_transform_back_exactly(kind: str, mode: str) -> None:
    # The mean of CLIP, which six digits do not hold, and numbers in exponent notation.
    mean, std = (0.48145466, 0.4578275, 1e-7), (1 / 3, 2.5e-11, 1.0)
    transform = make_transform(kind, {**CONFIG, "crop_mode": mode}, mean=mean, std=std)
    assert Transform.parse(transform.describe()) == transform


GOOD: dict[str, Any] = {"resize": 73, "crop": (64, 64), "interpolation": "bicubic"}
GOOD |= {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
SIDE = r"must lie in \[1, 8192\] pixels, got "


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"resize": 0}, f"resize {SIDE}"),
        ({"resize": 8193}, f"resize {SIDE}"),
        ({"resize": (64, 0)}, f"resize {SIDE}"),
        ({"crop": (64, 0)}, r"crop must lie in \[1, 4096\] pixels, got \(64, 0\)"),
        ({"crop": (4097, 64)}, "crop must lie in"),
        ({"interpolation": "nope"}, "interpolation must be one of nearest, bilinear, bicubic, got"),
        ({"mean": (0.5, 0.5, float("inf"))}, "mean must be three finite numbers, got"),
        ({"mean": (0.5, 0.5)}, "mean must be three finite numbers, got"),
        ({"std": (0.5, 0.5, 0.0)}, "std must be three positive numbers, got"),
        ({"std": (0.5, 0.5, float("nan"))}, "std must be three positive numbers, got"),
        ({"std": (0.5,) * 4}, "std must be three positive numbers, got"),
    ],
)
def test_a_transform_beyond_reason_is_refused(change: dict[str, Any], text: str) -> None:
    Transform(**GOOD)
    with pytest.raises(ValueError, match=text) as caught:
        Transform(**GOOD | change)
    assert len(str(caught.value)) < 200
