"""Images of a vast size, and of noise."""

from __future__ import annotations

import functools
import io
import pickle
import random
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from fault_trials.hostile.scene import (
    Argv,
    Make,
    Scene,
    trial,
)
from fault_trials.trial import Trial


def images(seed: str) -> Iterator[Trial]:
    """Yield images of a vast size, and images of noise; without end."""
    for name in _IMAGES:
        for command in ("extract", "predict", "extract --views"):
            make = _image(functools.partial(_listed, name), command)
            yield trial("images", f"{name}, {command}", make, seed=seed)
    number = 0
    while True:
        for kind in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM"):
            command = ("extract", "predict")[number % 2]
            make = _image(functools.partial(_noise, kind), command)
            yield trial("images", f"{kind} with noise, {command}, {number}", make, seed=seed)
        number += 1


@functools.lru_cache(maxsize=2)
def _made(name: str) -> bytes:
    return _IMAGES[name]()


def _listed(name: str, rng: random.Random) -> bytes:
    return _made(name)


def _image(content: Callable[[random.Random], bytes], command: str) -> Make:
    def make(scene: Scene) -> Argv:
        made = content(scene.rng)
        if command == "predict":
            path = scene.folder / "image"
            path.write_bytes(made)
            good = str(scene.work / "odd" / "good.png")
            model = str(scene.work / "model.safetensors")
            return ["predict", model, str(path), good, "--device", "cpu"]
        path = scene.own("images/base/train/a/0.png")
        if command == "extract --views":
            path = scene.own("images/new/train/d/0.png")
        path.write_bytes(made)
        return scene.writer(command)

    return make


def _noise(kind: str, rng: random.Random) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    pixels = np.random.default_rng(rng.randrange(2**32)).integers(0, 256, (20, 20, 3))
    Image.fromarray(pixels.astype(np.uint8)).save(file, format=kind)
    content = bytearray(file.getvalue())
    for _ in range(rng.choice((1, 4, 16))):
        content[rng.randrange(min(len(content), rng.choice((40, 10**9))))] = rng.randrange(256)
    return bytes(content[: rng.choice((len(content), len(content), len(content) // 2))])


def _png(
    width: int, height: int, *, colour: int = 2, rows: int | None = None, more: bytes = b""
) -> bytes:
    def chunk(name: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)
    squeeze = zlib.compressobj(1)
    line = bytes(1 + width * {0: 1, 2: 3, 6: 4}[colour]) if rows is None or rows else b""
    data = b"".join(squeeze.compress(line) for _ in range(height if rows is None else rows))
    data += squeeze.flush()
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + more
        + chunk(b"IDAT", data)
        + chunk(b"IEND", b"")
    )


def _text_bomb() -> bytes:
    data = b"Comment\x00\x00" + zlib.compress(bytes(1 << 30), 9)
    chunk = struct.pack(">I", len(data)) + b"zTXt" + data
    return _png(8, 8, more=chunk + struct.pack(">I", zlib.crc32(b"zTXt" + data)))


def _gif(width: int, height: int, frames: int = 1) -> bytes:
    head = (
        b"GIF89a"
        + struct.pack("<HH", width, height)
        + b"\x80\x00\x00"
        + b"\x00\x00\x00\xff\xff\xff"
    )
    frame = b"\x2c" + struct.pack("<HHHH", 0, 0, width, height) + b"\x00\x02\x02\x44\x01\x00"
    return head + frame * frames + b"\x3b"


def _jpeg(width: int, height: int) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, format="JPEG")
    content = bytearray(file.getvalue())
    place = content.index(b"\xff\xc0")
    content[place + 5 : place + 9] = struct.pack(">HH", height, width)
    return bytes(content)


def _bmp(width: int, height: int) -> bytes:
    head = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, 0, 0, 0, 0, 0, 0)
    return b"BM" + struct.pack("<IHHI", 54, 0, 0, 54) + head + bytes(64)


def _tiff(width: int, height: int) -> bytes:
    entries = [(256, 4, 1, width), (257, 4, 1, height), (258, 3, 1, 8), (259, 3, 1, 1)]
    entries += [
        (262, 3, 1, 1),
        (273, 4, 1, 8),
        (277, 3, 1, 1),
        (278, 4, 1, height),
        (279, 4, 1, 64),
    ]
    body = b"".join(struct.pack("<HHII", *entry) for entry in entries)
    return (
        b"II*\x00"
        + struct.pack("<I", 72)
        + bytes(64)
        + struct.pack("<H", len(entries))
        + body
        + bytes(4)
    )


_IMAGES: Mapping[str, Callable[[], bytes]] = {
    "PNG of 30,000 x 30,000": lambda: _png(30_000, 30_000, colour=0),
    "PNG of 20,000 x 20,000 in colour": lambda: _png(20_000, 20_000),
    "PNG of 2^31 x 1": lambda: _png(2**31 - 1, 1, rows=0),
    "PNG of 100,000 x 100,000, empty": lambda: _png(100_000, 100_000, rows=0),
    "PNG of 0 x 0": lambda: _png(0, 0, rows=0),
    "PNG of 1 x 200,000": lambda: _png(1, 200_000),
    "PNG of 200,000 x 1": lambda: _png(200_000, 1),
    "PNG with a GB of text": _text_bomb,
    "GIF of 65,535 x 65,535": lambda: _gif(65_535, 65_535),
    "GIF of 100,000 frames": lambda: _gif(100, 100, frames=100_000),
    "JPEG of 65,500 x 65,500": lambda: _jpeg(65_500, 65_500),
    "JPEG of 0 x 0": lambda: _jpeg(0, 0),
    "BMP of 2^30 x 2^30": lambda: _bmp(2**30, 2**30),
    "BMP of 30,000 x 30,000": lambda: _bmp(30_000, 30_000),
    "BMP of -1 x -1": lambda: _bmp(-1, -1),
    "TIFF of 2^31 x 2^31": lambda: _tiff(2**31, 2**31),
    "TIFF of 30,000 x 30,000": lambda: _tiff(30_000, 30_000),
    "PPM of 40,000 x 40,000": lambda: b"P6 40000 40000 255\n" + bytes(64),
    "PPM of 10^20": lambda: b"P6 100000000000000000000 1 255\n" + bytes(64),
    "nothing": lambda: b"",
    "text": lambda: b"\x1b]0;owned\x07 not an image",
    "SVG": lambda: b'<svg xmlns="http://www.w3.org/2000/svg" width="9999999" height="9999999"/>',
    "a pickle": lambda: pickle.dumps({"a": 1}),
}
