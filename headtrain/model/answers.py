"""Read images for an engine, and let a network of PyTorch answer them.

The same code as in the extraction of the training features decodes, resizes and normalises images
for PyTorch, which is imported only here, when it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from clinit.errors import ImageError, StorageError
from clinit.extract.dataset import decode
from clinit.files.paths import exists
from clinit.headtrain.heads.array import as_array, to_numpy
from clinit.headtrain.model.engine import AnsweredBatch
from clinit.headtrain.model.reading import Reading

P = TypeVar("P")


def read_image(image: Any, prepare: Callable[[Any], P]) -> tuple[P | None, str | None]:
    """Return what `prepare` makes of an image, or why it cannot be read.

    Args:
        image: A path, a PIL image or an array of pixels.
        prepare: Called with the content of the file, or with pixels (height, width, 3).

    Raises:
        MachineError: If there is too little memory, or the storage fails.
        ValueError: If an array contains no pixels.
    """
    try:
        if not isinstance(image, Path):
            return prepare(pixels_of(image)), None
        if not _exists(image):
            return None, decode.MISSING
        return prepare(decode.read_image_file(image.absolute(), Path("/"), need_rights=False)), None
    except ImageError as error:
        return None, str(error)
    except MemoryError as error:
        raise decode.memory_error(Path(str(image))) from error


def pixels_of(image: Any) -> np.ndarray:
    """Return the pixels of a PIL image or an array, (height, width, 3) in uint8."""
    if hasattr(image, "convert"):
        from PIL import ImageOps

        image = ImageOps.exif_transpose(image).convert("RGB")
    elif hasattr(image, "ndim"):
        image = to_numpy(as_array(image))
    pixels = np.asarray(image)
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3:
        raise ValueError(
            f"expected an image file, a PIL image, pixels (height, width, 3) of uint8 or features"
            f" (rows, dim), got {pixels.dtype} of shape {pixels.shape}"
        )
    return np.array(pixels)


def check_resized(transform: Any, height: int, width: int, max_pixels: int) -> tuple[int, int]:
    """Return the size of an image after resizing; refuse it if it has too many pixels then."""
    found: tuple[int, int] = transform.resized(height, width)
    decode.check_pixels(found[1], found[0], max_pixels, " after resizing")
    return found


def of_torch(engine: Any, images: Sequence[Any], reading: Reading) -> Iterator[AnsweredBatch]:
    """Yield the logits of images by a network of PyTorch, a `TimmEngine`; see `Engine.answered`.

    One image, and images in memory, are computed at once, without threads that read ahead.
    """
    import torch

    from clinit.extract.work.pipeline import Timing, features_of

    device, transform = torch.device(engine.device), engine.transform

    def prepare(given: Any) -> torch.Tensor:
        if isinstance(given, bytes):
            pixels = decode.decode(given, max_pixels=reading.max_pixels)
        else:
            pixels = torch.from_numpy(given).permute(2, 0, 1)
        check_resized(transform, pixels.shape[1], pixels.shape[2], reading.max_pixels)
        found: torch.Tensor = transform.to_input(pixels)
        return found

    if len(images) == 1 or not all(isinstance(each, Path) for each in images):
        for row, image in enumerate(images):
            found, why = read_image(image, prepare)
            nothing = torch.zeros((3, *transform.crop), dtype=torch.uint8)
            logits = engine.logits((nothing if found is None else found)[None]).cpu().numpy()
            reading.on_images(row + 1)
            yield [row], logits, {} if why is None else {row: why}
        return
    there = [row for row, path in enumerate(images) if _exists(path)]
    files = [images[row] for row in there]
    batches = load_files(files, transform, reading, pin_memory=device.type == "cuda")
    engine = engine.compiled(reading, len(there))
    for batch, logits in features_of(batches, engine.logits, device, Timing()):
        reasons = {there[row]: reason for row, reason in batch.reasons.items()}
        yield [there[row] for row in batch.rows], logits.numpy(), reasons
        reading.on_images(there[batch.rows[-1]] + 1)
    reading.on_images(len(images))


def load_files(
    paths: Sequence[Path], transform: Any, reading: Reading, *, pin_memory: bool = False
) -> Iterable[Any]:
    """Yield the pixels of existing files, resized for the model."""
    from clinit.extract.dataset.images import ImageFiles
    from clinit.extract.work.pipeline import Decoder

    images = ImageFiles(
        Path("/"),  # links may lead anywhere
        [str(path.absolute()) for path in paths],
        need_rights=False,  # an unreadable file must not stop the rest
    )
    decoder = Decoder(
        images=images,
        transform=transform,
        workers=reading.threads,
        max_pixels=reading.max_pixels,
        pin_memory=pin_memory,
    )
    starts, size = range(0, len(paths), reading.batch_size), reading.batch_size
    return decoder.batches(range(start, min(start + size, len(paths))) for start in starts)


def _exists(path: Path) -> bool:
    try:
        return exists(path)
    except StorageError:  # a folder above may not be entered: the reader says so
        return True
