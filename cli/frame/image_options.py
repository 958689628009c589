"""Options of commands that read the images of caches again and store activations."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from clinit.cli.frame.options import MaxPixels, described, size_of
from clinit.cli.frame.study_options import Command, expand
from clinit.extract.dataset.known import MAX_PIXELS
from clinit.headtrain.top.images import Storage, TopImages

_option = partial(described, rich_help_panel="Activations")
Weights = Annotated[
    Path | None, _option("Weights that computed the features.", "FILE", "their path at extraction")
]
BaseRoot = Annotated[
    Path | None, _option("Folder of the base images.", "FOLDER", "as at extraction")
]
NewRoot = Annotated[Path | None, _option("Folder of the new images.", "FOLDER", "as at extraction")]
TrunkCacheFolder = Annotated[
    Path | None,
    _option("Folder of stored activations; runs may share it.", "FOLDER", "OUT/trunk-cache"),
]
TrunkBudget = Annotated[
    str,
    _option("Maximum bytes to store (0: none); the rest is computed again from images.", "SIZE"),
]
Workers = Annotated[
    int | None, _option("Threads that read and decode images.", None, "usable CPUs", min=1)
]
CheckpointEvery = Annotated[
    int, _option("Updates between two checkpoints; 0: only after each task.", min=0)
]


def takes_images(command: Command) -> Command:
    """Replace the parameter `images` of a command with options, as `expand` does.

    The command itself must have the parameters `context`, `base`, `new` and `out`.
    """
    options = {
        **{"weights": Weights, "base_root": BaseRoot, "new_root": NewRoot},
        **{"trunk_cache": TrunkCacheFolder, "trunk_budget": TrunkBudget},
        **{"workers": Workers, "max_pixels": MaxPixels},
    }
    defaults = dict.fromkeys(options) | {"trunk_budget": "20GB", "max_pixels": MAX_PIXELS}

    def build(values: Mapping[str, Any]) -> TopImages:
        storage = Storage(
            folder=values["trunk_cache"] or values["out"] / "trunk-cache",
            budget=size_of("--trunk-budget", values["trunk_budget"]),
            max_pixels=values["max_pixels"],
            workers=values["workers"],
        )
        # A sweep may have several caches a side, or no base; then it never reads images.
        first = {side: _first(values[side] or values["new"]) for side in ("base", "new")}
        more = {name: values[name] for name in ("base_root", "new_root", "weights")}
        return TopImages(storage=storage, **first, **more)

    return expand("images", options, defaults, build)(command)


def _first(paths: Path | list[Path]) -> Path:
    return paths[0] if isinstance(paths, list) else paths
