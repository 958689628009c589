"""What computes the logits of images: an engine, and how images are read for it."""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from clinit.errors import ModelError
from clinit.extract.cache.fingerprint import Fingerprint
from clinit.extract.cache.head import Head
from clinit.headtrain.model.reading import Reading

AnyPath = str | os.PathLike[str]
Logits = Float[np.ndarray, "images classes"]
AnsweredBatch = tuple[Sequence[int], Logits, Mapping[int, str]]
"""Numbers of images, their logits, and by number why an image cannot be read."""
MODEL_FILE, MEMORY_FILE = "model.safetensors", "memory.safetensors"


@runtime_checkable
class Engine(Protocol):
    """What turns images into logits: a timm network, or an ONNX graph."""

    @property
    def transform(self) -> Any:
        """The transform of the images (`clinit.extract.network.transform.Transform`)."""

    @property
    def device(self) -> str:
        """Where it computes."""

    @property
    def depends_on(self) -> dict[str, str]:
        """The facts that the features depend on, as in a memory."""

    def answered(self, images: Sequence[Any], reading: Reading) -> Generator[AnsweredBatch]:
        """Yield the logits of images (files, PIL images, arrays of pixels), in batches.

        Raises:
            ModelError: If the network cannot process the images.
            MachineError: If the memory does not suffice, or the storage fails.
        """

    def fingerprint(self, dtype: str) -> Fingerprint:
        """Return the fingerprint of features that are stored as `dtype`."""

    def with_heads(self, heads: Sequence[Head]) -> Engine:
        """Return the engine with the logits of these heads, one after the other."""


def refused_size(error: Exception, crop: Sequence[int]) -> ModelError:
    """Return the error to raise if a network fails on images of the size in its file."""
    size = " x ".join(map(str, crop))
    why = (str(error).splitlines() or [type(error).__name__])[0]
    return ModelError(
        f"the network of the model cannot process images of {size} pixels, the size in its file:"
        f" {why}",
        remedy="Export the run again.",
    )
