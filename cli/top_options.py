"""The options of `clinit train-top`: their types, words and help."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from clinit.cli.choices import (
    Bias,
    BufferSplit,
    ClassMean,
    Device,
    HeadWidth,
    Init,
    InitRows,
    Mix,
    Scale,
    Weighting,
)
from clinit.cli.choices import Loss as LossChoice
from clinit.cli.context import Context, given
from clinit.cli.method_options import KEPT


class TopMethod(StrEnum):
    """How earlier classes are kept."""

    rehearsal = "rehearsal"
    naive = "naive"
    joint = "joint"
    ewc = "ewc"
    derpp = "derpp"


class FactorInit(StrEnum):
    """Distribution of the first low-rank factor."""

    gaussian = "gaussian"
    kaiming = "kaiming"


class Ewc(StrEnum):
    """Anchors of EWC."""

    task = "task"
    online = "online"


class DerppTeacher(StrEnum):
    """Where the former logits are from."""

    snapshot = "snapshot"
    stored = "stored"


class DerppDistance(StrEnum):
    """How the squared differences of a row become one number."""

    mean = "mean"
    sum = "sum"


class TopPrecision(StrEnum):
    """Arithmetic of the top and the head."""

    float32 = "float32"
    bf16 = "bf16"


@dataclass(frozen=True, slots=True, kw_only=True)
class Images:
    """Where everything that is read and stored lies."""

    base: Path
    new: Path
    base_root: Path | None
    new_root: Path | None
    weights: Path | None
    trunk_cache: Path
    budget: int
    """Bytes of stored activations."""
    workers: int | None
    max_pixels: int


_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


def byte_count(text: str) -> int:
    """Return the number of bytes in a text such as `20GB`."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?B?)\s*", text.upper())
    unit = match[2] if match else ""
    unit = unit if unit.endswith("B") or not unit else f"{unit}B"
    if match is None or unit not in _UNITS:
        raise typer.BadParameter(f"--trunk-budget takes a size such as 20GB, got {text!r}")
    return int(float(match[1]) * _UNITS[unit])


_MIX = frozenset({"mix"})
_LOW_RANK = frozenset({"rank", "alpha", "a_init"})
_EWC = frozenset({"ewc_lambda", "ewc_samples", "ewc_mode", "ewc_gamma"})
_DERPP = frozenset({"derpp_alpha", "derpp_beta", "derpp_distance", "teacher"})
MEANINGLESS: dict[str, frozenset[str]] = {
    "rehearsal": _EWC | _DERPP,
    "naive": _MIX | _EWC | _DERPP,
    "joint": KEPT | _MIX | _EWC | _DERPP,
    "ewc": _MIX | _LOW_RANK | _DERPP,
    "derpp": _EWC,
}
"""Parameters that a method does not read. Without rehearsal, those of the buffer are read where
initialisation looks at old rows."""
LR = {method.value: 1.5e-3 for method in TopMethod} | {"ewc": 8e-4}
BATCH_SIZE = {method.value: 256 for method in TopMethod} | {"ewc": 128}
INIT_ROWS = {method.value: "buffer" for method in TopMethod} | {"naive": "new"}
BY_METHOD: dict[str, Mapping[str, object]] = {
    "lr": LR,
    "batch-size": BATCH_SIZE,
    "init-rows": INIT_ROWS,
}
"""Options whose default depends on the method: a file gives them by method too."""


def reject_meaningless(context: Context, method: str, init_rows: str, *, full_rank: bool) -> None:
    """Refuse options that the run would ignore; those of a file give way to the command line."""
    from_file = given(context, "method") != "commandline"
    meaningless = MEANINGLESS[method]
    if method in ("naive", "ewc") and init_rows == "new":
        meaningless |= KEPT
    for parameter in context.command.params:
        name, where = str(parameter.name), given(context, str(parameter.name))
        if where is None or not (where == "commandline" or from_file):
            continue
        option = parameter.opts[0]
        if name in meaningless:
            why = _why(name)
            raise typer.BadParameter(f"{option} does not go with --method {method}{why}")
        if full_rank and name in _LOW_RANK:
            raise typer.BadParameter(f"{option} does not go with --full-rank")
    if given(context, "no_trunk_cache") == "commandline":
        for name in ("trunk_cache", "trunk_budget"):
            if given(context, name) == "commandline":
                option = f"--{name.replace('_', '-')}"
                raise typer.BadParameter(f"{option} does not go with --no-trunk-cache")


def _why(name: str) -> str:
    if name in _LOW_RANK:
        return " (it trains the blocks themselves)"
    if name in KEPT:
        return " (--init-rows buffer keeps one for initialisation)"
    return ""


Base = Annotated[Path, typer.Option(help="Feature cache of the base classes.", show_default=False)]
New = Annotated[Path, typer.Option(help="Feature cache of the new classes.", show_default=False)]
Out = Annotated[
    Path, typer.Option(help="Folder of the records, one sub-folder per run.", show_default=False)
]
Method = Annotated[
    TopMethod,
    typer.Option(
        help="Rehearsal from a buffer; new rows alone (naive); all rows of all classes seen"
        " (joint); EWC, without rehearsal; or DER++."
    ),
]
TopBlocks = Annotated[
    int, typer.Option(min=1, help="Plastic blocks, from the end; all below is frozen.")
]
FullRank = Annotated[
    bool,
    typer.Option(
        "--full-rank",
        help="Train the blocks themselves, not low-rank updates of their two linear layers; EWC"
        " always does.",
    ),
]
Rank = Annotated[int, typer.Option(min=1, help="Rank of the updates.")]
Alpha = Annotated[
    float,
    typer.Option(
        help="Scale of the updates: W + (alpha / rank) B A. The paper's text has no factor, as with"
        " alpha = rank; loralib has 1, a factor of 1/48 at rank 48. Without a factor random rows"
        " learn more, and with computed rows more is forgotten."
    ),
]
AInit = Annotated[FactorInit, typer.Option(help="How the factor A starts; B starts at zero.")]
HeadFile = Annotated[
    Path | None,
    typer.Option(
        help="Head of the base classes to start from, as `clinit align` writes it.",
        show_default="the head in the base cache",
    ),
]
Tasks = Annotated[int, typer.Option(min=1, help="Tasks that the new classes arrive in.")]
Inits = Annotated[
    list[Init] | None,
    typer.Option(
        help="Initialisation of new rows; repeatable, one run each.",
        show_default="random, class-mean, least-square",
    ),
]
Scales = Annotated[
    list[Scale] | None,
    typer.Option(help="Scale of initialised rows; repeatable.", show_default="calibrated"),
]
Mean = Annotated[ClassMean, typer.Option(help="Mean of features, or of features of unit length.")]
Average = Annotated[
    Weighting,
    typer.Option(
        help="What an average is in least squares and LDA: over classes of averages over their"
        " rows, or over rows."
    ),
]
InitialRows = Annotated[
    InitRows | None,
    typer.Option(
        help="What initialisation sees: old rows too (those of the buffer, which naive and ewc keep"
        " for this alone), as in the paper, or new rows alone.",
        show_default="buffer, naive: new",
    ),
]
Width = Annotated[
    HeadWidth, typer.Option(help="Add rows when their classes arrive, or have all from the start.")
]
NewBias = Annotated[
    Bias, typer.Option(help="Write the initialisation's bias, or keep the random one.")
]
Lambda = Annotated[
    str,
    typer.Option(
        "--lambda",
        metavar="NUMBER|auto",
        help="Ridge parameter of least-square rows; auto: that of the least error on held-out"
        " training rows.",
    ),
]
LossName = Annotated[
    LossChoice, typer.Option(help="Training loss: cross entropy, squared error or squentropy.")
]
Iterations = Annotated[int, typer.Option(min=0, help="Updates a task.")]
Buffer = Annotated[
    int | None,
    typer.Option(min=0, help="Rows of earlier classes kept for rehearsal.", show_default="24000"),
]
BufferPerClass = Annotated[
    int | None,
    typer.Option(
        min=0, help="Rows kept of each earlier class, instead of a total.", show_default=False
    ),
]
Split = Annotated[
    BufferSplit, typer.Option(help="Share the buffer among all classes seen, or as SGM does.")
]
BatchMix = Annotated[Mix, typer.Option(help="Batches: half new, half old rows; or as SGM's.")]
BatchSize = Annotated[
    int | None, typer.Option(min=2, help="Rows a batch.", show_default="256, EWC 128")
]
Rate = Annotated[
    float | None,
    typer.Option(
        help="Peak learning rate of the head; one cycle a task.", show_default="1.5e-3, EWC 8e-4"
    ),
]
WeightDecay = Annotated[
    float,
    typer.Option(
        min=0,
        help="Decoupled weight decay of matrices and of the head; not of norms and of biases of"
        " blocks.",
    ),
]
LayerDecay = Annotated[
    float, typer.Option(help="Ratio of a layer's learning rate to that of the one above it.")
]
EvalEvery = Annotated[int, typer.Option(min=1, help="Updates between two evaluations.")]
Seed = Annotated[
    int,
    typer.Option(
        min=0,
        max=2**32 - 1,
        help="Seed of class order, buffer, batches, random rows and low-rank factors.",
    ),
]
ClassOrder = Annotated[
    Path | None,
    typer.Option(
        help="File that names every new class once, one a line, in the order in which they"
        " arrive; instead of an order drawn by the seed.",
        show_default=False,
    ),
]
EwcLambda = Annotated[
    float, typer.Option(min=0, help="EWC: strength; 0 is plain fine-tuning of the blocks.")
]
EwcSamples = Annotated[
    int, typer.Option(min=1, help="EWC: rows that the Fisher information is measured on.")
]
EwcMode = Annotated[Ewc, typer.Option(help="EWC: an anchor a task, or one that moves on.")]
EwcGamma = Annotated[
    float, typer.Option(help="EWC online: share of the older Fisher information that is kept.")
]
DerppAlpha = Annotated[
    float, typer.Option(min=0, help="DER++: weight of squared differences to former logits.")
]
DerppBeta = Annotated[float, typer.Option(min=0, help="DER++: weight of the loss of old rows.")]
Distance = Annotated[
    DerppDistance,
    typer.Option(
        help="DER++: squared differences as their mean over classes, as the code of its authors"
        " computes, so that alpha does not depend on the number of classes; or as their sum, as"
        " Eq. 6 of DER++ prints it."
    ),
]
Teacher = Annotated[
    DerppTeacher,
    typer.Option(
        help="DER++: former logits from the network as it was at the task's start (the form in"
        " related code of the paper's authors), or stored with the buffer when a class was learnt"
        " (Eq. 6 of DER++, which the paper names)."
    ),
]
Probe = Annotated[
    bool,
    typer.Option(
        help="Measure forward transfer after each task: a linear probe on the next task's classes."
    ),
]
Where = Annotated[
    Device, typer.Option(help="Where to compute; auto takes CUDA where there is one.")
]
Precision = Annotated[
    TopPrecision, typer.Option(help="Arithmetic of top and head; parameters stay in float32.")
]
Compile = Annotated[
    bool,
    typer.Option("--compile", help="Run the top through torch.compile; needs a C++ compiler."),
]
Weights = Annotated[
    Path | None,
    typer.Option(
        help="Weights of the backbone; they must be those of the features.",
        show_default="where they were at extraction",
    ),
]
BaseRoot = Annotated[
    Path | None,
    typer.Option(help="Folder of the base images.", show_default="as at extraction"),
]
NewRoot = Annotated[
    Path | None, typer.Option(help="Folder of the new images.", show_default="as at extraction")
]
TrunkCache = Annotated[
    Path | None,
    typer.Option(
        help="Folder of stored activations; runs may share it.", show_default="OUT/trunk-cache"
    ),
]
NoTrunkCache = Annotated[
    bool,
    typer.Option("--no-trunk-cache", help="Compute activations from the images each time."),
]
TrunkBudget = Annotated[
    str,
    typer.Option(
        metavar="SIZE", help="Most that is stored; the rest is computed from the images each time."
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(min=1, help="Threads that read and decode images.", show_default="usable CPUs"),
]
CheckpointEvery = Annotated[
    int, typer.Option(min=0, help="Updates between two checkpoints; 0: only after each task.")
]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Show what each initialisation chose.")
]
