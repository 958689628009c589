"""The model that a command starts from, and how images go through a network.

    @takes_network
    def add(paths: ModelAndImages, network: NetworkOptions, ...) -> None:

Typer sees the options of a network of timm and of an extraction instead of `network`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from clinit.cli import completion
from clinit.cli.claim import tell_replaced
from clinit.cli.console import note, warn
from clinit.cli.export import FILE_SUFFIXES
from clinit.cli.extract_output import progress_bars
from clinit.cli.network_options import COMPUTATION, NETWORK, fills, in_panel, option
from clinit.cli.options import TransformKind
from clinit.cli.progress import doing
from clinit.cli.run_data import check_model
from clinit.cli.training_progress import training_progress
from clinit.errors import ManifestError
from clinit.extract.work import options
from clinit.files.paths import check_writable

if TYPE_CHECKING:
    from clinit.headtrain.events import Event, Observer
    from clinit.headtrain.model.edit import Model
    from clinit.headtrain.model.images import Listener

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
class NetworkOptions(options.NetworkOptions):
    """What the options say of a network of timm, and of the features of the images."""

    features: Path | None = None
    """Folder of the cache; None: next to the model that is written."""


_OPTIONS = {
    **in_panel(
        {
            **NETWORK,
            "backbone": option(
                str | None,
                "timm's name of it.",
                show_default=False,
                autocompletion=completion.backbones,
            ),
            "head_classes": option(
                Path | None,
                "File with one class name per row of the pretrained classifier.",
                metavar="FILE",
                show_default="stored with the weights; ImageNet-1K for 1,000 rows",
            ),
        },
        "A network of timm instead of MODEL",
    ),
    **in_panel(
        {
            "features": option(
                Path | None,
                "Folder of their cache; what is there is not computed again.",
                metavar="FOLDER",
                show_default="OUT-features",
            ),
            **COMPUTATION,
            "retry_invalid": option(
                bool, "Read images again that could not be read.", None, "--retry-invalid"
            ),
        },
        "Features of the images",
    ),
}
_OF_TIMM = ("weights", "model_arg", "head_classes", "input_size", "mean", "std")
takes_network = fills("network", NetworkOptions, _OPTIONS)


def check_out(out: Path, *, overwrite: bool) -> None:
    """Check that a model can be written to `out`, and that a file has the right suffix."""
    if out.suffix != ".safetensors" and out.suffix.lower() in FILE_SUFFIXES:
        raise typer.BadParameter(
            f"--out is a folder, or a file that ends in .safetensors, got {out}"
        )
    check_writable(out)
    if out.exists() or out.is_symlink():
        from clinit.headtrain.model.folder import check_free

        check_free(out, overwrite=overwrite)
    tell_replaced([out], overwrite=overwrite)


def open_source(paths: Sequence[Path], network: NetworkOptions) -> tuple[Model, Path]:
    """Return the model and the folder of images that the arguments of a command name."""
    check_paths(paths, network)
    from clinit.headtrain.model.edit import open_model, stock_model

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
    if given or network.transform != TransformKind.timm:
        option = (given or ["transform"])[0].replace("_", "-")
        raise typer.BadParameter(f"--{option} goes with --backbone; MODEL has its own")
    check_model(model, [images])


def listener() -> Listener:
    """Return what shows on the terminal how far the work on a model is."""
    from clinit.headtrain.model.images import Listener

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
