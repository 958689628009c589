"""Options that say which network of timm computes, and what its images go through.

    @fills("network", NetworkOptions, OPTIONS)
    def add(paths: ModelAndImages, network: NetworkOptions, ...) -> None:

Typer sees the options instead of `network`, and the command receives them in one value.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Mapping
from copy import copy
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from clinit.cli.completion import backbones
from clinit.cli.options import DeviceOption, MaxPixels, TransformKind
from clinit.cli.study_options import Command, expand

Workers = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Threads that read and decode.",
        show_default="usable CPUs",
        rich_help_panel="Computation",
    ),
]


def option(kind: Any, help: str, panel: str | None = None, *names: str, **more: Any) -> Any:
    """Return the annotation of an option; `names` where it has no opposite."""
    return Annotated[kind, typer.Option(*names, help=help, rich_help_panel=panel, **more)]


_NETWORK = "Network"
NETWORK: Mapping[str, Any] = {
    "backbone": option(
        str | None,
        "timm's name of the network, with its tag.",
        _NETWORK,
        autocompletion=backbones,
    ),
    "weights": option(
        Path | None,
        "Checkpoint (.safetensors, or .pth that holds tensors only).",
        _NETWORK,
        metavar="FILE",
        show_default="timm's download",
    ),
    "model_arg": option(
        list[str] | None,
        "Argument of timm.create_model, as name=value; repeatable.",
        _NETWORK,
        show_default=False,
    ),
    "head_classes": option(
        str | None,
        "What the rows of the pretrained classifier stand for: a file with one name per line, or"
        " `dataset` for the classes of this data set in order.",
        _NETWORK,
        show_default="stored with the weights; ImageNet-1K for 1,000 rows",
    ),
    "transform": option(
        TransformKind, "The model's own, or the paper's (256 x 256, centre crop 224).", _NETWORK
    ),
    "input_size": option(
        int | None,
        "Side of the network's input in pixels.",
        _NETWORK,
        min=1,
        max=4096,
        show_default="model's",
    ),
    "mean": option(
        str | None,
        "Pixel mean in [0, 1]: 0.5 or 0.5,0.5,0.5.",
        _NETWORK,
        show_default="model's",
    ),
    "std": option(
        str | None, "Pixel deviation, in the same form.", _NETWORK, show_default="model's"
    ),
}
COMPUTATION: Mapping[str, Any] = {
    "batch_size": option(
        int | None,
        "Images per forward pass.",
        "Computation",
        min=1,
        max=10**9,
        show_default="as begun; else 32 on a CPU, 64 on a GPU",
    ),
    "workers": Workers,
    "device": DeviceOption,
    "max_pixels": MaxPixels,
}


def in_panel(options: Mapping[str, Any], panel: str) -> dict[str, Any]:
    """Return options that stand in one panel of the help."""
    placed = {}
    for name, kind in options.items():
        (found,) = kind.__metadata__
        found = copy(found)
        found.rich_help_panel = panel
        placed[name] = Annotated[kind.__origin__, found]
    return placed


def fills(name: str, owner: type, options: Mapping[str, Any]) -> Callable[[Command], Command]:
    """Let a command take options, and receive them in `name` as the dataclass `owner`.

    The defaults of the options are those of the fields.
    """
    defaults = {
        each.name: inspect.Parameter.empty if each.default is dataclasses.MISSING else each.default
        for each in dataclasses.fields(owner)
    }

    def build(values: Mapping[str, Any]) -> Any:
        found = {
            key: value.value if isinstance(value := values[key], StrEnum) else value
            for key in options
        }
        for moment in ("mean", "std"):
            found[moment] = numbers(f"--{moment}", found[moment])
        return owner(**found)

    return expand(name, options, defaults, build)


def numbers(option: str, text: str | None) -> tuple[float, ...] | None:
    """Return one number or three, one per channel, from a text such as `0.5,0.5,0.5`."""
    if text is None:
        return None
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError:
        found = ()
    if len(found) not in (1, 3) or not all(math.isfinite(number) for number in found):
        raise typer.BadParameter(f"{option} takes one number or three, got {text!r}")
    if max(found) > 1:
        shown = ",".join(f"{number:g}/255" for number in found)
        raise typer.BadParameter(
            f"{option} is of pixels between 0 and 1, got {text!r}. Was {shown} meant, which is"
            f" {','.join(f'{number / 255:.3g}' for number in found)}?"
        )
    if min(found) < 0 or (option == "--std" and min(found) == 0):
        raise typer.BadParameter(f"{option} must not be negative or a deviation of 0, got {text!r}")
    return found
