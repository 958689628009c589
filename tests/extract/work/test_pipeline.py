import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace as replaced
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import torchcodec.decoders
from PIL import Image
from torch import Tensor, nn

from clinit.errors import ImageError, MachineError, ManifestError
from clinit.extract.dataset import decode as decode_module
from clinit.extract.dataset.images import ImageFiles
from clinit.extract.dataset.scan import scan
from clinit.extract.network.backbone import load_backbone
from clinit.extract.network.transform import Transform
from clinit.extract.work.pipeline import (
    Compute,
    Decoder,
    ImageBatch,
    Timing,
    overlapped,
    side_by_side,
)
from clinit.extract.work.run import extract, load_network
from tests.extract.work.made import tiny_backbone, tiny_config

TRANSFORM = Transform(
    resize=36, crop=(32, 32), interpolation="bilinear", mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.1)
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for number in range(5):
        pixels = rng.integers(0, 256, (40, 50, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
    return tmp_path


def load(root: Path, sizes: list[int] | None = None, **options: Any) -> list[ImageBatch]:
    images = ImageFiles(root, [f"{number}.png" for number in range(5)], sizes)
    settings: dict[str, Any] = {"workers": 2} | options
    decoder = Decoder(images=images, transform=TRANSFORM, **settings)
    return list(decoder.batches([range(0, 3), range(3, 5)]))


def test_a_device_decodes_upright_jpeg_files_and_the_host_all_others(tmp_path: Path) -> None:
    rows, columns = np.mgrid[0:40, 0:50]
    ramp = np.stack([5 * columns, 6 * rows, 2 * (rows + columns)], -1).astype(np.uint8)
    image, turned = Image.fromarray(ramp), Image.Exif()
    turned[0x0112] = 6
    made: tuple[tuple[str, Image.Image, dict[str, Any]], ...] = (
        ("rgb.jpg", image, {}),
        ("grey.jpg", image.convert("L"), {}),
        ("cmyk.jpg", image.convert("CMYK"), {}),
        ("turned.jpg", image, {"exif": turned}),
        ("rgb.png", image, {}),
    )
    for name, each, settings in made:
        each.save(tmp_path / name, **settings)
    (tmp_path / "half.jpg").write_bytes((tmp_path / "rgb.jpg").read_bytes()[:600])
    names = ["rgb.jpg", "grey.jpg", "cmyk.jpg", "turned.jpg", "rgb.png", "half.jpg"]

    sent = [decode_module.for_device((tmp_path / name).read_bytes()) for name in names[:-1]]
    assert [each is not None for each in sent] == [True, True, False, False, False]
    decoder = Decoder(images=ImageFiles(tmp_path, names, None), transform=TRANSFORM, workers=1)
    decoders = (decoder, replaced(decoder, for_device=True))
    plain, batch = (next(each.batches([range(6)])) for each in decoders)
    assert plain.finish is None
    assert batch.finish is not None
    batch.finish(batch.pixels)
    difference = (batch.pixels.int() - plain.pixels.int()).abs().float()
    assert float(difference.mean()) < 1  # of 255 steps: on a device, another decoder
    assert batch.reasons.keys() == plain.reasons.keys() == {5}


def refuses(contents: list[bytes], real: Any) -> Any:
    """Refuse one file, as a whole batch if it is among others; this was nvJPEG on an H200."""
    if any(b"bad" in each for each in contents):
        raise RuntimeError("Failed to decode batch: 3")
    return real(contents)


def lacks_memory(contents: list[bytes], real: Any) -> Any:
    if len(contents) > 1:
        raise torch.OutOfMemoryError("CUDA out of memory")
    return real(contents)


def poisoned(contents: list[bytes], real: Any) -> Any:
    """Report a file as decoded without writing into its memory."""
    return [
        image.fill_(119) if b"bad" in c else image
        for c, image in zip(contents, real(contents), strict=True)
    ]


def works(contents: list[bytes], real: Any) -> Any:
    return real(contents)


@pytest.mark.parametrize(
    ("device", "bad", "calls", "count"),
    [
        (works, [], [12], 0),
        (refuses, [2], [12] + [1] * 12, 1),
        (lacks_memory, [], [12] + [1] * 12, 0),
        (poisoned, [0], [12], 1),
        (refuses, range(12), "decodes none of 8 JPEG files", 0),
        (poisoned, [0, 1, 2], "gives wrong pixels of ", 0),
    ],
)
def test_a_file_that_a_device_gets_wrong_costs_no_other_file_its_decoder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: Any, bad: Any, calls: Any, count: int
) -> None:
    names, asked = [f"{row}.jpg" for row in range(13)], list[int]()
    real = torchcodec.decoders.decode_jpeg
    for row, name in enumerate(names):
        settings: dict[str, Any] = {"comment": b"bad"} if row in bad else {}
        side = 40 - row % 2  # the smaller ones are resized first
        Image.new("RGB", (side, side), (9 * row, 50, 60)).save(tmp_path / name, **settings)
    cut = tmp_path / names.pop()
    cut.write_bytes(cut.read_bytes()[:-2])  # an H200 decodes it; the CPU refuses it

    def decoded(files: list[Tensor], **options: Any) -> Any:
        asked.append(len(files))
        return device([bytes(each.numpy()) for each in files], lambda given: real(given, **options))

    monkeypatch.setattr(torchcodec.decoders, "decode_jpeg", decoded)
    files = ImageFiles(tmp_path, [*names, cut.name], None)
    plain = Decoder(images=files, transform=TRANSFORM, workers=1)
    (expected,) = plain.batches([range(13)])
    decoder = replaced(plain, for_device=True)
    (batch,) = decoder.batches([range(13)])
    assert batch.finish is not None
    if isinstance(calls, str):
        with pytest.raises(MachineError, match=calls):
            batch.finish(batch.pixels)
        return
    batch.finish(batch.pixels)
    assert torch.equal(batch.pixels, expected.pixels)
    assert batch.reasons.keys() == {12}
    assert (asked, decoder.retreats.total()) == (calls, count)
    asked.clear()
    monkeypatch.setattr(decode_module, "_MOST_TOGETHER", 3 * 40 * 40)
    if device is works:
        batch.finish(batch.pixels)
        assert asked == [3] * 4


@pytest.mark.gpu
def test_a_gpu_gives_the_images_of_the_cpu_and_leaves_cut_files_to_it(tmp_path: Path) -> None:
    """Its memory is poisoned, because nvJPEG calls files decoded that it has not written."""
    rng, names, cuda = np.random.default_rng(0), [], torch.device("cuda")
    kinds: list[dict[str, Any]] = [{}, {"progressive": True}, {"subsampling": 0}, {"quality": 30}]
    for number, settings in enumerate(kinds * 3):
        coarse = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8))
        names.append(f"{number}.jpg")
        coarse.resize((500, 375)).save(tmp_path / names[-1], **settings)
    for share in (0.1, 0.5, 0.99):
        content = (tmp_path / "0.jpg").read_bytes()
        names.append(f"cut {share}.jpg")
        (tmp_path / names[-1]).write_bytes(content[: int(share * len(content))])
    Image.fromarray(rng.integers(0, 256, (40, 8000, 3), dtype=np.uint8)).save(tmp_path / "wide.jpg")
    files, rows = ImageFiles(tmp_path, [*names, "wide.jpg"], None), range(16)
    plain = Decoder(images=files, transform=TRANSFORM, workers=2)
    (expected,) = plain.batches([rows])
    decoder = replaced(plain, for_device=True)
    (batch,) = decoder.batches([rows])
    assert batch.finish is not None
    poison = [torch.full((2**24,), 119, dtype=torch.uint8, device=cuda) for _ in range(16)]
    del poison
    pixels = batch.pixels.to(cuda)
    batch.finish(pixels)
    assert not any(map(decode_module.differs, pixels, expected.pixels))
    assert batch.reasons.keys() == expected.reasons.keys() == {12, 13, 14}
    assert not decoder.retreats


def test_sizes_are_compared_and_an_unknown_one_is_not(root: Path) -> None:
    sizes = [(root / f"{number}.png").stat().st_size for number in range(5)]
    assert [batch.reasons for batch in load(root, sizes)] == [{}, {}]
    assert [batch.reasons for batch in load(root, [0] * 5)] == [{}, {}]
    text = rf"4\.png has {sizes[4]:,} bytes, not {sizes[4] + 1:,}"
    with pytest.raises(ManifestError, match=text):
        load(root, [*sizes[:4], sizes[4] + 1])


NO_MEMORY = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1")


@pytest.mark.parametrize(
    ("where", "error", "match"),
    [
        ("clinit.extract.dataset.decode.decode", MemoryError(), r"not enough memory .*/0\.png$"),
        ("clinit.extract.network.transform.interpolate", NO_MEMORY, "not enough memory to decode"),
        ("torch.empty", NO_MEMORY, "not enough memory to decode"),
        ("threading.Thread.start", RuntimeError("can't start new thread"), "not enough memory"),
        (
            "torchcodec.decoders.decode_image",
            ImportError("Failed to load the HEIC decoding library."),
            r"cannot decode .*0\.png: Failed to load",
        ),
    ],
)
def test_what_the_machine_lacks_stops_everything_and_names_the_image(
    root: Path, monkeypatch: pytest.MonkeyPatch, where: str, error: Exception, match: str
) -> None:
    monkeypatch.setattr(where, Mock(side_effect=error))
    with pytest.raises(MachineError, match=match) as caught:
        load(root)
    assert "`clinit extract` resumes" in caught.value.remedy


@pytest.fixture
def compute() -> Compute:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        network = nn.Sequential(nn.Conv2d(3, 4, 4, 4), nn.GELU(), nn.Flatten(), nn.Linear(256, 5))
    return torch.no_grad()(lambda pixels: network(TRANSFORM.normalise(pixels)))


def arrive(sizes: list[int]) -> Iterator[ImageBatch]:
    """Yield batches of noise, each in memory of its own."""
    generator, start = torch.Generator().manual_seed(0), 0
    for size in sizes:
        pixels = torch.randint(0, 256, (size, 3, 32, 32), generator=generator, dtype=torch.uint8)
        yield ImageBatch(range(start, start + size), pixels, {}, 0.0, 0.0)
        start += size


def test_strict_stops_at_an_image_that_the_device_refuses(
    make_tree: Callable[..., Path],
    tiny_weights: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root, config = make_tree(), tiny_config(tiny_weights, strict=True)
    network = load_network(config)
    Image.new("RGB", (40, 36)).save(root / "train" / "a" / "9.jpg")
    whole = (root / "train" / "a" / "9.jpg").read_bytes()
    (root / "train" / "a" / "9.jpg").write_bytes(whole[:-30])
    manifests = {"train": scan("folder", root, "train").manifest}

    def late(batches: Iterable[ImageBatch], compute: Compute, *rest: Any) -> Iterator[Any]:
        for batch in batches:
            if batch.finish is not None:
                batch.finish(batch.pixels)
            yield batch, compute(batch.pixels)

    monkeypatch.setattr("clinit.extract.work.split_run.features_of", late)
    asked = replaced(config, decoder="cuda")
    with pytest.raises(ImageError, match=r"9\.jpg \(row 5\): cannot be decoded"):
        list(extract(manifests, root, tmp_path / "cache", asked, network=network))
    assert not (tmp_path / "cache" / "train" / "shard-00000.h5").exists()


@pytest.fixture
def threads() -> Iterator[int]:
    """Let PyTorch have three threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield 3
    torch.set_num_threads(before)


@pytest.mark.parametrize("sizes", [[], [4], [4, 3], [4, 4, 4, 4, 4, 4, 1]])
def test_batches_side_by_side_come_in_order_with_their_features(
    compute: Compute, threads: int, sizes: list[int]
) -> None:
    found = list(side_by_side(arrive(sizes), compute, Timing()))
    for (batch, features), expected in zip(found, arrive(sizes), strict=True):
        assert batch.rows == expected.rows
        np.testing.assert_allclose(features, compute(expected.pixels), atol=1e-6)


def test_features_have_the_same_bits_on_any_number_of_threads(tiny_weights: Path) -> None:
    backbone, normalise = load_backbone(tiny_backbone(tiny_weights)), TRANSFORM.normalise
    before, found = torch.get_num_threads(), []
    for number in (1, 2, 4):
        torch.set_num_threads(number)
        batches = side_by_side(
            arrive([8] * 5), lambda pixels: backbone.features(normalise(pixels)), Timing()
        )
        found.append(np.concatenate([features.numpy() for _, features in batches]))
    torch.set_num_threads(before)
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


def test_no_thread_is_left_where_a_batch_fails_or_the_reader_stops(
    compute: Compute, threads: int
) -> None:
    def broken(pixels: Tensor) -> Tensor:
        raise RuntimeError("the network is broken")

    with pytest.raises(RuntimeError, match="the network is broken"):
        list(side_by_side(arrive([4] * 5), broken, Timing()))
    reader = side_by_side(arrive([4] * 9), compute, Timing())
    next(reader)
    reader.close()
    assert not [each for each in threading.enumerate() if each.name.startswith("forward")]


@pytest.mark.gpu
@pytest.mark.parametrize("autocast", ["off", "bfloat16"])
def test_a_gpu_gives_the_same_bits_when_copies_overlap(tiny_weights: Path, autocast: str) -> None:
    config = tiny_backbone(tiny_weights, device="cuda", autocast=autocast)
    backbone, cuda = load_backbone(config), torch.device("cuda")
    normalise = TRANSFORM.normalise

    def compute(pixels: Tensor) -> Tensor:
        return backbone.features(normalise(pixels))

    def pinned() -> Iterator[ImageBatch]:
        for batch in arrive([64] * 20 + [7]):
            yield replaced(batch, pixels=batch.pixels.pin_memory())

    timing, plain = Timing(), [compute(batch.pixels.to(cuda)).cpu() for batch in pinned()]
    found = [features.clone() for _, features in overlapped(pinned(), compute, cuda, timing)]
    assert len(found) == len(plain) == 21
    assert all(torch.equal(a, b) for a, b in zip(found, plain, strict=True))
    assert timing.seconds["transfer"] > 0 < timing.seconds["forward"]


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_a_forward_pass_is_launched_without_waiting_for_the_gpu(tiny_weights: Path) -> None:
    backbone, cuda = load_backbone(tiny_backbone(tiny_weights, device="cuda")), torch.device("cuda")
    normalise = TRANSFORM.normalise
    backbone.features(normalise(torch.zeros(8, 3, 32, 32, dtype=torch.uint8, device=cuda)))

    def compute(pixels: Tensor) -> Tensor:
        torch.cuda.set_sync_debug_mode("error")
        try:
            return backbone.features(normalise(pixels))
        finally:
            torch.cuda.set_sync_debug_mode("default")

    batches = (replaced(b, pixels=b.pixels.pin_memory()) for b in arrive([8] * 4))
    assert len(list(overlapped(batches, compute, cuda, Timing()))) == 4
