"""scikit-learn's handwritten digits as PNG files in class folders: a data set for trying things.

1,797 images of 8 x 8 pixels (E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten
Digits", UCI, 1998), enlarged to 32 x 32.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from PIL import Image

_SIDE = 32
_VAL_EVERY = 3
"""Every third image of a digit goes to the validation split."""


def write_digits(root: Path, digits: Iterable[int]) -> int:
    """Write `root/{train,val}/<digit>/<number>.png`; return the number of images."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    written = 0
    for digit in digits:
        for rank, index in enumerate(np.flatnonzero(labels == digit)):
            split = "val" if rank % _VAL_EVERY == 0 else "train"
            pixels = np.rint(images[index].reshape(8, 8) * (255 / 16)).astype(np.uint8)
            folder = root / split / str(digit)
            folder.mkdir(parents=True, exist_ok=True)
            picture = Image.fromarray(pixels).resize((_SIDE, _SIDE), Image.Resampling.BICUBIC)
            picture.save(folder / f"{index:04d}.png")
            written += 1
    return written
