"""The model that a command starts from, and how images go through a network.

    @takes_network
    def add(paths: ModelAndImages, network: NetworkOptions, ...) -> None:

Typer sees the options of a network of timm and of an extraction instead of `network`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from clinit.cli import completion
from clinit.cli.choices import DeviceOption, MaxPixels, TransformKind
from clinit.cli.claim import tell_replaced
from clinit.cli.console import note, warn
from clinit.cli.expand import expand
from clinit.cli.export import FILE_SUFFIXES
from clinit.cli.extract_output import progress_bars
from clinit.cli.network_options import (
    InputSize,
    ModelArgs,
    PixelDeviation,
    PixelMean,
    Transform,
    Weights,
    Workers,
    numbers,
)
from clinit.cli.places import check_model
from clinit.cli.progress import doing
from clinit.cli.training_progress import training_progress
from clinit.errors import ManifestError
from clinit.extract.dataset.decode import MAX_PIXELS
from clinit.files.paths import check_writable
from clinit.machine import cpu_count

if TYPE_CHECKING:
    from clinit.extract.run import ExtractConfig
    from clinit.headtrain.deployed.images import Listener
    from clinit.headtrain.deployed.model import Model
    from clinit.headtrain.events import Event, Observer

Command = TypeVar("Command", bound=Callable[..., Any])

ModelAndImages = Annotated[
    list[Path],
    typer.Argument(
        help="Folder or file of a model, and a folder of images: class folders, or train/<class>"
        " and val/<class>. With --backbone, the images alone.",
        metavar="[MODEL] IMAGES",
        show_default=False,
    ),
]
ModelArgument = Annotated[
    Path,
    typer.Argument(
        help="Folder or file of a model.", show_default=False, autocompletion=completion.models
    ),
]
ModelOut = Annotated[
    Path,
    typer.Option(
        help="Model to write: a folder, or one file that ends in .safetensors, which remembers"
        " nothing.",
        show_default=False,
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkOptions:
    """What the options say of a network of timm, and of how images go through any network."""

    backbone: str | None
    weights: Path | None
    model_arg: Sequence[str] | None
    head_classes: Path | None
    transform: TransformKind
    input_size: int | None
    mean: str | None
    std: str | None
    features: Path | None
    device: str
    batch_size: int | None
    workers: int | None
    retry_invalid: bool
    max_pixels: int

    def extraction(self) -> ExtractConfig:
        """Return the configuration of an extraction; of the network, what timm's needs."""
        from clinit.extract.backbone import BackboneConfig
        from clinit.extract.device import choose_device
        from clinit.extract.model_args import parse_model_args
        from clinit.extract.run import ExtractConfig

        return ExtractConfig(
            backbone=BackboneConfig(
                name=self.backbone or "",
                weights=self.weights,
                model_args=parse_model_args(self.model_arg or ()),
                device=str(choose_device(self.device)),
            ),
            transform=self.transform.value,
            input_size=self.input_size,
            mean=numbers("--mean", self.mean),
            std=numbers("--std", self.std),
            batch_size=self.batch_size,
            workers=self.workers or cpu_count(),
            max_pixels=self.max_pixels,
            retry_invalid=self.retry_invalid,
            head_classes=None if self.head_classes is None else str(self.head_classes),
        )


_TIMM, _IMAGES = "A network of timm instead of MODEL", "Features of the images"
_OF_TIMM = ("weights", "model_arg", "head_classes", "input_size", "mean", "std")
_OPTIONS: Mapping[str, tuple[Any, Any, str]] = {
    "backbone": (
        Annotated[
            str | None,
            typer.Option(
                help="timm's name of it.",
                show_default=False,
                autocompletion=completion.backbones,
            ),
        ],
        None,
        _TIMM,
    ),
    "weights": (Weights, None, _TIMM),
    "model_arg": (ModelArgs, None, _TIMM),
    "head_classes": (
        Annotated[
            Path | None,
            typer.Option(
                help="File with one class name per row of the pretrained classifier.",
                metavar="FILE",
                show_default="stored with the weights; ImageNet-1K for 1,000 rows",
            ),
        ],
        None,
        _TIMM,
    ),
    "transform": (Transform, TransformKind.timm, _TIMM),
    "input_size": (InputSize, None, _TIMM),
    "mean": (PixelMean, None, _TIMM),
    "std": (PixelDeviation, None, _TIMM),
    "features": (
        Annotated[
            Path | None,
            typer.Option(
                help="Folder of their cache; what is there is not computed again.",
                metavar="FOLDER",
                show_default="OUT-features",
            ),
        ],
        None,
        _IMAGES,
    ),
    "device": (DeviceOption, "auto", _IMAGES),
    "batch_size": (
        Annotated[
            int | None,
            typer.Option(
                min=1,
                max=10**9,
                help="Images per forward pass.",
                show_default="as begun; else 32 on a CPU, 64 on a GPU",
            ),
        ],
        None,
        _IMAGES,
    ),
    "workers": (Workers, None, _IMAGES),
    "retry_invalid": (
        Annotated[
            bool, typer.Option("--retry-invalid", help="Read images again that could not be read.")
        ],
        False,
        _IMAGES,
    ),
    "max_pixels": (MaxPixels, MAX_PIXELS, _IMAGES),
}


def takes_network(command: Command) -> Command:
    """Let a command take the options of a network, and receive them in `network`."""
    options = {name: _in_panel(kind, panel) for name, (kind, _, panel) in _OPTIONS.items()}
    defaults = {name: default for name, (_, default, _) in _OPTIONS.items()}

    def build(values: Mapping[str, Any]) -> NetworkOptions:
        return NetworkOptions(**{each.name: values[each.name] for each in fields(NetworkOptions)})

    return expand("network", options, defaults, build)(command)


def _in_panel(kind: Any, panel: str) -> Any:
    """Return an annotated type with its option in a panel of the help."""
    from copy import copy

    (option,) = kind.__metadata__
    placed = copy(option)
    placed.rich_help_panel = panel
    return Annotated[kind.__origin__, placed]


def check_out(out: Path, *, overwrite: bool) -> None:
    """Check that a model can be written to `out`, and that a file has the right suffix."""
    if out.suffix != ".safetensors" and out.suffix.lower() in FILE_SUFFIXES:
        raise typer.BadParameter(
            f"--out is a folder, or a file that ends in .safetensors, got {out}"
        )
    check_writable(out)
    if out.exists() or out.is_symlink():
        from clinit.headtrain.export.model_folder import check_free

        check_free(out, overwrite=overwrite)
    tell_replaced([out], overwrite=overwrite)


def open_source(paths: Sequence[Path], network: NetworkOptions) -> tuple[Model, Path]:
    """Return the model and the folder of images that the arguments of a command name."""
    check_paths(paths, network)
    from clinit.headtrain.deployed.model import open_model, stock_model

    with doing("Loading the model …"):
        if network.backbone is not None:
            return stock_model(network.extraction()), paths[0]
        return open_model(paths[0], device=network.device), paths[1]


def check_paths(paths: Sequence[Path], network: NetworkOptions) -> None:
    """Check that the arguments of a command name a model and images, before PyTorch is loaded."""
    needed = 2 if network.backbone is None else 1
    if len(paths) != needed:
        raise typer.BadParameter(
            "with --backbone, give the folder of images alone"
            if needed == 1
            else "give MODEL and IMAGES; or --backbone and IMAGES alone"
        )
    if network.backbone is None:
        _check_of_model(paths[0], paths[1], network)
    if not paths[-1].is_dir():
        raise ManifestError(
            f"no folder of images at {paths[-1]}",
            remedy="Give a folder that holds a folder of images for each class.",
        )


def _check_of_model(model: Path, images: Path, network: NetworkOptions) -> None:
    """Check that there is a model, and that no option of a network stands beside it."""
    given = [name for name in _OF_TIMM if getattr(network, name)]
    if given or network.transform is not TransformKind.timm:
        option = (given or ["transform"])[0].replace("_", "-")
        raise typer.BadParameter(f"--{option} goes with --backbone; MODEL has its own")
    check_model(model, [images])


def listener() -> Listener:
    """Return what shows on the terminal how far the work on a model is."""
    from clinit.headtrain.deployed.images import Listener

    return Listener(note=note, warn=warn, doing=doing, extracting=progress_bars, training=_training)


@contextmanager
def _training() -> Iterator[Observer]:
    """Show the progress, but not the notes of an experiment, which speak of its options."""
    from clinit.headtrain.events import Noted

    def seen(event: Event) -> None:
        if not isinstance(event, Noted):
            observe(event)

    with training_progress(verbose=False) as observe:
        yield seen
