"""`clinit train-top`: the top blocks of a backbone over a stream of new classes, from images."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from clinit.cli import top_options as given_as
from clinit.cli.choices import (
    Bias,
    BufferSplit,
    ClassMean,
    Device,
    HeadWidth,
    Init,
    Loss,
    MaxPixels,
    Mix,
    Scale,
    Weighting,
)
from clinit.cli.claim import claimed_folder
from clinit.cli.config_file import ConfigOption
from clinit.cli.console import say
from clinit.cli.context import Context, overridden
from clinit.cli.interruption import keeps
from clinit.cli.top_study import open_sides, read_study, starting_head
from clinit.cli.train_head import lambda_value
from clinit.cli.training_progress import training_progress
from clinit.extract.image_size import MAX_PIXELS

if TYPE_CHECKING:
    from clinit.extract.head import Head
    from clinit.headtrain.config import ExperimentConfig, HeadConfig
    from clinit.headtrain.record.format import RunRecord
    from clinit.headtrain.top.config import TopConfig
    from clinit.headtrain.top.study import Side, Study

_PAPER_INITS = [Init.random, Init.class_mean, Init.least_square]


@keeps("Finished runs and the last checkpoint are kept: the same command goes on from there.")
def train_top(
    context: Context,
    base: given_as.Base,
    new: given_as.New,
    out: given_as.Out,
    method: given_as.Method = given_as.TopMethod.rehearsal,
    top_blocks: given_as.TopBlocks = 2,
    full_rank: given_as.FullRank = False,
    rank: given_as.Rank = 48,
    alpha: given_as.Alpha = 1.0,
    a_init: given_as.AInit = given_as.FactorInit.gaussian,
    head: given_as.HeadFile = None,
    tasks: given_as.Tasks = 5,
    init: given_as.Inits = None,
    scale: given_as.Scales = None,
    class_mean: given_as.Mean = ClassMean.raw,
    weighting: given_as.Average = Weighting.class_,
    init_rows: given_as.InitialRows = None,
    head_width: given_as.Width = HeadWidth.grow,
    bias: given_as.NewBias = Bias.write,
    lam: given_as.Lambda = "0.05",
    loss: given_as.LossName = Loss.ce,
    iterations: given_as.Iterations = 600,
    buffer: given_as.Buffer = None,
    buffer_per_class: given_as.BufferPerClass = None,
    buffer_split: given_as.Split = BufferSplit.balanced,
    mix: given_as.BatchMix = Mix.text,
    batch_size: given_as.BatchSize = None,
    lr: given_as.Rate = None,
    weight_decay: given_as.WeightDecay = 0.05,
    layer_decay: given_as.LayerDecay = 0.9,
    eval_every: given_as.EvalEvery = 50,
    seed: given_as.Seed = 0,
    class_order: given_as.ClassOrder = None,
    ewc_lambda: given_as.EwcLambda = 1e6,
    ewc_samples: given_as.EwcSamples = 2048,
    ewc_mode: given_as.EwcMode = given_as.Ewc.task,
    ewc_gamma: given_as.EwcGamma = 1.0,
    derpp_alpha: given_as.DerppAlpha = 0.1,
    derpp_beta: given_as.DerppBeta = 0.9,
    derpp_distance: given_as.Distance = given_as.DerppDistance.mean,
    teacher: given_as.Teacher = given_as.DerppTeacher.snapshot,
    probe: given_as.Probe = True,
    device: given_as.Where = Device.auto,
    precision: given_as.Precision = given_as.TopPrecision.float32,
    compile_top: given_as.Compile = False,
    weights: given_as.Weights = None,
    base_root: given_as.BaseRoot = None,
    new_root: given_as.NewRoot = None,
    trunk_cache: given_as.TrunkCache = None,
    no_trunk_cache: given_as.NoTrunkCache = False,
    trunk_budget: given_as.TrunkBudget = "20GB",
    workers: given_as.Workers = None,
    max_pixels: MaxPixels = MAX_PIXELS,
    checkpoint_every: given_as.CheckpointEvery = 100,
    config_file: ConfigOption = None,
    verbose: given_as.Verbose = False,
) -> None:
    """Train the top blocks of a backbone, and its head, on new classes that arrive in tasks.

    Reads the caches of `clinit extract` for rows, backbone and images, so that a run sees the
    same stream as `clinit train-head`. Everything below the top blocks is frozen: its output is
    computed once and stored. A killed run goes on when the same command is given again.
    """
    from clinit.headtrain.config import ExperimentConfig, HeadConfig
    from clinit.headtrain.stream.tasks import read_class_order
    from clinit.headtrain.top.config import TopConfig, run_name
    from clinit.headtrain.top.methods import DerppConfig, EwcConfig

    seen = init_rows.value if init_rows is not None else given_as.INIT_ROWS[method.value]
    given_as.reject_meaningless(context, method.value, seen, full_rank=full_rank)
    try:
        top = TopConfig(
            method=method.value,
            top_blocks=top_blocks,
            full_rank=full_rank or method.value == "ewc",
            rank=rank,
            alpha=alpha,
            a_init=a_init.value,
            layer_decay=layer_decay,
            precision=precision.value,
            compile=compile_top,
            probe=probe,
            ewc=EwcConfig(
                lam=ewc_lambda, samples=ewc_samples, mode=ewc_mode.value, gamma=ewc_gamma
            ),
            derpp=DerppConfig(
                alpha=derpp_alpha,
                beta=derpp_beta,
                teacher=teacher.value,
                distance=derpp_distance.value,
            ),
        )
        config = ExperimentConfig(
            method=top.data_method,
            tasks=tasks,
            iterations=iterations,
            buffer=None if overridden(context, "buffer", "buffer_per_class") else buffer,
            buffer_per_class=None
            if overridden(context, "buffer_per_class", "buffer")
            else buffer_per_class,
            buffer_split=buffer_split.value,
            mix=mix.value,
            batch_size=batch_size or given_as.BATCH_SIZE[method.value],
            eval_every=eval_every,
            seed=seed,
            class_order=read_class_order(class_order) if class_order is not None else None,
            init_rows=seen,
            head_width=head_width.value,
            device=device.value,
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
                lr=lr if lr is not None else given_as.LR[method.value],
                weight_decay=weight_decay,
            )
            for each in init or _PAPER_INITS
            for how in scale or [Scale.calibrated]
        ]
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    budget = 0 if no_trunk_cache else given_as.byte_count(trunk_budget)
    images = given_as.Images(
        base=base,
        new=new,
        base_root=base_root,
        new_root=new_root,
        weights=weights,
        trunk_cache=trunk_cache or out / "trunk-cache",
        budget=budget,
        workers=workers,
        max_pixels=max_pixels,
    )
    with claimed_folder(out):
        base_side, new_side = open_sides(images)
        start, head_facts = starting_head(base_side, head)
        runs = list(dict.fromkeys(combinations))  # random rows have no scale: once is enough
        folders = [out / run_name(run, top) for run in runs]
        # Before activations are computed: a folder that is taken is told at once.
        left = [
            (run, folder)
            for run, folder in zip(runs, folders, strict=True)
            if not _is_there(run, folder, config, top, base_side, new_side, start)
        ]
        records = []
        if left:
            study = read_study(
                images,
                base_side,
                new_side,
                start,
                head_facts,
                config,
                top,
                [run for run, _ in left],
            )
            for run, folder in left:
                records.append(
                    _run(
                        study,
                        run,
                        folder,
                        head_facts,
                        checkpoint_every=checkpoint_every,
                        verbose=verbose,
                    )
                )
                study = study.reused()
    _show(records, folders)


def _is_there(
    run: HeadConfig,
    folder: Path,
    config: ExperimentConfig,
    top: TopConfig,
    base: Side,
    new: Side,
    start: Head,
) -> bool:
    """Return whether a run is finished; its checkpoint goes, where the run was killed before."""
    from clinit.headtrain.record.finished import is_finished
    from clinit.headtrain.top.config import run_settings

    settings = run_settings(run, config, top)
    finished = is_finished(folder, settings, base.source, new.source, start)
    if finished:
        say(f"{folder} is there already")
        _checkpoint(folder).unlink(missing_ok=True)
    return finished


def _checkpoint(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.checkpoint")


def _run(
    study: Study,
    run: HeadConfig,
    folder: Path,
    head_facts: dict[str, Any],
    *,
    checkpoint_every: int,
    verbose: bool,
) -> RunRecord:
    """Train one run, or finish it, and write its record."""
    from clinit.headtrain.record.format import write_record
    from clinit.headtrain.top.experiment import run_top

    say(f"{folder.name}:")
    with training_progress(verbose=verbose) as observer:
        record = run_top(
            study,
            run,
            checkpoint=_checkpoint(folder),
            checkpoint_every=checkpoint_every,
            observer=observer,
            head_facts=head_facts,
            command=["clinit", *sys.argv[1:]],
        )
    write_record(record, folder)
    _checkpoint(folder).unlink(missing_ok=True)
    return record


def _show(records: list[RunRecord], folders: list[Path]) -> None:
    from clinit.analysis.report import load_report
    from clinit.cli.report import show

    said = {text for record in records for text in record.info["notes"]}
    show(load_report(folders), curves=False, said=said)
    parent = folders[0].parent
    runs = "1 run record" if len(folders) == 1 else f"{len(folders)} run records"
    say(f"{runs} at {parent}; curves: clinit report {parent}")
