"""Arguments of commands that change a model: the model, images or features, and the new model.

    @takes_network
    def add(paths: ModelAndImages, network: NetworkOptions, ...) -> None:

Typer sees the options of a timm network and of an extraction instead of `network`.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from clinit.cli.frame.console import note
from clinit.cli.frame.options import described
from clinit.cli.frame.process import Interruption, claimed_file
from clinit.cli.frame.progress import training_progress
from clinit.cli.frame.study_options import takes
from clinit.errors import ManifestError, ModelError
from clinit.extract.work import options
from clinit.extract.work.options import COMPUTATION, DATA, NETWORK
from clinit.files.paths import check_free, check_writable, instead_of, kind_of, looks_like_model
from clinit.headtrain.model.settings import WRITES_MODELS, ArrivalKind
from clinit.observer import Doing, Noted, Observer
from clinit.setting import fields_of, setting
from clinit.words import quoted

if TYPE_CHECKING:
    from clinit.headtrain.model.inputs import Inputs
    from clinit.headtrain.model.model import Model

Command = TypeVar("Command", bound=Callable[..., Any])
FILE_SUFFIXES = {
    *(".bin", ".ckpt", ".csv", ".h5", ".html", ".json", ".md", ".npy", ".npz", ".onnx", ".pickle"),
    *(".pkl", ".pt", ".pth", ".safetensor", ".safetensors", ".tar", ".txt", ".yaml", ".zip"),
}
"""Suffixes of files: an --out with such a suffix is probably not meant to be a folder."""
ONNX_FORM = "-onnx"
"""End of the name of a folder with a model as ONNX too."""
FEATURE_SUFFIXES = (".npy", ".npz", ".safetensors")

ModelAndImages = Annotated[
    list[Path],
    typer.Argument(
        help="Folder or file of a model, or a head file; and a folder of images: class folders, or"
        " train/<class> and val/<class>. Or features in place of images: a feature cache, or a file"
        " of arrays. With --backbone, only the images.",
        metavar="[MODEL] IMAGES",
    ),
]
ModelArgument = Annotated[Path, typer.Argument(help="Folder or file of a model, or a head file.")]
ModelOut = Annotated[
    Path | None,
    described(
        "Model to write: a folder, or a file that ends in .safetensors and stores no memory of a"
        " network's images. A head on features may also be a file that ends in .npz.",
        default="next to MODEL: flowers-2 for flowers, then flowers-3",
    ),
]


@dataclass(frozen=True, kw_only=True)
class GivenNetwork(options.NetworkOptions):
    """Options of a timm network, and of the features of the images."""

    head_classes: str | None = setting(
        None,
        "File with one class name per row of the pretrained classifier.",
        panel=NETWORK,
        metavar="FILE",
        otherwise="stored with the weights; ImageNet-1K for 1,000 rows",
    )
    labels: str | None = setting(
        None,
        f"{options.LABELS} For features: a file with one label per row.",
        panel=COMPUTATION,
        metavar="FILE",
    )
    without: Path | None = setting(
        None,
        "File that lists images to leave out, as `--html` writes it: their paths below IMAGES, one"
        " per line.",
        panel=COMPUTATION,
        metavar="FILE",
    )
    features: Path | None = setting(
        None,
        "Folder of the feature cache; existing features are not computed again.",
        panel=COMPUTATION,
        metavar="FOLDER",
        otherwise="OUT-features; without --out, existing features of the same images",
    )

    def refuse(self, names: Collection[str], why: str) -> None:
        """Refuse options that differ from their defaults; `why` follows the name of the option."""
        for name, each in fields_of(GivenNetwork).items():
            if name in names and getattr(self, name) != each.default:
                raise typer.BadParameter(f"{each.option} {why}")


_FIXED = ("decoder", "dtype", "output", "precision", "shard_rows", "strict", "view_seed", "views")
_FEATURES = "Features of the images"
_PANELS = {NETWORK: "A timm network instead of MODEL", COMPUTATION: _FEATURES, DATA: _FEATURES}
takes_network = takes("network", GivenNetwork, but=_FIXED, panels=_PANELS)


def command_data() -> dict[str, Any]:
    """Return the facts about this command that the history of a model contains."""
    return {"command": ["clinit", *sys.argv[1:]]}


def target(
    out: Path | None,
    model: Path,
    *others: Path,
    tell: Callable[[str], None] = note,
    form: str = "",
    overwrite: bool,
) -> Path:
    """Return the path of the new model; check that it can be written, with the right suffix.

    Args:
        out: The path, if the user gives one.
        model: The model before; a path next to it is chosen, and told.
        others: Further models, which are only read too.
        tell: Called with the choice in words.
        form: As in `next_to`.
        overwrite: Whether an existing model may be replaced.
    """
    if out is None:
        if overwrite:
            raise typer.BadParameter("--overwrite needs --out: without it, nothing is replaced")
        out = next_to(model, form)
        tell(f"the new model goes to {out}; {model.name or model} stays as it is")
    if out.suffix not in (".safetensors", ".npz") and out.suffix.lower() in FILE_SUFFIXES:
        raise typer.BadParameter(
            f"--out must be a folder, or a file that ends in .npz or .safetensors, got {out}"
        )
    check_writable(out)
    if kind_of(out) or out.is_symlink():
        from clinit.headtrain.model.storage import check_apart, foreign_to_model

        for reads in (model, *others):
            check_apart(out, reads)
        check_free(out, "model", foreign_to_model, ModelError, overwrite=overwrite)
    return out


def next_to(model: Path, form: str = "") -> Path:
    """Return a free path next to a model: `flowers-2` for `flowers`, then `flowers-3`.

    The same model in another form is no step of this series: with `-onnx`, `flowers-onnx`.
    """
    model = model if model.name not in ("", "..") else model / ".." / model.resolve().name
    suffix = model.suffix if model.suffix in (".safetensors", ".npz") else ""
    stem = model.name.removesuffix(suffix) + form
    suffix = suffix if form != ONNX_FORM else ""
    if form and not os.path.lexists(free := model.with_name(f"{stem}{suffix}")):
        return free
    base, _, number = stem.rpartition("-")
    before = [f"{base}{suffix}", f"{base}-{int(number) - 1}{suffix}"] if number.isdecimal() else []
    if not any(os.path.lexists(model.with_name(name)) for name in before if base):
        base = stem  # `resnet-50` is no version of `resnet`
    pattern = re.compile(rf"{re.escape(base)}-(\d+){re.escape(suffix)}")
    taken = (pattern.fullmatch(each.name) for each in model.parent.iterdir())
    number = str(max([1, *(int(each[1]) for each in taken if each)]) + 1)
    return model.with_name(f"{base}-{number}{suffix}")


def check_source(paths: Sequence[Path], network: GivenNetwork) -> None:
    """Check that the arguments of a command name a model and images, before PyTorch is loaded."""
    if len(paths) != (2 if network.backbone is None else 1):
        raise typer.BadParameter(
            "give MODEL and IMAGES, one folder with all class folders; or give --backbone and only"
            " IMAGES"
        )
    if network.backbone is None:
        names = [name for name, each in fields_of(GivenNetwork).items() if each.panel == NETWORK]
        network.refuse(names, "needs --backbone: MODEL has a network")
        check_model(paths[0], paths[1:])
    check_images(paths[-1])
    if network.backbone is not None:
        from clinit.extract.network.hub import check_download

        check_download(network.backbone, network.weights)


def check_file(path: Path | None, kind: str, *suffixes: str) -> None:
    """Check that a file, if one is wanted, can be written to `path`.

    Args:
        path: The value of an option.
        kind: Name of the option, and suffix of the file.
        suffixes: Suffixes in its place.
    """
    if path is None:
        return
    ends = suffixes or (f".{kind}",)
    if path.suffix not in ends or kind_of(path) == "folder":
        raise typer.BadParameter(
            f"--{kind} needs a file that ends in {' or '.join(ends)}, got {path}"
        )
    check_writable(path, f"--{kind}")


def check_images(path: Path) -> None:
    """Check that a path is a folder, which may contain images, or a file of features."""
    kind = kind_of(path)
    if kind != "folder" and not (kind == "file" and path.suffix.lower() in FEATURE_SUFFIXES):
        remedy = (
            "Give a folder that contains a folder of images for each class; or features: a feature"
            f" cache, or a file that ends in {', '.join(FEATURE_SUFFIXES)}."
        )
        remedy = instead_of(path, remedy, Path.is_dir)
        raise ManifestError(f"no folder of images at {path}", remedy=remedy)


def check_model(path: Path, images: Sequence[Path] = ()) -> None:
    """Check that the argument for the model exists, and is not swapped with the images.

    Args:
        path: The argument in the place of the model.
        images: The following arguments.

    Raises:
        ModelError: If `path` does not exist, or is not a model although one of `images` is.
    """
    if kind_of(path) is None:
        remedy = instead_of(path, WRITES_MODELS, looks_like_model)
        raise ModelError(f"no model at {path}", remedy=remedy)
    model = next(filter(looks_like_model, images), None)
    if model is not None and not looks_like_model(path):
        raise ModelError(
            f"{path} is not a model, but {model} is: are they swapped?",
            remedy=f"Give the model first: {quoted(model)} {quoted(path)}",
        )


@contextmanager
def opened(
    paths: list[Path], given: GivenNetwork, out: Path | None, kind: ArrivalKind, *, overwrite: bool
) -> Iterator[tuple[Model, Inputs, Path, Observer]]:
    """Claim `out`, and open the model in the arguments of a command.

    Yields the model, its input, the path of the new model, and the observer of the work.
    Wrong arguments are refused before PyTorch is loaded, which takes seconds; folders that cannot
    be listed and wrong names of classes before the network of a model is loaded.

    Args:
        paths: The model and the images; with a timm network, only the images.
        given: The timm network, if any, and how to compute features of the images.
        out: Path of the new model, if given.
        kind: What is done with the images.
        overwrite: Whether to replace a model at `out`.
    """
    if out is None and given.backbone is not None:
        raise typer.BadParameter("--backbone needs --out: the name of the new model")
    check_source(paths, given)
    choice, folders = list[str](), list[Path]()
    place = target(out, paths[0], tell=choice.append, overwrite=overwrite)
    with kept(folders), claimed_file(place), training_progress() as observe:
        from clinit.headtrain.model.images import ImageFolder, kept_features
        from clinit.headtrain.model.inputs import check_names
        from clinit.headtrain.model.model import load_model
        from clinit.headtrain.model.storage import check_apart, check_kind

        inputs = _inputs(paths[-1], given, observe)
        names = inputs.class_names
        if given.backbone is None and paths[0].suffix != ".onnx":
            check_names(without_network(paths[0]), names, kind)
        for text in choice:
            observe(Noted(text))
        observe(Doing("Loading the model …"))
        if given.backbone is not None:
            from clinit.extract.work.run import ExtractConfig
            from clinit.headtrain.model.network import stock_model

            model: Model = stock_model(ExtractConfig.of(given))
            if model.facts.assumed is not None:
                observe(Noted(f"{model.facts.assumed}; for others, --head-classes FILE"))
        else:
            model = load_model(paths[0], device=given.device)
        for reads in (paths[-1], Path(model.origin)):
            check_apart(place, reads)
        check_kind(model, place)
        if isinstance(inputs, ImageFolder):
            model.need_engine()
            known = kept_features(paths[-1], model, place) if out is None else None
            if (features := given.features or known) is None:
                features = place.with_name(f"{place.name}-features")
            inputs = inputs.kept_at(features)
            folders.append(features)
        yield model, inputs, place, observe


def without_network(path: Path) -> Model:
    """Return a model with its facts alone, which are read at once: its rows are zero."""
    import numpy as np

    from clinit.extract.cache.head import Head
    from clinit.headtrain.model.model import Model
    from clinit.headtrain.model.storage import read_facts

    facts = read_facts(path)
    nothing = np.zeros((facts.num_classes, 1), np.float32)
    head = Head(nothing, nothing[:, 0], facts.class_names)
    return Model(facts=facts, linear=head, origin=str(path))


@contextmanager
def kept(folders: list[Path]) -> Iterator[None]:
    """Let an interruption know whether one of the folders keeps any features."""
    try:
        yield
    except Interruption as interruption:
        interruption.is_empty = not any(any(each.glob("*/shard-*.h5")) for each in folders)
        raise


def _inputs(path: Path, network: GivenNetwork, observe: Observer) -> Inputs:
    """Return the images or features at `path`; refuse options that features leave idle."""
    from clinit.headtrain.model.inputs import features_in, is_features

    if not is_features(path):
        from clinit.extract.work.run import ExtractConfig
        from clinit.headtrain.model.images import ImageFolder

        return ImageFolder(
            root=path,
            labels=network.labels,
            without=network.without,
            extraction=ExtractConfig.of(network),
            data=command_data(),
            observe=observe,
        )
    every = fields_of(GivenNetwork).items()
    idle = {name for name, each in every if each.panel != NETWORK} - {"labels", "device"}
    network.refuse(idle, f"has no effect: {path} contains features")
    observe(Doing("Reading the features …"))
    found = features_in(path, network.labels)
    return replace(found, data={**found.data, **command_data()})
