"""Images for benchmarks of extraction: noise with the spectrum of photographs, as JPEG files.

The amplitude of a photograph falls with 1 / frequency, and its colours are correlated. Such noise
takes a decoder as long as a photograph: it has about as many bytes per pixel, with the same
distribution over the coefficients of a block. Source: D. J. Field, "Relations between the
statistics of natural images and the response properties of cortical cells", JOSA A 4(12), 1987.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from PIL import Image

CLASSES = 4
QUALITY = 90
SIZES = {"500 x 375": (375, 500), "256 x 256": (256, 256)}
"""Height and width: the mean size of ImageNet's images, and the size of some reduced copies."""
_CONTRAST = 55.0
"""Standard deviation of the brightness; colours have a quarter of it."""


def photograph(rng: np.random.Generator, height: int, width: int) -> UInt8[np.ndarray, "h w 3"]:
    """Return an image of noise with an amplitude of 1 / frequency."""
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None, :])
    frequency[0, 0] = np.inf  # the mean is set below
    planes = np.fft.irfft2(
        np.fft.rfft2(rng.standard_normal((3, height, width))) / frequency, (height, width)
    )
    planes /= planes.std(axis=(1, 2), keepdims=True)
    brightness, red, blue = planes * np.array([1, 0.25, 0.25])[:, None, None]
    colours = np.stack([brightness + red, brightness - (red + blue) / 2, brightness + blue], -1)
    return np.clip(120 + _CONTRAST * colours, 0, 255).astype(np.uint8)


def write_images(root: Path, count: int, height: int, width: int) -> float:
    """Write images into class folders below `root/train`; return the mean size of a file in kB."""
    rng = np.random.default_rng(0)
    sizes = []
    for number in range(count):
        folder = root / "train" / f"class-{number % CLASSES}"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{number:05d}.jpg"
        Image.fromarray(photograph(rng, height, width)).save(path, quality=QUALITY)
        sizes.append(path.stat().st_size)
    return sum(sizes) / len(sizes) / 1000
