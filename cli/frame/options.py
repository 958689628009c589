"""Options that several commands share, such as caches, and options of images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from clinit.extract.work.options import LABELS
from clinit.headtrain.protocol.study.parts import Training
from clinit.setting import fields_of
from clinit.words import byte_count


def memory_size(text: str) -> int:
    """Return the number of bytes for the text of --memory."""
    try:
        size = byte_count(text)
    except ValueError as error:
        raise typer.BadParameter(f"--memory {error}") from error
    if not size:
        raise typer.BadParameter("--memory must be a size above 0, such as 8GB")
    return size


def described(help: str, metavar: str | None = None, default: bool | str = True, **kw: Any) -> Any:
    """Return the description of an option whose name is the name of its parameter."""
    return typer.Option(help=help, metavar=metavar, show_default=default, **kw)


MemoryOption = Annotated[
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
DeviceOption = Annotated[str, described(fields_of(Training)["device"].help)]
CacheArgument = Annotated[
    Path, typer.Argument(help="Folder of `clinit extract` or `clinit cache import`.")
]


def _place(help: str, metavar: str = "FOLDER", panel: str = "Data", **kw: Any) -> Any:
    return typer.Option(help=help, metavar=metavar, rich_help_panel=panel, **kw)


_SEVERAL = " Repeatable, for caches of one backbone."
_BASE, _NEW = "Feature cache of the base classes.", "Feature cache of the new classes."
BaseCache = Annotated[Path, _place(_BASE)]
NewCache = Annotated[Path, _place(_NEW)]
BaseCaches = Annotated[
    list[Path] | None,
    _place(f"{_BASE} Without --base, the stream starts without classes.{_SEVERAL}"),
]
NewCaches = Annotated[list[Path], _place(_NEW + _SEVERAL)]
BaseHeadOption = Annotated[
    Path | None,
    _place(
        "Head of the base classes to start from, as `clinit head align` writes it.",
        "FILE",
        show_default="the head in the base cache",
    ),
]
HeadsByLoss = Annotated[
    list[str] | None,
    _place(
        "Pretrained head to start from instead of the base cache's, for all runs or only for runs"
        " of one loss; repeatable.",
        "[LOSS=]FILE",
    ),
]
RunsFolder = Annotated[Path, _place("Folder of the records, a sub-folder per run.", panel="Output")]
Overwrite = Annotated[
    bool,
    typer.Option(
        "--overwrite",
        help="Replace an earlier result of clinit at --out. Other files are never replaced.",
        rich_help_panel="Output",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


Split = Literal["train", "val"]
ReadSplit = Literal["train", "val", "test"]
"""Test images become the split val."""
Labels = Annotated[str | None, described(LABELS, "FILE")]
