"""Types and values that several commands share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from clinit.cli.completion import caches
from clinit.headtrain.setting import fields_of
from clinit.headtrain.study.parts import Device, Training
from clinit.words import byte_count


def memory_size(text: str) -> int:
    """Return the bytes that --memory names."""
    try:
        size = byte_count(text)
    except ValueError as error:
        raise typer.BadParameter(f"--memory {error}") from error
    if not size:
        raise typer.BadParameter("--memory takes a size above 0, such as 8GB")
    return size


Memory = Annotated[
    int | None,
    typer.Option(
        parser=memory_size,
        metavar="SIZE",
        rich_help_panel="Data",
        help="Most memory for features, such as 8GB; rows of features that take more are read from"
        " disk when they are needed, with the same results.",
        show_default="what is free",
    ),
]
DeviceOption = Annotated[Device, typer.Option(help=fields_of(Training)["device"].help)]
CacheArgument = Annotated[
    Path,
    typer.Argument(
        help="Folder written by `clinit extract --out`.", show_default=False, autocompletion=caches
    ),
]


def _place(
    help: str, metavar: str = "FOLDER", panel: str = "Data", *names: str, **more: Any
) -> Any:
    settings = {"show_default": False, **more}
    return typer.Option(*names, help=help, metavar=metavar, rich_help_panel=panel, **settings)


_SEVERAL = " Repeatable: caches of one backbone."
_BASE, _NEW = "Feature cache of the base classes.", "Feature cache of the new classes."
_RECORDED = "where it was recorded"
BaseCache = Annotated[Path, _place(_BASE, autocompletion=caches)]
NewCache = Annotated[Path, _place(_NEW, autocompletion=caches)]
BaseCaches = Annotated[
    list[Path], _place(_BASE + _SEVERAL, "FOLDER", "Data", "--base", autocompletion=caches)
]
NewCaches = Annotated[
    list[Path], _place(_NEW + _SEVERAL, "FOLDER", "Data", "--new", autocompletion=caches)
]
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
    _place("Head of the base classes that it starts from.", "FILE", show_default="the same"),
]
HeadsByLoss = Annotated[
    list[str] | None,
    _place(
        "Pretrained head to start from instead of the base cache's, for all runs or for those of"
        " one loss; repeatable.",
        "[LOSS=]FILE",
    ),
]
RunsFolder = Annotated[
    Path, _place("Folder of the records, one sub-folder per run.", panel="Output")
]
VerboseStarts = Annotated[
    bool,
    typer.Option(
        "--verbose", "-v", help="Show what each initialisation chose.", rich_help_panel="Output"
    ),
]
Overwrite = Annotated[
    bool,
    typer.Option(
        "--overwrite",
        help="Replace what clinit has written at --out before; nothing else is ever replaced.",
        rich_help_panel="Output",
    ),
]
MaxPixels = Annotated[
    int,
    typer.Option(
        min=1,
        help="Largest image that is decoded, width x height; a larger one is a bad image.",
        rich_help_panel="Data",
    ),
]


class Output(StrEnum):
    """How a result is printed."""

    table = "table"
    json = "json"


OutputFormat = Annotated[
    Output, typer.Option("--format", "-f", help="Table, or JSON for programs.")
]
AsJson = Annotated[bool, typer.Option("--json", help="The same as --format json.")]


class Split(StrEnum):
    """A split of a data set."""

    train = "train"
    val = "val"


class ReadSplit(StrEnum):
    """What is read of a data set; test images become the split that results are reported on."""

    train = "train"
    val = "val"
    test = "test"

    @property
    def stored(self) -> str:
        """The split that they become."""
        return Split.train.value if self is ReadSplit.train else Split.val.value


READ_AS_VAL = " test: the test images become the split val, on which results are reported."


class TransformKind(StrEnum):
    """Preprocessing without augmentation."""

    timm = "timm"
    paper = "paper"


class Dtype(StrEnum):
    """How features are stored."""

    float16 = "float16"
    float32 = "float32"


class Autocast(StrEnum):
    """Arithmetic of the forward pass."""

    off = "off"
    bfloat16 = "bfloat16"
    float16 = "float16"
