"""Settings of an extraction except the network; this module does not load PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from clinit.extract.dataset.known import MAX_PIXELS
from clinit.machine import cpu_count
from clinit.setting import Part, setting

COMPUTATION, DATA, NETWORK, OUTPUT = "Computation", "Data", "Network", "Output"
"""Headings of the help."""


@dataclass(frozen=True, kw_only=True)
class _Transform(Part):
    """Class names of the classifier, and the transform of the images."""

    panel: ClassVar = NETWORK

    head_classes: str | None = setting(
        None,
        "Class names of the classifier's rows: a file with one name per line, or `dataset` for the"
        " classes of this data set in order.",
        otherwise="stored with the weights; ImageNet-1K for 1,000 rows",
    )
    transform: Literal["timm", "paper"] = setting(
        "timm", "The model's own, or the paper's (256 x 256, centre crop 224)."
    )
    input_size: int | None = setting(
        None,
        "Height and width of the network's input in pixels.",
        least=1,
        most=4096,
        otherwise="model's",
    )
    mean: tuple[float, ...] | None = setting(
        None,
        "Pixel mean in [0, 1]: 0.5 or 0.5,0.5,0.5.",
        least=0,
        otherwise="model's",
        joined=True,
    )
    std: tuple[float, ...] | None = setting(
        None,
        "Pixel deviation in (0, 1], in the same form.",
        above=0,
        otherwise="model's",
        joined=True,
    )


@dataclass(frozen=True, kw_only=True)
class _Computation(Part):
    """How images become features."""

    panel: ClassVar = COMPUTATION

    batch_size: int | None = setting(
        None,
        "Images per forward pass.",
        least=1,
        most=10**9,
        otherwise="as in the existing cache; else 32 on a CPU, 64 on a GPU",
    )
    compile: Literal["auto", "on", "off"] = setting(
        "auto",
        "Compile the network, which takes some seconds and makes convolutional networks two to four"
        " times as fast; auto: as before if the cache exists, otherwise if it saves time.",
    )
    workers: int | None = setting(
        None, "Threads that read and decode.", least=1, otherwise="usable CPUs"
    )
    decoder: Literal["cpu", "cuda"] = setting(
        "cpu",
        "Decoder of JPEG files. A CUDA device relieves the CPUs; its pixels differ slightly, so its"
        " features cannot be used together with features of the CPU decoder.",
    )


@dataclass(frozen=True, kw_only=True)
class _Output(Part):
    """How features are stored."""

    panel: ClassVar = OUTPUT

    dtype: Literal["float16", "float32"] = setting("float16", "Type of stored features.")
    shard_rows: int = setting(
        4096, "Rows per shard. A killed run loses at most one shard.", least=1, most=10**9
    )


@dataclass(frozen=True, kw_only=True)
class _Images(Part):
    """Which images are read."""

    panel: ClassVar = DATA

    max_pixels: int = setting(
        MAX_PIXELS,
        "Maximum number of pixels of an image, width x height; larger images count as unreadable.",
        least=1,
    )
    retry_invalid: bool = setting(
        False,
        "Read the images of invalid rows again, such as after a repair, and compute their shards"
        " anew.",
    )
    strict: bool = setting(
        False,
        "Stop at an unreadable image, or if the folder differs from the data set's description.",
    )


@dataclass(frozen=True, kw_only=True)
class _Views(Part):
    """Random views of the training images."""

    panel: ClassVar = "Views"
    views: int = setting(
        0,
        "Number of random crops of every training image, half of them mirrored, whose features are"
        " also stored, for `clinit head align`; existing views are kept.",
        least=0,
        most=1000,
    )
    view_seed: int = setting(0, "Seed of the views.", least=0, most=2**32 - 1)


@dataclass(frozen=True, kw_only=True)
class Settings(_Views, _Images, _Output, _Computation, _Transform):
    """Settings that an extraction (`ExtractConfig`) and the command-line options share."""

    command: str | None = None
    """The command line, which `cache verify` prints if a shard is damaged."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("mean", "std"):
            value = getattr(self, name)
            if value is not None and (len(value) not in (1, 3) or max(value) > 1):
                raise ValueError(
                    f"{name} takes one number or three, in [0, 1] (127 is 0.498), got {value!r}"
                )

    @property
    def threads(self) -> int:
        """Number of threads that read and decode."""
        return self.workers or cpu_count()
