"""`clinit train-head`: heads over a stream of new classes, from cached features."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from clinit.cli.console import err, note, say
from clinit.cli.context import Context
from clinit.cli.method_options import reject_meaningless

if TYPE_CHECKING:
    from clinit.headtrain.config import ExperimentConfig, HeadConfig
    from clinit.headtrain.events import Event, Initialised, Observer
    from clinit.headtrain.init import LambdaCurve, Rows
    from clinit.headtrain.record import RunRecord
    from clinit.headtrain.statistics import ClassStatistics


_DIAGNOSIS_LAMBDA = 0.05
"""Ridge of the W_LS that heads are compared with: the paper's."""


class Init(StrEnum):
    """Initialisation of new rows."""

    random = "random"
    class_mean = "class-mean"
    least_square = "least-square"
    zero = "zero"
    imprint = "imprint"
    lda = "lda"


_PAPER_INITS = [Init.random, Init.class_mean, Init.least_square]


class Method(StrEnum):
    """Which data a task may look at, and whether its head is trained or solved."""

    rehearsal = "rehearsal"
    naive = "naive"
    joint = "joint"
    ncm = "ncm"
    ridge = "ridge"
    lda = "lda"


class Scale(StrEnum):
    """How initialised rows are brought to the scale of the head."""

    none = "none"
    norm = "norm"
    row_norm = "row-norm"
    calibrated = "calibrated"


class ClassMean(StrEnum):
    """Which mean of a class."""

    raw = "raw"
    unit = "unit"


class HeadWidth(StrEnum):
    """When head rows appear."""

    grow = "grow"
    full = "full"


class Bias(StrEnum):
    """What becomes of the bias of a new row."""

    write = "write"
    keep = "keep"


class Loss(StrEnum):
    """Training loss."""

    ce = "ce"
    mse = "mse"
    sqen = "sqen"


class Device(StrEnum):
    """Where to train."""

    auto = "auto"
    cuda = "cuda"
    cpu = "cpu"


def train_head(
    context: Context,
    base: Annotated[
        Path, typer.Option(help="Feature cache of the base classes.", show_default=False)
    ],
    new: Annotated[
        Path, typer.Option(help="Feature cache of the new classes.", show_default=False)
    ],
    out: Annotated[
        Path,
        typer.Option(help="Folder of the run records, one sub-folder a head.", show_default=False),
    ],
    method: Annotated[
        Method,
        typer.Option(
            help="Train on new rows and a buffer of old ones, on new rows alone (naive) or on all"
            " rows of all classes seen (joint); or solve the whole head from the rows of joint:"
            " nearest class mean, ridge or LDA.",
        ),
    ] = Method.rehearsal,
    tasks: Annotated[int, typer.Option(min=1, help="Tasks that the new classes arrive in.")] = 5,
    init: Annotated[
        list[Init] | None,
        typer.Option(
            help="Initialisation of new rows; repeatable.",
            show_default="random, class-mean, least-square",
        ),
    ] = None,
    scale: Annotated[
        list[Scale] | None,
        typer.Option(
            help="Scale of initialised rows: as computed, one factor by norms, a factor a row, or"
            " factor and shift of the least training loss; repeatable. Random rows have none.",
            show_default="calibrated",
        ),
    ] = None,
    class_mean: Annotated[
        ClassMean, typer.Option(help="Mean of features, or of features of unit length.")
    ] = ClassMean.raw,
    head_width: Annotated[
        HeadWidth,
        typer.Option(help="Add rows when their classes arrive, or have all from the start."),
    ] = HeadWidth.grow,
    bias: Annotated[
        Bias, typer.Option(help="Write the initialisation's bias, or keep the random one.")
    ] = Bias.write,
    lam: Annotated[
        str,
        typer.Option(
            "--lambda",
            metavar="NUMBER|auto",
            help="Ridge parameter of least-square rows; auto: that of the least error on"
            " held-out training rows.",
        ),
    ] = "0.05",
    loss: Annotated[
        Loss, typer.Option(help="Training loss: cross entropy, squared error or squentropy.")
    ] = Loss.ce,
    iterations: Annotated[int, typer.Option(min=0, help="Updates a task.")] = 600,
    buffer: Annotated[
        int, typer.Option(min=0, help="Rows of earlier classes kept for rehearsal.")
    ] = 24_000,
    batch_size: Annotated[
        int, typer.Option(min=2, help="Rows a batch: half new, half from the buffer.")
    ] = 256,
    lr: Annotated[float, typer.Option(help="Learning rate of AdamW, constant.")] = 1e-3,
    weight_decay: Annotated[float, typer.Option(min=0, help="Decoupled weight decay.")] = 0.05,
    eval_every: Annotated[int, typer.Option(min=1, help="Updates between two evaluations.")] = 50,
    seed: Annotated[
        int,
        typer.Option(
            min=0, max=2**32 - 1, help="Seed of class order, buffer, batches and random rows."
        ),
    ] = 0,
    device: Annotated[
        Device, typer.Option(help="Where to train; auto takes CUDA where there is one.")
    ] = Device.auto,
    diagnose: Annotated[
        bool,
        typer.Option(
            "--diagnose", help="Measure NC1 to NC4 and D_LS of each head at the end of each task."
        ),
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show what each initialisation chose.")
    ] = False,
) -> None:
    """Train heads on new classes that arrive in tasks, with a frozen backbone.

    Heads of one call share class order and batches, so that their initialisations are compared
    on the same samples. Writes a record a head and prints the table of their results.
    """
    from clinit.headtrain.config import ExperimentConfig, HeadConfig, head_ids
    from clinit.headtrain.record import check_free

    reject_meaningless(context, method.value)
    try:
        config = ExperimentConfig(
            method=method.value,
            tasks=tasks,
            iterations=iterations,
            buffer=buffer if method is Method.rehearsal else None,
            batch_size=batch_size,
            eval_every=eval_every,
            seed=seed,
            head_width=head_width.value,
            device=device.value,
        )
        combinations = [
            HeadConfig(
                init=each.value,
                scale=how.value,
                lam=_lambda(lam),
                class_mean=class_mean.value,
                bias=bias.value,
                loss=loss.value,
                lr=lr,
                weight_decay=weight_decay,
            )
            for each in init or _PAPER_INITS
            for how in scale or [Scale.calibrated]
        ]
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    heads = list(dict.fromkeys(combinations))  # random rows have no scale: once is enough
    heads = heads[:1] if config.is_closed else heads
    folders = [out / name for name in head_ids(heads, config.method)]
    check_free(folders)
    records = _train(base, new, config, heads, diagnose=diagnose, verbose=verbose)
    _write_and_show(records, folders)


def _lambda(text: str) -> float | Literal["auto"]:
    if text == "auto":
        return "auto"
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"--lambda takes a number or `auto`, got {text!r}") from None


def _train(
    base: Path,
    new: Path,
    config: ExperimentConfig,
    heads: list[HeadConfig],
    *,
    diagnose: bool,
    verbose: bool,
) -> list[RunRecord]:
    from clinit.errors import ExperimentError
    from clinit.headtrain.experiment import run_experiment
    from clinit.headtrain.source import read_source

    with err.status("Reading the feature caches …"):
        base_source, new_source = read_source(base), read_source(new)
    if base_source.head is None:
        raise ExperimentError(
            f"{base} holds no pretrained head to start from",
            remedy="Extract the base classes with a backbone that has a classifier.",
        )
    with _progress(verbose=verbose) as observer:
        return run_experiment(
            base_source,
            new_source,
            base_source.head,
            config,
            heads,
            observer=observer,
            diagnose=_diagnosis if diagnose else None,
            command=["clinit", *sys.argv[1:]],
        )


def _diagnosis(statistics: ClassStatistics, head: Rows) -> dict[str, Any]:
    from clinit.analysis.diagnosis import diagnose

    return diagnose(statistics, head.weight, head.bias, lam=_DIAGNOSIS_LAMBDA).content()


def _write_and_show(records: list[RunRecord], folders: list[Path]) -> None:
    from clinit.analysis.report import load_report
    from clinit.cli.report import show
    from clinit.headtrain.record import write_record

    for record, folder in zip(records, folders, strict=True):
        write_record(record, folder)
    show(load_report(folders), curves=False, notes=False)  # the notes came before the training
    parent = folders[0].parent
    say(f"{len(folders)} run records at {parent}; curves: clinit report {parent}")


@contextmanager
def _progress(*, verbose: bool) -> Iterator[Observer]:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    from clinit.headtrain import events

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("steps"),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.fields[losses]}"),
        console=err,
        disable=not err.is_terminal,
    )
    with bar:
        steps = bar.add_task("Preparing", total=None, losses="")

        def observe(event: Event) -> None:
            match event:
                case events.Noted(text):
                    note(text)
                case events.LambdaChosen(task, curve):
                    say(_chosen(task, curve))
                case events.TaskStarted(task, tasks, iterations):
                    bar.update(steps, description=f"Task {task}/{tasks}", total=tasks * iterations)
                case events.Stepped(done):
                    bar.advance(steps, done)
                case events.Evaluated():
                    losses = " ".join(f"{value:.2f}" for value in event.loss_new.values())
                    bar.update(steps, losses=f"new-task loss {losses}")
                case events.Initialised():
                    if verbose:
                        say(_initialised(event))

        yield observe


def _chosen(task: int, curve: LambdaCurve) -> str:
    """Say which lambda was chosen, with the curve from the least lambda to the largest."""
    low, high = min(curve.errors), max(curve.errors)
    steps = [int(7 * (error - low) / (high - low or 1)) for error in curve.errors]
    drawn = "".join("▁▂▃▄▅▆▇█"[step] for step in steps)
    return (
        f"Task {task}, lambda {curve.best:g}: held-out error {low:.4g} in"
        f" {curve.lams[0]:g} {drawn} {curve.lams[-1]:g} (at most {high:.4g})"
    )


def _initialised(event: Initialised) -> str:
    start = event.start
    line = f"Task {event.task}, {event.head_id}: factor {start.factor:.4g}, shift {start.shift:.4g}"
    if start.loss_before is None or start.loss_after is None:
        return line
    return (
        f"{line}, class-balanced loss {start.loss_before:.4f} -> {start.loss_after:.4f}"
        f" in {start.steps} Newton steps"
    )
