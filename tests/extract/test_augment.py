import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as pil_functional
from torchvision.transforms.v2 import RandomResizedCrop

from clinit.extract.network.transform import make_transform
from clinit.extract.views import Box, View, crop_box

CONFIG: dict[str, Any] = {
    "input_size": (3, 64, 64),
    "interpolation": "bicubic",
    "mean": (0.5,),
    "std": (0.5,),
    "crop_pct": 0.875,
}
VIEW = View((64, 48), "bicubic", seed=3, number=1)
SHAPES = [(100, 100), (36, 40), (40, 36), (375, 500), (1, 1), (2, 3), (10, 300), (300, 10), (7, 10)]


def image(height: int, width: int) -> torch.Tensor:
    rng = np.random.default_rng(height * width)
    return torch.from_numpy(rng.integers(0, 256, (3, height, width), dtype=np.uint8))


def naive_box(height: int, width: int, draws: Iterator[float]) -> tuple[int, int, int, int]:
    """The procedure in the words of its description, a step at a time."""
    for _ in range(10):
        share = 0.08 + 0.92 * next(draws)
        log_aspect = math.log(3 / 4) + (math.log(4 / 3) - math.log(3 / 4)) * next(draws)
        aspect = math.exp(log_aspect)
        w = round((height * width * share * aspect) ** 0.5)
        h = round((height * width * share / aspect) ** 0.5)
        if w == 0 or h == 0 or w > width or h > height:
            continue
        tops, lefts = list(range(height - h + 1)), list(range(width - w + 1))
        return tops[int(next(draws) * len(tops))], lefts[int(next(draws) * len(lefts))], h, w
    h, w = height, width
    if width / height > 4 / 3:
        w = round(height * 4 / 3)
    elif width / height < 3 / 4:
        h = round(width * 4 / 3)
    return (height - h) // 2, (width - w) // 2, h, w


def recorded(seed: int) -> tuple[Callable[[], float], list[float]]:
    rng, drawn = np.random.default_rng(seed), []

    def draw() -> float:
        drawn.append(rng.random())
        return drawn[-1]

    return draw, drawn


@pytest.mark.parametrize(("height", "width"), SHAPES)
def test_boxes_are_those_of_the_naive_procedure(height: int, width: int) -> None:
    for seed in range(200):
        draw, drawn = recorded(seed)
        found = crop_box(height, width, draw)
        steps = iter(drawn)
        assert found == Box(*naive_box(height, width, steps))
        assert next(steps, None) is None, "as many numbers are drawn as are needed"


@pytest.mark.parametrize(("height", "width"), SHAPES)
@pytest.mark.parametrize("extreme", [0.0, 1 - 2**-53])
def test_boxes_lie_within_the_image_whatever_is_drawn(
    height: int, width: int, extreme: float
) -> None:
    boxes = [crop_box(height, width, np.random.default_rng(i).random) for i in range(200)]
    for box in [*boxes, crop_box(height, width, lambda: extreme)]:
        assert 0 <= box.top < box.top + box.height <= height
        assert 0 <= box.left < box.left + box.width <= width


def test_a_long_image_is_cropped_in_its_middle() -> None:
    assert crop_box(30, 3_000, np.random.default_rng(0).random) == Box(0, 1_480, 30, 40)
    assert crop_box(3_000, 30, np.random.default_rng(0).random) == Box(1_480, 0, 40, 30)


@pytest.mark.parametrize(("height", "width"), [(375, 500), (100, 60)])
def test_boxes_are_distributed_like_those_of_torchvision(height: int, width: int) -> None:
    number = 4_000
    theirs = RandomResizedCrop(64)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        pixels = torch.zeros(3, height, width, dtype=torch.uint8)
        drawn = [theirs.make_params([pixels]) for _ in range(number)]
    expected = np.array([[d["top"], d["left"], d["height"], d["width"]] for d in drawn])
    draw = np.random.default_rng(0).random
    boxes = [crop_box(height, width, draw) for _ in range(number)]
    found = np.array([[b.top, b.left, b.height, b.width] for b in boxes])
    for quantile in (0.1, 0.5, 0.9):
        difference = np.quantile(found, quantile, axis=0) - np.quantile(expected, quantile, axis=0)
        assert (np.abs(difference) <= 0.04 * np.array([height, width, height, width])).all()


def test_pixels_are_those_of_pillow_cropped_resized_and_mirrored() -> None:
    flips = 0
    for row in range(12):
        pixels = image(90, 140)
        draw = np.random.default_rng([3, 1, row]).random
        box = crop_box(90, 140, draw)
        picture = Image.fromarray(pixels.permute(1, 2, 0).numpy())
        expected = pil_functional.resized_crop(
            picture,
            box.top,
            box.left,
            box.height,
            box.width,
            [64, 48],
            interpolation=InterpolationMode.BICUBIC,
        )
        if draw() < 0.5:
            expected = pil_functional.hflip(expected)
            flips += 1
        shown = torch.from_numpy(np.array(expected)).permute(2, 0, 1)
        difference = (VIEW.to_input(pixels, row).int() - shown.int()).abs()
        assert difference.max() <= 2
        assert difference.float().mean() < 0.1
    assert 0 < flips < 12


def test_half_of_the_images_are_mirrored() -> None:
    half = torch.cat([torch.zeros(3, 8, 4), torch.full((3, 8, 4), 255.0)], dim=2).byte()
    view = View((8, 8), "bilinear", seed=0, number=0)
    shown = [view.to_input(half, row).float().mean(dim=(0, 1)) for row in range(1_000)]
    steps = [float(columns[0] - columns[-1]) for columns in shown]
    seen = [step for step in steps if step != 0]  # the crop reaches into both halves
    assert len(seen) > 700
    assert sum(step > 0 for step in seen) / len(seen) == pytest.approx(0.5, abs=0.06)


def test_a_view_follows_from_seed_number_and_row_alone() -> None:
    pixels = image(90, 140)
    views = {
        (seed, number, row): View((32, 32), "bilinear", seed, number).to_input(pixels, row)
        for seed in (0, 1)
        for number in (0, 1)
        for row in (0, 1, 2)
    }
    for key, found in views.items():
        seed, number, row = key
        again = View((32, 32), "bilinear", seed, number).to_input(pixels, row)
        assert torch.equal(found, again)
        others = [other for name, other in views.items() if name != key]
        assert not any(torch.equal(found, other) for other in others)


def test_a_view_has_the_size_and_interpolation_of_the_plain_images() -> None:
    view = View.of(make_transform("timm", CONFIG), seed=5, number=2)
    assert view == View((64, 64), "bicubic", 5, 2)
    assert view.to_input(image(33, 20), 0).shape == (3, 64, 64)
    assert view.describe() == (
        "random resized crop 64x64 bicubic antialias, area 0.08 to 1, aspect 3/4 to 4/3, flip 0.5"
    )


@pytest.mark.parametrize(
    ("seed", "number", "message"),
    [(-1, 0, "seed must lie in"), (2**32, 0, "seed must lie in"), (0, -1, "number must be at")],
)
def test_a_wrong_seed_or_number_is_refused(seed: int, number: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        View((8, 8), "bilinear", seed, number)
