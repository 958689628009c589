"""How images become features, whatever the network; PyTorch is not loaded for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from clinit.extract.dataset.known import MAX_PIXELS
from clinit.machine import cpu_count


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Common settings of an extraction (`ExtractConfig`) and the options of a command."""

    transform: str = "timm"
    """`timm` (the model's own preprocessing) or `paper` (256 x 256, centre crop 224)."""
    input_size: int | None = None
    """Height and width of the network's input in pixels; the model's own when None."""
    mean: tuple[float, ...] | None = None
    """Pixel mean in [0, 1], one number or one per channel; the model's own when None."""
    std: tuple[float, ...] | None = None
    """Standard deviation of a pixel, one number or one per channel; the model's own when None."""
    batch_size: int | None = None
    """Images per forward pass; None for what the cache was begun with, else `BATCH_SIZES`."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Whether the network computes as one program; `auto`: as the cache was begun, else if that
    pays (`network.compiled`)."""
    decoder: Literal["cpu", "cuda"] = "cpu"
    """Decoder of JPEG files: threads, or the CUDA device; other pixels, see `dataset.decode`."""
    workers: int | None = None
    """Threads that read and decode; None for one on each usable CPU."""
    dtype: str = "float16"
    """How features are stored; float16 keeps three digits and halves the file."""
    shard_rows: int = 4096
    """Rows per shard: a killed run loses at most one shard."""
    strict: bool = False
    """Stop at the first unreadable image instead of marking its row invalid."""
    max_pixels: int = MAX_PIXELS
    """Largest image that is decoded, in pixels; a larger one is a bad image."""
    retry_invalid: bool = False
    """Read the images of invalid rows again."""
    head_classes: str | None = None
    """Names of the classifier's rows: a file, `dataset`, or None (see `name_rows`)."""
    views: int = 0
    """Random views of the training images, in addition to the plain features."""
    view_seed: int = 0
    """Seed of the views, in [0, 2^32)."""
    command: str | None = None
    """The command line, which `cache verify` prints if a shard is damaged."""

    def __post_init__(self) -> None:
        if self.views < 0:
            raise ValueError(f"views must be at least 0, got {self.views}")
        for name in ("batch_size", "workers", "shard_rows", "max_pixels"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be positive, got {value}")

    @property
    def threads(self) -> int:
        """Number of threads that read and decode."""
        return self.workers or cpu_count()
