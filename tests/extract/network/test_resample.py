from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from clinit.extract.network import resample as module
from clinit.extract.network.resample import resample
from clinit.extract.network.transform import Transform, View
from tests.twin import CUDA, Machine, twin

__all__ = ["twin"]
RANDOM = np.random.default_rng(0)
SIZES = [*RANDOM.integers(1, 400, (20, 2)).tolist(), [1, 1], [2, 3], [20, 900], [900, 20], [64, 64]]
NOISE = [torch.from_numpy(RANDOM.integers(0, 256, (3, *s), dtype=np.uint8)) for s in SIZES]
IMAGES = [each if row % 2 else each // 2 + 64 for row, each in enumerate(NOISE)]
TRANSFORMS = [
    Transform(resize=resize, crop=crop, interpolation=mode, mean=(0.5,) * 3, std=(0.5,) * 3)
    for mode in ("nearest", "bilinear", "bicubic")
    for resize, crop in ((73, (64, 64)), ((73, 90), (64, 75)), (50, (63, 64)), (64, (64, 64)))
]
VIEWS = [View((64, 48), mode, seed=3, number=1) for mode in ("bilinear", "bicubic")]


def together(given: Transform | View, images: list[Tensor] = IMAGES) -> Tensor:
    size = given.crop if isinstance(given, Transform) else given.size
    spans = [given.spans(each.shape[1], each.shape[2], row) for row, each in enumerate(images)]
    found = images[0].new_empty((len(images), 3, *size))
    for places, inputs in resample(images, spans, size, given.interpolation):
        found[torch.tensor(places, device=found.device)] = inputs
    return found


def by_pytorch(image: Tensor, size: tuple[int, int], mode: str) -> Tensor:
    wide = interpolate(image[None].float(), size, mode=mode, antialias=mode != "nearest")
    return wide[0].round().clamp(0, 255).to(torch.uint8)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("given", [*TRANSFORMS, *VIEWS], ids=lambda g: g.describe()[:45])
def test_images_of_all_sizes_become_what_each_does_alone(
    given: Transform | View, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clinit.extract.network.transform.resize", by_pytorch)
    images = [image.to(device) for image in IMAGES]
    found = together(given, images)
    naive = [
        given.to_input(image, row) if isinstance(given, View) else given.to_input(image)
        for row, image in enumerate(images)
    ]
    difference = (found.int() - torch.stack(naive).int()).abs()
    assert difference.max() <= (given.interpolation != "nearest")
    assert (difference > 0).float().mean() < 3e-3  # sums halfway between two levels
    if isinstance(given, Transform):
        for image, pixels in zip(images, found, strict=True):
            assert torch.equal(together(given, [image])[0], pixels)


def test_a_huge_image_does_not_make_the_others_take_space(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, sums, taps = together(TRANSFORMS[4]), Mock(wraps=module._sums), Mock(wraps=module._taps)
    limits = {"_MOST_PIXELS": 500_000, "_MOST_SIDES": 6000}
    for name, value in (limits | {"_sums": sums, "_taps": taps}).items():
        monkeypatch.setattr(module, name, value)
    assert torch.equal(together(TRANSFORMS[4]), plain)
    for call in sums.call_args_list:
        assert len(call.args[0]) == 1 or call.args[0].numel() <= 3 * 500_000
    assert 1 < taps.call_count < sums.call_count / 2 < len(IMAGES) / 2


def test_a_device_gives_the_bits_of_the_host_in_few_launches(twin: Machine) -> None:
    plain = together(TRANSFORMS[8])
    with twin:
        images = [image.to(CUDA) for image in IMAGES]
        twin.counts.clear()
        found = together(TRANSFORMS[8], images)
        assert twin.counts["launch"] < 160
        assert torch.equal(found.cpu(), plain)
