"""Images that are made in memory, decoded as an extraction decodes them."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import TYPE_CHECKING

from clinit.extract.doctor.finding import Finding, fault, ok

if TYPE_CHECKING:
    import numpy as np

FORMATS = {"JPEG": 6.0, "PNG": 0.0, "WebP": 6.0}
"""Largest mean difference of a pixel, in steps of 255: what the compression loses."""
_SIDE = 32
_REMEDY = "pip install --force-reinstall pillow torchcodec torch"


def check_codecs() -> Iterator[Finding]:
    """Decode one image of each format."""
    good = []
    for name, tolerance in FORMATS.items():
        try:
            error = decoding_error(_gradient(), name)
        except Exception as problem:  # of a library that is missing, or built for another version
            told = f"{name} cannot be decoded: {str(problem).splitlines()[0][:200]}"
            yield fault("images", told, _REMEDY)
            continue
        if not error <= tolerance:
            told = f"{name} is decoded to other pixels: {error:.1f} of 255 steps on average"
            yield fault("images", told, _REMEDY)
        else:
            good.append(name)
    if good:
        yield ok("images", f"{', '.join(good)} are decoded as they were written")


def decoding_error(pixels: np.ndarray, format: str) -> float:
    """Return the mean difference of pixels that are encoded and decoded again, in 255 steps."""
    import numpy as np
    from PIL import Image

    from clinit.extract.dataset.decode import MAX_PIXELS, decode

    content = io.BytesIO()
    Image.fromarray(pixels).save(content, format=format, quality=95)
    found = decode(content.getvalue(), max_pixels=MAX_PIXELS).permute(1, 2, 0).numpy()
    if found.shape != pixels.shape:
        raise ValueError(f"its size is {found.shape[:2]}, expected {pixels.shape[:2]}")
    return float(np.abs(found.astype(float) - pixels).mean())


def _gradient() -> np.ndarray:
    """Return smooth pixels (height, width, 3): compression loses little of them."""
    import numpy as np

    ramp = np.linspace(20, 230, _SIDE)
    red, green = np.meshgrid(ramp, ramp)
    return np.stack([red, green, np.full_like(red, 120)], axis=-1).astype(np.uint8)
