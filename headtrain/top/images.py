"""The images of a top-block run, and the storage of their activations.

Read by commands before they load PyTorch.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from clinit.extract.dataset.known import MAX_PIXELS
from clinit.extract.work.options import CPUS, MOST_THREADS, NetworkOptions
from clinit.files.paths import check_writable
from clinit.machine import cpu_count
from clinit.setting import SettingGroup, fields_of, setting
from clinit.words import byte_count


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Storage:
    """A folder for activations, and how they are computed."""

    folder: Path
    budget: int
    """Maximum bytes in the folder; 0: compute all activations from the images each time."""
    workers: int = 1
    """Threads that read and decode images."""
    max_pixels: int = MAX_PIXELS
    """Maximum number of pixels of an image that is decoded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopImages:
    """The two caches, the paths of their images and weights, and the storage of activations."""

    base: Path
    new: Path
    storage: Storage
    base_root: Path | None = None
    """Default: the path of the images at extraction."""
    new_root: Path | None = None
    weights: Path | None = None
    """Default: the path of the weights at extraction."""


@dataclass(frozen=True, kw_only=True)
class ImageOptions(SettingGroup):
    """How the images of caches are read again, and where their activations are stored."""

    panel: ClassVar = "Activations"

    weights: Path | None = setting(
        None,
        "Weights of the backbone; they must be the weights that computed the features.",
        metavar="FILE",
        otherwise="their path at extraction",
    )
    base_root: Path | None = setting(
        None, "Folder of the base images.", metavar="FOLDER", otherwise="as at extraction"
    )
    new_root: Path | None = setting(
        None, "Folder of the new images.", metavar="FOLDER", otherwise="as at extraction"
    )
    trunk_cache: Path | None = setting(
        None,
        "Folder of stored activations; runs may share it.",
        metavar="FOLDER",
        otherwise="OUT/trunk-cache",
    )
    trunk_budget: str = setting(
        "20GB",
        "Maximum bytes to store (0: none); other activations are computed from images each time.",
        metavar="SIZE",
    )
    workers: int | None = setting(
        None, "Threads that read and decode images.", least=1, otherwise=CPUS
    )
    max_pixels: int = setting(
        MAX_PIXELS, fields_of(NetworkOptions)["max_pixels"].help, least=1, panel="Data"
    )
    checkpoint_every: int = setting(
        100, "Updates between two checkpoints; 0: only after each task.", least=0
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            byte_count(self.trunk_budget)
        except ValueError as error:
            raise ValueError(f"trunk_budget {error}") from error

    def of(self, base: Path, new: Path, out: Path) -> TopImages:
        """Return the images of two caches for runs that are recorded in `out`."""
        if self.trunk_cache is not None:
            check_writable(self.trunk_cache / "train", "--trunk-cache")
        storage = Storage(
            folder=self.trunk_cache or out / "trunk-cache",
            budget=byte_count(self.trunk_budget),
            max_pixels=self.max_pixels,
            workers=self.workers or min(cpu_count(), MOST_THREADS["cpu"]),
        )
        places = {"base_root": self.base_root, "new_root": self.new_root, "weights": self.weights}
        return TopImages(base=base, new=new, storage=storage, **places)
