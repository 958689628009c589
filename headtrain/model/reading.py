"""How images are read and computed; nothing here imports PyTorch or NumPy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

from clinit.extract.work.options import COMPUTATION, CPUS, DATA, MOST_THREADS, NetworkOptions
from clinit.machine import cpu_count
from clinit.setting import SettingGroup, fields_of, setting

_OF_EXTRACT = fields_of(NetworkOptions)


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading(SettingGroup):
    """How images are read and computed; nothing of it changes the predictions."""

    panel: ClassVar[str] = COMPUTATION
    batch_size: int = setting(64, "Images per forward pass.", least=1)
    workers: int | None = setting(None, _OF_EXTRACT["workers"].help, least=1, otherwise=CPUS)
    compile: Literal["auto", "on", "off"] = setting("auto", _OF_EXTRACT["compile"].help)
    max_pixels: int = setting(
        NetworkOptions.max_pixels, _OF_EXTRACT["max_pixels"].help, least=1, panel=DATA
    )
    on_images: Callable[[int], object] = lambda done: None
    """Called after every batch with the number of finished images."""
    on_note: Callable[[str], object] = lambda note: None
    """Called with a note on `compile`, if it is `auto`."""

    @property
    def threads(self) -> int:
        """Number of threads that read and decode."""
        return self.workers or min(cpu_count(), MOST_THREADS["cpu"])


AS_USUAL = Reading()
