"""Settings of an extraction except the network; this module does not load PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from clinit.extract.dataset.known import MAX_PIXELS
from clinit.machine import cpu_count


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings that an extraction (`ExtractConfig`) and the command-line options share."""

    transform: str = "timm"
    """`timm` (the model's own preprocessing) or `paper` (256 x 256, centre crop 224)."""
    input_size: int | None = None
    """Height and width of the network's input in pixels; None takes the model's own."""
    mean: tuple[float, ...] | None = None
    """Mean of pixels in [0, 1], one number or one per channel; None takes the model's own."""
    std: tuple[float, ...] | None = None
    """Standard deviation of pixels in [0, 1], like `mean`; None takes the model's own."""
    batch_size: int | None = None
    """Images per forward pass. None takes the value of an existing cache, else `BATCH_SIZES`."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Whether to compile the network. `auto`: as before if the cache exists already, otherwise if
    it saves time (`network.compiled`)."""
    decoder: Literal["cpu", "cuda"] = "cpu"
    """Decoder of JPEG files: CPU threads or the CUDA device, whose pixels differ slightly."""
    workers: int | None = None
    """Threads that read and decode; None means one per usable CPU."""
    dtype: str = "float16"
    """Type of stored features; float16 keeps three digits and halves the files."""
    shard_rows: int = 4096
    """Rows per shard. A killed run loses at most one shard."""
    strict: bool = False
    """Whether to stop at the first unreadable image instead of marking its row invalid."""
    max_pixels: int = MAX_PIXELS
    """Maximum number of pixels; the row of a larger image is marked invalid."""
    retry_invalid: bool = False
    head_classes: str | None = None
    """Names of the classifier's rows: a file, `dataset`, or None (see `name_rows`)."""
    views: int = 0
    """Number of random views of the training images, in addition to the plain features."""
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
