import errno
import io
import os
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile, ImageOps
from torchcodec.decoders import decode_image

from clinit.errors import ImageError, MachineError, ManifestError
from clinit.extract.dataset.decode import decode, differs, pixels_of_pillow, read_image_file
from clinit.extract.dataset.tree import READS_HEIC


@pytest.fixture
def picture() -> Image.Image:
    blocks = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(np.kron(blocks, np.ones((8, 8, 1), dtype=np.uint8)))


def encoded(image: Image.Image, fmt: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, fmt, **options)
    return file.getvalue()


def pillow_pixels(content: bytes) -> np.ndarray:
    return np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(content))).convert("RGB"))


def pixels(content: bytes) -> np.ndarray:
    return decode(content).permute(1, 2, 0).numpy()


@pytest.mark.parametrize(
    ("fmt", "mode"),
    [
        *((fmt, "RGB") for fmt in ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")),
        *(("PNG", mode) for mode in ("L", "P", "RGBA", "LA", "1")),
        ("JPEG", "CMYK"),
    ],
)
def test_every_format_and_mode_gives_the_pixels_that_pillow_gives(
    picture: Image.Image, fmt: str, mode: str
) -> None:
    content = encoded(picture.convert(mode), fmt)
    limit = 2 if mode == "CMYK" else fmt != "PNG"
    np.testing.assert_allclose(pixels(content).astype(int), pillow_pixels(content), atol=limit)


@pytest.mark.parametrize(
    ("fmt", "kind", "white"),
    [("PNG", "u2", 65535), ("TIFF", "u2", 65535)]
    + [("TIFF", *each) for each in (("i4", 255), ("i4", 65535), ("f4", 1), ("f4", 255))],
)
def test_samples_of_more_bits_are_scaled_and_not_clipped(fmt: str, kind: str, white: int) -> None:
    part = np.random.default_rng(0).integers(0, 256, (9, 7)) / 255
    part[0, 0] = 1.0
    samples = part * white
    image = Image.fromarray((samples if kind == "f4" else np.rint(samples)).astype(kind))
    expected = np.rint(255 * part)[..., None].repeat(3, axis=2)
    np.testing.assert_array_equal(pixels_of_pillow(image), expected)
    np.testing.assert_allclose(pixels(encoded(image, fmt)), expected, atol=fmt == "PNG")


@pytest.mark.parametrize("factor", [-1, 1e9, np.nan])
def test_samples_of_unknown_range_are_refused(factor: float) -> None:
    with pytest.raises(ImageError, match="of unknown range"):
        pixels_of_pillow(Image.fromarray(np.full((9, 7), factor, np.float32)))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("fmt", ["JPEG", "PNG", "TIFF"])
def test_an_exif_rotation_is_applied(picture: Image.Image, fmt: str, orientation: int) -> None:
    exif = picture.getexif()
    exif[274] = orientation
    content = encoded(picture, fmt, exif=exif)
    np.testing.assert_allclose(pixels(content).astype(int), pillow_pixels(content), atol=1)
    assert pixels(content).shape == ((48, 64, 3) if orientation < 5 else (64, 48, 3))


@pytest.mark.parametrize("part", [0.3, 0.6, 0.95])
@pytest.mark.parametrize(
    ("fmt", "options"),
    [("JPEG", {}), ("JPEG", {"progressive": True}), ("PNG", {}), ("BMP", {}), ("TIFF", {})],
)
def test_a_truncated_image_is_refused(
    picture: Image.Image, fmt: str, options: dict[str, object], part: float
) -> None:
    content = encoded(picture, fmt, **options)
    with pytest.raises(ImageError):
        decode(content[: int(part * len(content))])


SCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n"
MARKS = (b"\xff\xd8\xff\xe0", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"RIFF")


@pytest.mark.parametrize(
    ("content", "fact"),
    [
        *((each, "its header is damaged") for each in (b"text", SCRIPT)),
        *((mark + bytes(30), "its header is damaged") for mark in MARKS),
        (b"\0\0\0\x18ftypheic" + bytes(30), "HEIC: `pip install pillow-heif` lets clinit"),
    ],
)
def test_what_is_no_image_is_refused(
    content: bytes, fact: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("subprocess.Popen", lambda *args, **kwargs: 1 / 0)
    monkeypatch.setattr("clinit.extract.dataset.decode.READS_HEIC", False)
    with pytest.raises(ImageError, match=fact):
        decode(content)


@pytest.mark.parametrize(
    ("name", "error", "fact"),
    [
        ("empty.jpg", ImageError, "the file is empty"),
        ("absent.jpg", ImageError, "the file is missing"),
        (".", ImageError, "cannot be read: Is a directory"),
        ("link.png", ImageError, "a link that leaves the root"),
        ("pipe.png", ImageError, "not a regular file"),
        ("gone/1.jpg", ManifestError, "gone has vanished"),
        ("large.jpg", ImageError, "too large: 8,796,093,022,208 bytes"),
    ],
)
def test_a_file_without_an_image_is_its_own_problem_or_stops_everything(
    tmp_path: Path, name: str, error: type[Exception], fact: str
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "empty.jpg").touch()
    (tmp_path / "secret.png").write_bytes(b"secret")
    (root / "link.png").symlink_to(tmp_path / "secret.png")
    os.mkfifo(root / "pipe.png")
    with (root / "large.jpg").open("wb") as file:
        file.truncate(2**43)  # takes no space on the disk
    with pytest.raises(error, match=fact):
        read_image_file(root / name, root)


NUMBERS = (errno.EIO, errno.ESTALE, errno.EMFILE, errno.ENOMEM)


@pytest.mark.parametrize(
    ("number", "need_rights", "error", "fact"),
    [
        *((number, False, MachineError, rf"1\.jpg: {os.strerror(number)}") for number in NUMBERS),
        (errno.EACCES, True, MachineError, r"no permission to read .*1\.jpg"),
        (errno.EACCES, False, ImageError, "no permission to read the file"),
    ],
)
def test_a_failing_machine_stops_everything(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    need_rights: bool,
    error: type[Exception],
    fact: str,
) -> None:
    (tmp_path / "1.jpg").touch()
    fail = Mock(side_effect=OSError(number, os.strerror(number)))
    monkeypatch.setattr("clinit.extract.dataset.decode.read_whole", fail)
    with pytest.raises(error, match=fact):
        read_image_file(tmp_path / "1.jpg", tmp_path, need_rights=need_rights)


def test_a_file_of_another_size_than_in_the_manifest_stops_everything(tmp_path: Path) -> None:
    (tmp_path / "1.jpg").write_bytes(b"12345")
    assert read_image_file(tmp_path / "1.jpg", tmp_path, size=5) == b"12345"
    for content, size in ((b"12345", 4), (b"12345", 1_000_000), (b"", 5)):
        (tmp_path / "1.jpg").write_bytes(content)
        with pytest.raises(ManifestError, match=f"has {len(content)} bytes, not {size:,}"):
            read_image_file(tmp_path / "1.jpg", tmp_path, size=size)


FORMATS = ["JPEG", "PNG", "GIF", "WEBP", "AVIF", "BMP", "TIFF", "PPM", "JPEG2000"]
FORMATS += ["HEIF"] if READS_HEIC else []


@pytest.mark.parametrize("fmt", FORMATS)
def test_nothing_is_decoded_of_what_is_too_large(
    picture: Image.Image, monkeypatch: pytest.MonkeyPatch, fmt: str
) -> None:
    content = encoded(picture, fmt)
    assert decode(content, max_pixels=48 * 64).shape == (3, 48, 64)
    monkeypatch.setattr("torchcodec.decoders.decode_image", lambda *args, **kwargs: 1 / 0)
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda *args: 1 / 0)
    with pytest.raises(ImageError, match="64 x 48 pixels, more than the 3,071 of --max-pixels"):
        decode(content, max_pixels=48 * 64 - 1)


def test_a_progressive_jpeg_of_very_many_scans_is_a_bad_image(
    picture: Image.Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each scan passes over all pixels: a file of 100 KB took minutes."""
    content = encoded(picture, "JPEG", progressive=True)
    last = content.rindex(b"\xff\xda")
    bomb = content[:last] + content[last:-2] * 501 + content[-2:]
    monkeypatch.setattr("torchcodec.decoders.decode_image", lambda *args, **kwargs: 1 / 0)
    with pytest.raises(ImageError, match="a progressive JPEG of more than 500 scans"):
        decode(bomb)


@pytest.mark.parametrize("channels", [3, 4])
@pytest.mark.parametrize(
    ("fmt", "options"),
    [
        ("GIF", {"disposal": 2, "interlace": 1}),
        ("GIF", {"disposal": 3, "optimize": False}),
        ("WEBP", {"lossless": True}),
        ("WEBP", {"quality": 30, "background": (10, 20, 30, 100)}),
    ],
)
def test_the_first_frame_of_an_animation_has_the_pixels_of_torchcodec(
    monkeypatch: pytest.MonkeyPatch, fmt: str, options: dict[str, object], channels: int
) -> None:
    frames = np.random.default_rng(channels).integers(0, 256, (4, 30, 40, channels), dtype=np.uint8)
    first, *others = map(Image.fromarray, frames)
    content = encoded(first, fmt, save_all=True, append_images=others, **options)
    whole = decode_image(content, mode="RGB")
    assert len(whole) == 4
    monkeypatch.setattr("torchcodec.decoders.decode_image", lambda *args, **kwargs: 1 / 0)
    assert torch.equal(decode(content), whole[0])


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 36 bytes"),
        RuntimeError("Insufficient memory (case 4)"),
        RuntimeError("std::bad_alloc"),
        OSError("out of memory error when reading image file"),
    ],
)
def test_a_shortage_of_memory_is_no_bad_image(
    picture: Image.Image, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    content, of_torchcodec = encoded(picture, "PNG"), isinstance(error, RuntimeError)
    where = "torchcodec.decoders.decode_image" if of_torchcodec else "PIL.Image.open"
    monkeypatch.setattr(where, Mock(side_effect=error))
    with pytest.raises(MemoryError):
        decode(content)


@pytest.mark.parametrize(("colours", "expected"), [((19, 0, -50), False), ((0, 0, 50), True)])
def test_decoders_may_differ_in_colour_but_not_in_lightness(
    colours: tuple[int, ...], expected: bool
) -> None:
    one = torch.full((3, 8, 8), 100, dtype=torch.uint8)
    other = (one.int() + torch.tensor(colours)[:, None, None]).to(torch.uint8)
    assert differs(one, other) == expected
