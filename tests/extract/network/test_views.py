import math
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from torchvision.transforms import InterpolationMode, functional as pil_functional

from clinit.errors import CacheError, ManifestError
from clinit.extract.cache.read import open_cache
from clinit.extract.dataset.decode import decode
from clinit.extract.network.transform import Box, View, crop_box, make_transform
from clinit.extract.work.run import ExtractConfig
from tests.conftest import TINY_ARGS, TINY_MODEL
from tests.extract.work.made import extracted, files, tiny_config


@pytest.fixture
def config(tiny_weights: Path) -> ExtractConfig:
    return tiny_config(tiny_weights, views=2)


def test_a_view_holds_the_features_of_the_cropped_images(
    make_tree: Callable[..., Path], config: ExtractConfig, tiny_weights: Path, tmp_path: Path
) -> None:
    root = make_tree()
    extracted(root, tmp_path / "cache", replace(config, dtype="float32", view_seed=9))
    network = timm.create_model(
        TINY_MODEL, num_classes=3, checkpoint_path=str(tiny_weights), **TINY_ARGS
    )
    network.eval()
    transform = make_transform("timm", timm.data.resolve_model_data_config(network), input_size=32)
    cache = open_cache(tmp_path / "cache")
    assert [view.path.name for view in cache.views] == ["0", "1"]
    for number, split in enumerate(cache.views):
        view, loaded = View((32, 32), transform.interpolation, seed=9, number=number), split.load()
        for row, path in enumerate(cache.split("train").manifest.table["path"]):
            pixels = view.to_input(decode((root / path).read_bytes()), row)
            with torch.no_grad():
                batch = transform.normalise(pixels[None])
                expected = network.forward_head(network.forward_features(batch), pre_logits=True)  # type: ignore[operator]
            np.testing.assert_allclose(loaded.features[row], expected[0], rtol=1e-4, atol=1e-5)


def test_the_same_seed_gives_the_same_bits_and_another_does_not(
    make_tree: Callable[..., Path], config: ExtractConfig, tmp_path: Path
) -> None:
    root = make_tree()
    extracted(root, tmp_path / "cache", config)
    extracted(root, tmp_path / "again", replace(config, workers=5))
    assert files(tmp_path / "again") == files(tmp_path / "cache")
    extracted(root, tmp_path / "batches", replace(config, batch_size=3, dtype="float32"))
    extracted(root, tmp_path / "other", replace(config, view_seed=1))
    names = ("cache", "batches", "other")
    one, batches, other = (open_cache(tmp_path / n).views[1].load().features for n in names)
    np.testing.assert_allclose(one, batches, rtol=1e-3, atol=1e-4)
    assert not (one == other).all(axis=1).any()


def test_views_are_added_to_a_finished_cache_and_only_the_missing_ones_are_computed(
    make_tree: Callable[..., Path], config: ExtractConfig, tmp_path: Path
) -> None:
    root, out = make_tree(), tmp_path / "cache"
    computed = [
        [result.computed_rows for result in extracted(root, out, replace(config, views=views))]
        for views in (0, 1, 3, 2)
    ]
    assert computed == [[15, 6], [0, 0, 15], [0, 0, 0, 15, 15], [0, 0, 0, 0]]
    assert len(open_cache(out).views) == 3
    extracted(root, tmp_path / "whole", replace(config, views=3))
    assert files(out) == files(tmp_path / "whole")


def test_what_the_views_cannot_be_made_of_is_refused_before_anything_is_computed(
    make_tree: Callable[..., Path], config: ExtractConfig, tmp_path: Path
) -> None:
    root, out = make_tree(), tmp_path / "cache"
    with pytest.raises(ManifestError, match="training images, but only val"):
        extracted(root, out, config, splits=("val",))
    with pytest.raises(ValueError, match=r"views takes an integer \(at least 0"):
        replace(config, views=-1)
    extracted(root, out, config)
    shutil.rmtree(out / "val")
    with pytest.raises(CacheError, match=r"views/0 was begun with view_seed = 0, but this"):
        extracted(root, out, replace(config, view_seed=1, views=3))
    assert not (out / "val").exists()


def test_a_view_that_is_not_of_the_train_split_beside_it_is_refused(
    make_tree: Callable[..., Path], config: ExtractConfig, tmp_path: Path
) -> None:
    root, out = make_tree(), tmp_path / "cache"
    extracted(root, out, config)
    for name, changed in (("transform", {"transform": "paper"}), ("seed", {"view_seed": 1})):
        extracted(root, tmp_path / name, replace(config, **changed))
    extracted(make_tree("others", classes="xyz"), tmp_path / "manifest", config)
    second, first = out / "views" / "1", tmp_path / "first"
    shutil.copytree(out / "views" / "0", first)
    for origin, message in (
        (tmp_path / "transform/views/1", "features have transform = resize 37x37"),
        (tmp_path / "manifest/views/1", "features have manifest ="),
        (tmp_path / "seed/views/1", "view_seed = 1, expected view_seed = 0"),
        (first, "view = 0, expected view = 1"),
        (out / "train", "augmentation = nothing, expected augmentation = random resized crop"),
    ):
        shutil.rmtree(second)
        shutil.copytree(origin, second)
        with pytest.raises(CacheError, match=f"views/1.* {message}"):
            _ = open_cache(out).views
    with pytest.raises(CacheError) as caught:
        open_cache(second)
    assert caught.value.remedy == f"Give its parent folder, {out}."


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
        found, steps = crop_box(height, width, draw), iter(drawn)
        assert found == Box(*naive_box(height, width, steps))
        assert next(steps, None) is None, "as many numbers are drawn as are needed"
        for box in (found, crop_box(height, width, lambda: 0.0)):
            assert 0 <= box.top < box.top + box.height <= height
            assert 0 <= box.left < box.left + box.width <= width


def test_pixels_are_those_of_pillow_cropped_resized_and_mirrored() -> None:
    flips = 0
    for row in range(12):
        pixels, draw = image(90, 140), np.random.default_rng([3, 1, row]).random
        box, picture = crop_box(90, 140, draw), Image.fromarray(pixels.permute(1, 2, 0).numpy())
        expected = pil_functional.resized_crop(
            picture,
            *(box.top, box.left, box.height, box.width, [64, 48]),
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
