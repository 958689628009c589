"""`clinit train-head`: heads over a stream of new classes, from cached features."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from clinit.cli.choices import (
    Bias,
    BufferSplit,
    ClassMean,
    Device,
    HeadWidth,
    Init,
    InitRows,
    Loss,
    Method,
    Mix,
    Precision,
    Scale,
    Weighting,
)
from clinit.cli.claim import claimed_folder
from clinit.cli.config_file import ConfigOption
from clinit.cli.console import err, say
from clinit.cli.context import Context, overridden
from clinit.cli.interruption import keeps
from clinit.cli.method_options import reject_meaningless
from clinit.cli.training_progress import training_progress

if TYPE_CHECKING:
    from clinit.extract.head import Head
    from clinit.headtrain.config import ExperimentConfig, HeadConfig
    from clinit.headtrain.init import Rows
    from clinit.headtrain.least_squares.statistics import ClassStatistics
    from clinit.headtrain.record.format import RunRecord
    from clinit.headtrain.stream.source import Source


_DIAGNOSIS_LAMBDA = 0.05
"""Ridge of the W_LS that heads are compared with: the paper's."""


_PAPER_INITS = [Init.random, Init.class_mean, Init.least_square]


@keeps("Heads in training are lost; written records are kept, and the same command skips them.")
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
        typer.Option(help="Folder of the records, one sub-folder per head.", show_default=False),
    ],
    method: Annotated[
        Method,
        typer.Option(
            help="Train on new rows and a buffer of old ones, on new rows alone (naive) or on all"
            " rows of all classes seen (joint); or solve the whole head from the rows of joint:"
            " nearest class mean, ridge or LDA.",
        ),
    ] = Method.rehearsal,
    head: Annotated[
        Path | None,
        typer.Option(
            help="Head of the base classes to start from, as `clinit align` writes it.",
            show_default="the head in the base cache",
        ),
    ] = None,
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
    weighting: Annotated[
        Weighting,
        typer.Option(
            help="What an average is in least squares and LDA: over classes of averages over their"
            " rows, or over rows."
        ),
    ] = Weighting.class_,
    init_rows: Annotated[
        InitRows | None,
        typer.Option(
            help="What initialisation sees: old rows too (those of the buffer, which naive keeps"
            " for this alone), as in the paper, or new rows alone.",
            show_default="buffer, naive: new",
        ),
    ] = None,
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
        int | None,
        typer.Option(
            min=0, help="Rows of earlier classes kept for rehearsal.", show_default="24000"
        ),
    ] = None,
    buffer_per_class: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Rows kept of each earlier class, instead of a total.",
            show_default=False,
        ),
    ] = None,
    buffer_split: Annotated[
        BufferSplit,
        typer.Option(
            help="Share the buffer among all classes seen, or keep 22.5 % (20 % from 192,000 rows"
            " on) for the classes after the base (sgm)."
        ),
    ] = BufferSplit.balanced,
    mix: Annotated[
        Mix,
        typer.Option(
            help="Batches: half new, half old rows; or sgm: that in task 1, later 3/8 new, 1/2"
            " base, 1/8 earlier new classes."
        ),
    ] = Mix.text,
    batch_size: Annotated[
        int, typer.Option(min=2, help="Rows a batch; --mix says of which kind.")
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
    class_order: Annotated[
        Path | None,
        typer.Option(
            help="File that names every new class once, one a line, in the order in which they"
            " arrive; instead of an order drawn by the seed.",
            show_default=False,
        ),
    ] = None,
    device: Annotated[
        Device, typer.Option(help="Where to train; auto takes CUDA where there is one.")
    ] = Device.auto,
    precision: Annotated[
        Precision,
        typer.Option(
            help="Of the matrix products of an update: float32, tf32 (CUDA) or bf16 (CUDA, and CPUs"
            " that multiply it). Weights and evaluations are float32 in any case."
        ),
    ] = Precision.float32,
    diagnose: Annotated[
        bool,
        typer.Option(
            "--diagnose", help="Measure NC1 to NC4 and D_LS of each head at the end of each task."
        ),
    ] = False,
    config_file: ConfigOption = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show what each initialisation chose.")
    ] = False,
) -> None:
    """Train heads on new classes that arrive in tasks, with a frozen backbone.

    Heads of one call share class order and batches, so that their initialisations are compared
    on the same samples. Writes a record per head and prints the table of their results; what an
    earlier call with the same command has recorded stays as it is.
    """
    from clinit.extract.device import choose_device
    from clinit.headtrain.bank.precision import check_precision
    from clinit.headtrain.config import ExperimentConfig, HeadConfig, head_ids
    from clinit.headtrain.record.format import INFO, check_free, write_records
    from clinit.headtrain.stream.tasks import read_class_order

    reject_meaningless(context, method.value, init_rows)
    try:
        config = ExperimentConfig(
            method=method.value,
            tasks=tasks,
            iterations=iterations,
            buffer=None if overridden(context, "buffer", "buffer_per_class") else buffer,
            buffer_per_class=None
            if overridden(context, "buffer_per_class", "buffer")
            else buffer_per_class,
            buffer_split=buffer_split.value,
            mix=mix.value,
            batch_size=batch_size,
            eval_every=eval_every,
            seed=seed,
            class_order=read_class_order(class_order) if class_order is not None else None,
            init_rows=init_rows.value if init_rows is not None else None,
            head_width=head_width.value,
            device=device.value,
            precision=precision.value,
        )
        combinations = [
            HeadConfig(
                init=each.value,
                scale=how.value,
                lam=lambda_value(lam),
                class_mean=class_mean.value,
                weighting=weighting.value,
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
    check_precision(config.precision, choose_device(config.device))
    folders = [out / name for name in head_ids(heads, config.method)]
    with claimed_folder(out):
        # Before anything is read: what is no record is in the way.
        check_free(folder for folder in folders if not (folder / INFO).is_file())
        data = _read(base, new, head)
        left = _missing(data, config, heads, folders, diagnose=diagnose)
        records = {}
        if left:
            trained = _train(data, config, heads, diagnose=diagnose, verbose=verbose)
            records = {f: r for f, r in zip(folders, trained, strict=True) if f in left}
            write_records([*records.values()], [*records])
    _show([*records.values()], folders)


def lambda_value(text: str) -> float | Literal["auto"]:
    """Return the ridge parameter that --lambda gives."""
    if text == "auto":
        return "auto"
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"--lambda takes a number or `auto`, got {text!r}") from None


@dataclass(frozen=True, slots=True, eq=False)
class _Data:
    """What all heads of a call read."""

    base: Source
    new: Source
    head: Head
    head_facts: dict[str, Any]


def _read(base: Path, new: Path, head_file: Path | None) -> _Data:
    from clinit.errors import ExperimentError
    from clinit.headtrain.stream.base_head import read_base_head
    from clinit.headtrain.stream.source import read_source

    with err.status("Reading the feature caches …"):
        base_source, new_source = read_source(base), read_source(new)
    if head_file is not None:
        return _Data(base_source, new_source, *read_base_head(head_file))
    if base_source.head is None:
        raise ExperimentError(
            f"{base} holds no pretrained head to start from",
            remedy="Extract the base classes with a backbone that has a classifier, or give a"
            " head with --head FILE.",
        )
    return _Data(base_source, new_source, base_source.head, {})


def _missing(
    data: _Data,
    config: ExperimentConfig,
    heads: list[HeadConfig],
    folders: list[Path],
    *,
    diagnose: bool,
) -> set[Path]:
    """Return the folders that do not hold the record of their head yet."""
    from clinit.headtrain.config import head_settings
    from clinit.headtrain.record.finished import is_finished

    left = {
        folder
        for head, folder in zip(heads, folders, strict=True)
        if not is_finished(
            folder,
            {**head_settings(head, config.method), **asdict(config)},
            data.base,
            data.new,
            data.head,
            diagnosed=diagnose,
        )
    }
    for folder in folders:
        if folder not in left:
            say(f"{folder} is there already")
    if 0 < len(left) < len(folders):
        say("All heads are trained once more: side by side, the others get the same numbers")
    return left


def _train(
    data: _Data,
    config: ExperimentConfig,
    heads: list[HeadConfig],
    *,
    diagnose: bool,
    verbose: bool,
) -> list[RunRecord]:
    from clinit.headtrain.experiment import run_experiment

    with training_progress(verbose=verbose) as observer:
        return run_experiment(
            data.base,
            data.new,
            data.head,
            config,
            heads,
            observer=observer,
            diagnose=_diagnosis if diagnose else None,
            head_facts=data.head_facts,
            command=["clinit", *sys.argv[1:]],
        )


def _diagnosis(statistics: ClassStatistics, head: Rows) -> dict[str, Any]:
    from clinit.analysis.diagnosis import diagnose

    return diagnose(statistics, head.weight, head.bias, lam=_DIAGNOSIS_LAMBDA).content()


def _show(records: list[RunRecord], folders: list[Path]) -> None:
    from clinit.analysis.report import load_report
    from clinit.cli.report import show

    said = {note for record in records for note in record.info["notes"]}  # before the training
    show(load_report(folders), curves=False, said=said)
    parent = folders[0].parent
    say(f"{len(folders)} run records at {parent}; curves: clinit report {parent}")
