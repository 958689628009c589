"""Options that several commands share, such as options of a timm network and its images.

    @fills("network", NetworkOptions, OPTIONS)
    def add(paths: ModelAndImages, network: NetworkOptions, ...) -> None:

Typer sees the options instead of `network`; the command receives one value that contains them.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Mapping
from copy import copy
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from clinit.cli.frame.study_options import Command, expand
from clinit.headtrain.setting import fields_of
from clinit.headtrain.study.parts import Device, Training
from clinit.words import byte_count


def size_of(option: str, text: str) -> int:
    """Return the number of bytes for the text of an option, such as 8GB."""
    try:
        return byte_count(text)
    except ValueError as error:
        raise typer.BadParameter(f"{option} {error}") from error


def memory_size(text: str) -> int:
    """Return the number of bytes for the text of --memory."""
    if not (size := size_of("--memory", text)):
        raise typer.BadParameter("--memory must be a size above 0, such as 8GB")
    return size


def described(
    help: str, metavar: str | None = None, default: bool | str = True, **more: Any
) -> Any:
    """Return the description of an option whose name is the name of its parameter."""
    return typer.Option(help=help, metavar=metavar, show_default=default, **more)


Memory = Annotated[
    int | None,
    described(
        "Maximum memory for features, such as 8GB. Larger features are read from disk when they are"
        " needed, with the same results.",
        "SIZE",
        "free memory",
        parser=memory_size,
        rich_help_panel="Data",
    ),
]
DeviceOption = Annotated[Device, described(fields_of(Training)["device"].help)]
CacheOrFile = Annotated[
    Path, typer.Argument(help="Folder of a feature cache, or a file of `clinit statistics`.")
]
CacheArgument = Annotated[Path, typer.Argument(help="Folder written by `clinit extract --out`.")]


def _place(
    help: str, metavar: str = "FOLDER", panel: str = "Data", *names: str, **more: Any
) -> Any:
    return typer.Option(*names, help=help, metavar=metavar, rich_help_panel=panel, **more)


_SEVERAL = " Repeatable, for caches of one backbone."
_BASE, _NEW = "Feature cache of the base classes.", "Feature cache of the new classes."
_RECORDED = "the recorded one"
BaseCache = Annotated[Path, _place(_BASE)]
NewCache = Annotated[Path, _place(_NEW)]
BaseCaches = Annotated[
    list[Path] | None,
    _place(
        f"{_BASE} A file of `clinit statistics`, given in addition, replaces the training rows of"
        f" the cache. Without --base, the stream starts without classes.{_SEVERAL}",
        *("PATH", "Data", "--base"),
    ),
]
NewCaches = Annotated[list[Path], _place(_NEW + _SEVERAL, "FOLDER", "Data", "--new")]
BaseHead = Annotated[
    Path | None,
    _place(
        "Head of the base classes to start from, as `clinit align` writes it.",
        "FILE",
        show_default="the head in the base cache",
    ),
]
RecordedBase = Annotated[Path | None, _place(_BASE, show_default=_RECORDED)]
RecordedNew = Annotated[Path | None, _place(_NEW, show_default=_RECORDED)]
RecordedHead = Annotated[
    Path | None,
    _place("Head of the base classes to start from.", "FILE", show_default="the recorded head"),
]
HeadsByLoss = Annotated[
    list[str] | None,
    _place(
        "Pretrained head to start from instead of the base cache's, for all runs or only for runs"
        " of one loss; repeatable.",
        "[LOSS=]FILE",
    ),
]
RunsFolder = Annotated[
    Path, _place("Folder of the records, one sub-folder per run.", panel="Output")
]
Overwrite = Annotated[
    bool,
    typer.Option(
        "--overwrite",
        help="Replace an earlier result of clinit at --out. Other files are never replaced.",
        rich_help_panel="Output",
    ),
]
MaxPixels = Annotated[
    int,
    described(
        "Maximum number of pixels of an image, width x height; larger images count as unreadable.",
        min=1,
        rich_help_panel="Data",
    ),
]


AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


class Split(StrEnum):
    """A split of a data set."""

    train = "train"
    val = "val"


class ReadSplit(StrEnum):
    """Images of a data set to read; test images become the split val."""

    train = "train"
    val = "val"
    test = "test"

    @property
    def stored(self) -> str:
        """The split of the manifest that the images become."""
        return "train" if self is ReadSplit.train else "val"


READ_AS_VAL = " test: the test images become the split val, on which results are measured."


LABELS_HELP = (
    "For images that are not in class folders: a CSV, TSV or Parquet table with a column of paths"
    " and one of classes, perhaps one of splits and one of groups. FILE:path=NAME,class=NAME names"
    " unusual columns (also split=, group=)."
)
Labels = Annotated[str | None, described(LABELS_HELP, "FILE")]
TransformKind = Literal["timm", "paper"]
Dtype = Literal["float16", "float32"]
Autocast = Literal["off", "bfloat16", "float16"]
CompileOption = Annotated[
    Literal["auto", "on", "off"],
    described(
        "Compile the network, which takes some seconds and makes convolutional networks two to"
        " four times as fast; auto: as before if the cache exists, otherwise if it saves time.",
        rich_help_panel="Computation",
    ),
]
Workers = Annotated[
    int | None,
    described(
        "Threads that read and decode.", default="usable CPUs", min=1, rich_help_panel="Computation"
    ),
]


def option(kind: Any, help: str, panel: str | None = None, *names: str, **more: Any) -> Any:
    """Return the annotation of an option; with `names`, Typer adds no `--no-…` option."""
    return Annotated[kind, typer.Option(*names, help=help, rich_help_panel=panel, **more)]


_NETWORK = "Network"
NETWORK: Mapping[str, Any] = {
    "backbone": option(str | None, "timm's name of the network, with its tag.", _NETWORK),
    "weights": option(
        Path | None,
        "Checkpoint (.safetensors, or .pth that contains only tensors), or a folder with"
        " model.safetensors and config.json of timm.",
        _NETWORK,
        metavar="PATH",
        show_default="timm's download",
    ),
    "model_arg": option(
        list[str] | None, "Argument of timm.create_model, as name=value; repeatable.", _NETWORK
    ),
    "head_classes": option(
        str | None,
        "Class names of the classifier's rows: a file with one name per line, or `dataset` for the"
        " classes of this data set in order.",
        _NETWORK,
        show_default="stored with the weights; ImageNet-1K for 1,000 rows",
    ),
    "transform": option(
        TransformKind, "The model's own, or the paper's (256 x 256, centre crop 224).", _NETWORK
    ),
    "input_size": option(
        int | None,
        "Height and width of the network's input in pixels.",
        _NETWORK,
        min=1,
        max=4096,
        show_default="model's",
    ),
    "mean": option(
        str | None, "Pixel mean in [0, 1]: 0.5 or 0.5,0.5,0.5.", _NETWORK, show_default="model's"
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
        show_default="as in the existing cache; else 32 on a CPU, 64 on a GPU",
    ),
    "compile": CompileOption,
    "workers": Workers,
    "device": DeviceOption,
    "max_pixels": MaxPixels,
}


def in_panel(options: Mapping[str, Any], panel: str) -> dict[str, Any]:
    """Return copies of options that the help shows in the panel `panel`."""
    placed = {}
    for name, kind in options.items():
        (found,) = kind.__metadata__
        found = copy(found)
        found.rich_help_panel = panel
        placed[name] = Annotated[kind.__origin__, found]
    return placed


def fills(name: str, owner: type, options: Mapping[str, Any]) -> Callable[[Command], Command]:
    """Replace the parameter `name` of a command with options, as `expand` does.

    The command receives them as the dataclass `owner`, whose fields give the defaults.
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
        for moment in {"mean", "std"} & found.keys():
            found[moment] = numbers(f"--{moment}", found[moment])
        return owner(**found)

    return expand(name, options, defaults, build)


def numbers(option: str, text: str | None) -> tuple[float, ...] | None:
    """Parse a mean or deviation: one number, or one per channel as in `0.5,0.5,0.5`."""
    if text is None:
        return None
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError:
        found = ()
    if len(found) not in (1, 3) or not all(math.isfinite(number) for number in found):
        raise typer.BadParameter(f"{option} takes one number or three, got {text!r}")
    if max(found) > 1:
        raise typer.BadParameter(f"{option} is for pixels in [0, 1] (127 is 0.498), got {text!r}")
    if min(found) < 0 or (option == "--std" and min(found) == 0):
        raise typer.BadParameter(f"--mean must be at least 0, --std above 0, got {option} {text}")
    return found
