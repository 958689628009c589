"""Options that say which network of timm, and what its images go through."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from clinit.cli.options import TransformKind

Weights = Annotated[
    Path | None,
    typer.Option(
        help="Checkpoint (.safetensors, or .pth that holds tensors only).",
        metavar="FILE",
        show_default="timm's download",
        rich_help_panel="Network",
    ),
]
ModelArgs = Annotated[
    list[str] | None,
    typer.Option(
        help="Argument of timm.create_model, as name=value; repeatable.",
        show_default=False,
        rich_help_panel="Network",
    ),
]
Transform = Annotated[
    TransformKind,
    typer.Option(
        help="The model's own, or the paper's (256 x 256, centre crop 224).",
        rich_help_panel="Network",
    ),
]
InputSize = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=4096,
        help="Side of the network's input in pixels.",
        show_default="model's",
        rich_help_panel="Network",
    ),
]
PixelMean = Annotated[
    str | None,
    typer.Option(
        help="Pixel mean in [0, 1]: 0.5 or 0.5,0.5,0.5.",
        show_default="model's",
        rich_help_panel="Network",
    ),
]
PixelDeviation = Annotated[
    str | None,
    typer.Option(
        help="Pixel deviation, in the same form.", show_default="model's", rich_help_panel="Network"
    ),
]
BatchSize = Annotated[
    int,
    typer.Option(min=1, max=10**9, help="Images per forward pass.", rich_help_panel="Computation"),
]
Workers = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Threads that read and decode.",
        show_default="usable CPUs",
        rich_help_panel="Computation",
    ),
]


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
    if option == "--mean" and min(found) < 0:
        raise typer.BadParameter(f"--mean must not be negative, got {text!r}")
    if option == "--std" and min(found) <= 0:
        raise typer.BadParameter(f"--std must be positive, got {text!r}")
    return found
