import io
import struct
import time

import numpy as np
import pytest
import torch
from PIL import Image
from torchcodec.decoders import decode_image

from clinit.extract.dataset.decode import (
    MAX_SCANS,
    ImageSize,
    NoSizeError,
    ScansError,
    first_frame,
    image_size,
)

MODES = {
    "JPEG": ("RGB", "L", "CMYK"),
    "PNG": ("RGB", "L", "P", "RGBA"),
    "GIF": ("RGB", "L", "P", "RGBA"),
    "WEBP": ("RGB", "RGBA"),
    "AVIF": ("RGB", "RGBA"),
}
SHAPES = [(1, 1), (17, 300), (300, 17), (64, 64)]


def noise(shape: tuple[int, ...], seed: int = 0, mode: str | None = None) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    return Image.fromarray(pixels) if mode is None else Image.fromarray(pixels).convert(mode)


def encoded(image: Image.Image, fmt: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, fmt, **options)
    return file.getvalue()


def decoded(content: bytes) -> torch.Tensor:
    image: torch.Tensor = decode_image(content, mode="RGB")
    return image


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("fmt", "options"),
    [
        ("JPEG", {}),
        ("JPEG", {"progressive": True}),
        ("JPEG", {"comment": b"\xff\xc0" * 99, "icc_profile": bytes(70_000)}),
        ("PNG", {}),
        ("GIF", {}),
        ("GIF", {"comment": b"," * 300}),
        ("WEBP", {}),
        ("WEBP", {"lossless": True}),
        ("WEBP", {"icc_profile": bytes(99)}),
        ("AVIF", {}),
    ],
)
def test_the_header_says_what_the_decoder_finds(
    shape: tuple[int, int], fmt: str, options: dict[str, object]
) -> None:
    for mode in MODES[fmt]:
        content = encoded(noise((*shape, 3), mode=mode), fmt, **options)
        height, width = decoded(content).shape[-2:]
        assert (height, width) == shape
        assert image_size(content) == ImageSize(width, height, width * height)
        assert first_frame(content) == content


@pytest.mark.parametrize("between", [b"\xff\x00", b"\xff\x01", b"\xff\xd3", b"\xff\xff", b"abc"])
def test_what_stands_between_the_segments_of_a_jpeg_is_skipped(between: bytes) -> None:
    content = encoded(noise((17, 30, 3)), "JPEG")
    odd = content[:20] + between + b"\xff\xfe\0\6ABCD" + content[20:]
    assert content[20:22] == b"\xff\xdb"
    assert torch.equal(decoded(odd), decoded(content))
    assert image_size(odd) == (30, 17, 510)


def test_a_jpeg_of_markers_alone_takes_one_pass() -> None:
    """Five megabytes took seconds, marker by marker."""
    began = time.process_time()
    for fill in (b"\xff\xff", b"\xff\0", b"\xff\xe0\0\0"):
        with pytest.raises(NoSizeError):
            image_size(b"\xff\xd8\xff\xe0\0\2" + fill * (5_000_000 // len(fill)))
    assert time.process_time() - began < 0.4


def test_a_jpeg_may_have_thousands_of_segments_before_its_size_but_not_any_number() -> None:
    content = encoded(noise((17, 30, 3)), "JPEG")
    comment = b"\xff\xfe\0\3A"
    assert image_size(content[:20] + comment * 4000 + content[20:]) == (30, 17, 510)
    with pytest.raises(NoSizeError):
        image_size(content[:20] + comment * 4100 + content[20:])


def progressive(scans: int) -> bytes:
    """Repeat the last scan of a progressive JPEG, tables included; ten scans are its own."""
    content = encoded(noise((40, 50, 3)), "JPEG", progressive=True)
    assert content.count(b"\xff\xda") == 10
    last = content.rindex(b"\xff\xda")
    return content[:last] + content[last:-2] * (scans - 9) + content[-2:]


def test_the_scans_of_a_progressive_jpeg_are_bounded() -> None:
    assert image_size(progressive(10)) == (50, 40, 2000)
    assert image_size(progressive(MAX_SCANS)) == (50, 40, 2000)
    for extra in (1, 5000):
        with pytest.raises(ScansError):
            image_size(progressive(MAX_SCANS + extra))


def test_what_only_looks_like_scans_is_none() -> None:
    content = progressive(10)
    film = b"\xff\xda\0\2" * 1000
    assert image_size(content + film) == (50, 40, 2000)
    table = content.index(b"\xff\xda")
    comment = b"\xff\xfe" + struct.pack(">H", 2 + len(film)) + film
    assert image_size(content[:table] + comment + content[table:]) == (50, 40, 2000)


def test_an_end_of_the_image_in_a_comment_does_not_hide_the_scans_behind_it() -> None:
    content = progressive(MAX_SCANS + 1)
    table = content.index(b"\xff\xda")
    with pytest.raises(ScansError):
        image_size(content[:table] + b"\xff\xfe\0\4\xff\xd9" + content[table:])


def test_a_progressive_jpeg_of_many_scans_without_an_end_has_no_size() -> None:
    comments = b"\xff\xfe\0\5\xff\xda\0" * (MAX_SCANS + 1)
    with pytest.raises(NoSizeError):
        image_size(progressive(10)[:-2] + comments)


@pytest.mark.parametrize("fmt", ["BMP", "TIFF", "PPM"])
def test_of_what_torchcodec_does_not_decode_nothing_is_known_here(fmt: str) -> None:
    assert image_size(encoded(noise((3, 4, 3)), fmt)) is None
    assert image_size(b"no image at all") is None
    assert image_size(b"") is None


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(
    ("fmt", "options"),
    [
        ("GIF", {"disposal": 0}),
        ("GIF", {"disposal": 2, "interlace": 1}),
        ("GIF", {"disposal": 3, "optimize": False, "comment": b"here"}),
        ("WEBP", {"lossless": True}),
        ("WEBP", {"quality": 30, "background": (10, 20, 30, 100)}),
        ("WEBP", {"xmp": b"<x/>" * 5, "icc_profile": bytes(99)}),
    ],
)
def test_the_first_frame_alone_has_the_pixels_that_it_has_among_the_others(
    fmt: str, options: dict[str, object], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    shape = (*rng.integers(2, 60, 2).tolist(), 3 + seed % 2)
    first, *others = (noise(shape, seed=10 * seed + frame) for frame in range(4))
    content = encoded(first, fmt, save_all=True, append_images=others, **options)
    alone = first_frame(content)
    every = decoded(content)
    assert every.shape[0] == 4
    assert len(alone) < len(content) / 2
    found = decoded(alone)
    assert torch.equal(found[0] if found.ndim == 4 else found, every[0])
    assert image_size(content) == (shape[1], shape[0], shape[0] * shape[1])


def test_what_follows_the_frames_of_a_webp_file_stays() -> None:
    exif = Image.Exif()
    exif[274] = 6
    options = {"save_all": True, "append_images": [noise((5, 9, 3), seed=1)]}
    content = encoded(noise((5, 9, 3)), "WEBP", exif=exif, lossless=True, **options)
    assert torch.equal(decoded(first_frame(content)).reshape(3, 9, 5), decoded(content)[0])


def test_a_gif_frame_that_is_larger_than_its_canvas_counts() -> None:
    content = bytearray(encoded(noise((4, 5, 3)), "GIF"))
    content[6:10] = struct.pack("<HH", 1, 1)
    assert image_size(bytes(content)) == (5, 4, 20)


def test_a_gif_that_ends_within_its_first_frame_stays_as_it_is() -> None:
    content = encoded(noise((40, 40, 3)), "GIF")[:-200]
    assert first_frame(content) == content


def test_all_pictures_of_a_sequence_count() -> None:
    options = {"save_all": True, "append_images": [noise((6, 7, 3), seed=s) for s in (1, 2, 3)]}
    content = encoded(noise((6, 7, 3)), "AVIF", **options)
    assert len(decoded(content)) == 4
    assert image_size(content) == (7, 6, 4 * 42)


def box(kind: bytes, *content: bytes) -> bytes:
    whole = b"".join(content)
    return struct.pack(">I4s", 8 + len(whole), kind) + whole


def heic(*sizes: tuple[int, int], items: tuple[int, ...], wide: bool = False) -> bytes:
    """Make the boxes of a HEIC file.

    Args:
        sizes: Width and height, each a property.
        items: The number of the size of each item, from 1.
        wide: Whether the numbers of properties and items take more bytes.
    """
    ispe = [box(b"ispe", bytes(4), struct.pack(">II", *size)) for size in sizes]
    rotation = box(b"irot", b"\1")  # a property that is no size
    number = len(sizes) + 1
    entries = [
        struct.pack(">IBHH" if wide else ">HBBB", item, 2, size | (0x8000 if wide else 0), number)
        for item, size in enumerate(items, start=1)
    ]
    flags = struct.pack(">I", 0x0100_0001 if wide else 0)
    associations = box(b"ipma", flags, struct.pack(">I", len(items)), *entries)
    properties = box(b"iprp", box(b"ipco", *ispe, rotation), associations)
    meta = box(b"meta", bytes(4), box(b"hdlr", bytes(20)), properties)
    return box(b"ftyp", b"heic", bytes(4), b"mif1heic") + meta + box(b"mdat", bytes(50))


@pytest.mark.parametrize("wide", [False, True])
def test_the_largest_picture_of_a_heic_file_counts(wide: bool) -> None:
    # A photograph of 48 tiles, as telephones make it, with a thumbnail.
    content = heic((512, 512), (4032, 3024), (320, 240), items=(1,) * 48 + (2, 3), wide=wide)
    assert image_size(content) == (4032, 3024, 4032 * 3024)


def test_many_large_pictures_in_a_heic_file_count_together() -> None:
    content = heic((4000, 3000), items=(1,) * 400)
    assert image_size(content) == (4000, 3000, 100 * 4000 * 3000)


def test_a_picture_without_an_item_counts_too() -> None:
    assert image_size(heic((9, 9), (50_000, 50_000), items=(1,))) == (50_000, 50_000, 50_000**2)


def film(before: bytes = b"", beyond: int = 0) -> bytes:
    """Make a file with one track of 7 x 6 pixels; its box says that it is longer by `beyond`."""
    entry = bytes(40) + struct.pack(">HH", 7, 6)
    table = box(b"stbl", box(b"stsd", entry), box(b"stsz", bytes(8), struct.pack(">I", 1)))
    track = box(b"trak", box(b"mdia", box(b"minf", table)))
    head = struct.pack(">I4s", 8 + len(track) + beyond, b"moov")
    return box(b"ftyp", b"avif", bytes(8)) + before + head + track


def test_a_box_does_not_reach_beyond_the_box_around_it() -> None:
    assert image_size(film()) == (7, 6, 42)
    for beyond in (-1, 1):
        with pytest.raises(NoSizeError):
            image_size(film(beyond=beyond))
    # Each of these tracks would be looked for in all that follows: the square of the size.
    greedy = struct.pack(">I4sI4s", 16, b"moov", 2**16, b"trak")
    mdia = film()[film().index(b"mdia") - 4 :]
    whole = box(b"ftyp", b"avif", bytes(8)) + greedy * 4000 + mdia
    with pytest.raises(NoSizeError):
        image_size(whole + bytes(2**17))


def test_a_box_with_a_long_length_is_one_of_its_content() -> None:
    def with_length(length: int) -> bytes:
        return film(before=struct.pack(">I4sQ", 1, b"free", length) + bytes(4))

    assert image_size(with_length(20)) == (7, 6, 42)
    for length in (0, 15, 2**63):
        with pytest.raises(NoSizeError):
            image_size(with_length(length))


def test_thousands_of_boxes_are_refused() -> None:
    assert image_size(film(before=box(b"free") * 4000)) == (7, 6, 42)
    with pytest.raises(NoSizeError):
        image_size(film(before=box(b"free") * 4100))


def test_associations_end_with_their_box() -> None:
    content = heic((9, 8), items=(1,))
    assert image_size(content) == (9, 8, 72)
    more = content.replace(b"ipma\0\0\0\0\0\0\0\1", b"ipma\0\0\0\0\0\0\0\2")
    assert more != content
    with pytest.raises(NoSizeError):
        image_size(more)


@pytest.mark.parametrize(
    "content",
    [
        b"\xff\xd8\xff",
        b"\xff\xd8\xff\xc0\0\x11\x08",
        b"\xff\xd8\xff\xe0\xff\xff" + bytes(100),
        b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
        b"\x89PNG\r\n\x1a\n\0\0\0\rIDAT" + bytes(20),
        b"GIF89a",
        b"GIF89a\1\0\1\0\x80\0\0",
        b"GIF89a\1\0\1\0\0\0\0!\xf9\xff",
        b"GIF89a\1\0\1\0\0\0\0X",
        b"RIFF\0\0\0\0WEBPVP8X",
        b"RIFF\0\0\0\0WEBPVP9 " + bytes(30),
        box(b"ftyp", b"avif", bytes(8)),
        box(b"ftyp", b"heic", bytes(8)) + box(b"meta", bytes(4)),
        box(b"ftyp", b"heic", bytes(8)) + box(b"moov", box(b"trak")),
        box(b"ftyp", b"heic", bytes(8)) + struct.pack(">I4s", 3, b"meta"),
        box(b"ftyp", b"heic", bytes(8)) + struct.pack(">I4s", 500, b"meta"),
        heic((9, 9), items=(1,)).replace(b"ipma\0\0\0\0\0\0\0\1", b"ipma\0\0\0\0\xff\xff\xff\xff"),
    ],
)
def test_a_header_that_ends_early_or_says_nothing_has_no_size(content: bytes) -> None:
    with pytest.raises(NoSizeError):
        image_size(content)


def test_a_webp_animation_whose_frames_cannot_be_told_apart_has_no_first_frame() -> None:
    options = {"save_all": True, "append_images": [noise((5, 9, 3), seed=1)]}
    content = encoded(noise((5, 9, 3)), "WEBP", **options)
    with pytest.raises(NoSizeError):
        first_frame(content + b"ANM")


@pytest.mark.parametrize("fmt", ["JPEG", "GIF", "WEBP", "AVIF"])  # PNG has checksums
def test_of_a_damaged_file_no_more_is_decoded_than_its_header_says(fmt: str) -> None:
    rng = np.random.default_rng(0)
    content = encoded(noise((23, 31, 3)), fmt)
    taken = 0
    for _ in range(300):
        damaged = bytearray(content)
        for place in rng.integers(0, min(200, len(content)), rng.integers(1, 4)):
            damaged[place] = rng.integers(0, 256)
        try:
            size = image_size(bytes(damaged))
        except NoSizeError:
            continue
        if size is None or size.pixels > 3_000_000:
            continue
        try:
            image = decoded(first_frame(bytes(damaged)))
        except (RuntimeError, NoSizeError):
            continue
        taken += 1
        assert image.shape[-1] * image.shape[-2] <= size.pixels
    assert taken > 20
