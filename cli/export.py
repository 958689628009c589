"""`clinit export`: write the backbone and the head of a run as one network that timm loads."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clinit.cli.claim import claimed_file, tell_replaced
from clinit.cli.completion import runs
from clinit.cli.console import note, say
from clinit.cli.context import Context, given
from clinit.cli.interruption import keeps
from clinit.cli.options import Overwrite
from clinit.cli.progress import doing
from clinit.cli.run_data import check_run
from clinit.files.paths import check_writable

if TYPE_CHECKING:
    from clinit.extract.cache.head import Top1
    from clinit.headtrain.model.export import Export
    from clinit.headtrain.model.memory import Memory

FILE_SUFFIXES = frozenset(
    {
        *(".bin", ".ckpt", ".h5", ".json", ".npz", ".onnx"),
        *(".pickle", ".pkl", ".pt", ".pth", ".safetensors"),
    }
)
"""Of files: who gives one does not mean a folder."""


@keeps("No half of a model is left: it is written whole or not at all.")
def export(
    context: Context,
    run: Annotated[
        Path,
        typer.Argument(
            help="Run record of train-head or train-top.", show_default=False, autocompletion=runs
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            help="Model to write: a folder, or one file that ends in .safetensors. A file that"
            " ends in .npz is the head alone.",
            show_default=False,
        ),
    ],
    weights: Annotated[
        Path | None,
        typer.Option(
            help="Weights of the backbone.",
            metavar="FILE",
            show_default="where they were when it was extracted",
        ),
    ] = None,
    base: Annotated[
        Path | None,
        typer.Option(
            help="Feature cache of the base classes.",
            metavar="FOLDER",
            show_default="where it was in training",
        ),
    ] = None,
    new: Annotated[
        Path | None,
        typer.Option(
            help="That of the classes that arrived: its test rows fit the temperature.",
            metavar="FOLDER",
            show_default="where it was in training",
        ),
    ] = None,
    onnx: Annotated[
        bool, typer.Option("--onnx", help="Write the network as ONNX into the folder too.")
    ] = False,
    memory: Annotated[
        bool,
        typer.Option(
            "--memory/--no-memory",
            help="Let a folder remember class statistics and held-out features of the run's caches,"
            " for `clinit add` and `predict --reject`.",
        ),
    ] = True,
    temperature: Annotated[
        bool,
        typer.Option(
            "--temperature/--no-temperature",
            help="Divide the rows of the head by the temperature at which probabilities fit test"
            " rows of the run best; the answers stay the same.",
        ),
    ] = True,
    head_only: Annotated[
        bool,
        typer.Option(
            "--head-only",
            help="Write the head without the backbone, into a .safetensors or .npz file, for"
            " features from elsewhere.",
        ),
    ] = False,
    check_images: Annotated[
        Path | None,
        typer.Option(
            help="Images, to compare the ONNX form on.",
            show_default="test images of the run",
            exists=True,
        ),
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Write the trained classifier, backbone and head, as a model that plain timm loads.

    It holds the class names and the preprocessing too: `clinit predict` needs
    nothing else. A folder has them in the form of models on the Hugging Face
    Hub. The network is compared with what was trained before anything is
    written. Features that were imported have no network: --head-only writes
    their head.
    """
    check_run(run)
    check_writable(out)
    if out.absolute().resolve().is_relative_to(run.resolve()):
        raise typer.BadParameter(
            f"--out is a place outside the run record, which holds its own files alone, got {out}"
        )
    from clinit.headtrain.model.export import export_run
    from clinit.headtrain.model.predict import find_images

    if head_only or out.suffix == ".npz":
        _check_head_options(context, out, temperature=temperature)
        _export_head(run, out, temperature=temperature, base=base, new=new, overwrite=overwrite)
        return
    if out.suffix != ".safetensors" and out.suffix.lower() in FILE_SUFFIXES:
        raise typer.BadParameter(
            f"--out is a folder, or a file that ends in .safetensors or .npz, got {out}"
        )
    if onnx and out.suffix == ".safetensors":
        raise typer.BadParameter(f"--onnx writes into a folder: give --out one, not {out}")
    if new is not None and not (temperature or (memory and out.suffix != ".safetensors")):
        raise typer.BadParameter("--new means nothing where no feature is read")
    if check_images is not None and not onnx:
        raise typer.BadParameter("--check-images means nothing without --onnx")
    tell_replaced([out], overwrite=overwrite)
    check_with = [] if check_images is None else find_images([check_images])
    with claimed_file(out), doing("Putting backbone and head together …"):
        exported = export_run(
            run,
            out,
            base=base,
            new=new,
            weights=weights,
            onnx=onnx,
            remembers=memory,
            calibrated=temperature,
            check_with=check_with,
            overwrite=overwrite,
        )
    for text in exported.notes:
        note(text)
    _show(exported)


def _check_head_options(context: Context, out: Path, *, temperature: bool) -> None:
    if out.suffix not in (".npz", ".safetensors"):
        raise typer.BadParameter(
            f"--out is a file that ends in .npz or .safetensors with --head-only, got {out}"
        )
    unread = ["weights", "onnx", "memory", "check_images"]
    if not temperature:
        unread += ["base", "new"]
    for name in unread:
        if given(context, name) is not None:
            option = f"--{name.replace('_', '-')}"
            where = " without a temperature" if name in ("base", "new") else ""
            raise typer.BadParameter(
                f"{option} means nothing where the head alone is written{where}"
            )


def _export_head(
    run: Path,
    out: Path,
    *,
    temperature: bool,
    base: Path | None,
    new: Path | None,
    overwrite: bool,
) -> None:
    from clinit.headtrain.model.head_alone import export_head

    tell_replaced([out], overwrite=overwrite)
    with claimed_file(out), doing("Writing the head …"):
        exported = export_head(
            run, out, calibrated=temperature, base=base, new=new, overwrite=overwrite
        )
    for text in exported.notes:
        note(text)
    arrived = sum(task > 0 for task in exported.tasks)
    say(
        f"A head of {exported.head.num_classes:,} classes, {arrived:,} of which arrived later, on"
        f" {exported.head.dim:,} features of {exported.backbone}"
    )
    if exported.ended.percent is not None:
        say(f"The run ended with top-1 {exported.ended.percent:.2f} %")
    if exported.temperature is not None:
        say(f"Probabilities: {exported.temperature.describe()}")
    say(f"Head file at {out}; name rows of features with it:")
    say(f"clinit predict {shlex.quote(str(out))} FEATURES.npy")


def _show(exported: Export) -> None:
    from clinit.headtrain.model.folder import TRANSFORM_LINE, loading_line

    facts = exported.facts
    arrived = sum(task > 0 for task in facts.tasks)
    tasks = max(facts.tasks)
    say(
        f"{facts.backbone} with {facts.num_classes:,} classes: {facts.num_classes - arrived:,} of"
        f" the base, {arrived:,} that arrived in {tasks} task{'s' if tasks != 1 else ''}"
    )
    changed = (
        f"{exported.num_changed:,} of the backbone changed in training"
        if exported.num_changed
        else "the backbone as it was extracted with"
    )
    say(f"{exported.num_parameters:,} parameters, {changed}")
    say(f"The run ended with {_accuracy(exported.base, exported.new)}")
    say(f"Images: {facts.transform.describe()}")
    if facts.temperature is not None:
        say(f"Probabilities: {facts.temperature.describe()}")
    if exported.memory is not None:
        say(remembered(exported.memory))
    if exported.onnx is not None:
        say(exported.onnx.describe())
    say()
    say("import timm")
    folder = exported.path.is_dir()
    line = loading_line(exported.path) if folder else facts.loading_line(exported.path)
    say(f"model = {line}.eval()")
    if folder:
        say(f"transform = {TRANSFORM_LINE}")
    say()
    say(f"Model {'folder' if folder else 'file'} at {exported.path}; try it:")
    say(f"clinit predict {shlex.quote(str(exported.path))} IMAGE…")
    if folder:
        say()
        say(
            "Its model card is README.md: state the licence there. clinit uploads nothing; you can:"
        )
        say(f"hf upload USER/NAME {shlex.quote(str(exported.path))} . --private")


def remembered(memory: Memory) -> str:
    """Return what a model remembers, in a sentence."""
    known, rows = int(memory.known.sum()), len(memory.held_out.labels)
    return (
        f"It remembers the means of {known:,} classes, their covariance and {rows:,} features kept"
        f" aside: {memory.num_bytes / 1e6:,.1f} MB"
    )


def _accuracy(base: Top1, new: Top1) -> str:
    both = base + new
    if both.percent is None:
        return "no test image: its accuracy is unknown"
    parts = [
        f"{part.percent:.2f} % of {part.total:,} of {name} classes"
        for name, part in (("base", base), ("new", new))
        if part.percent is not None
    ]
    return f"top-1 {both.percent:.2f} % on {both.total:,} test images ({', '.join(parts)})"
