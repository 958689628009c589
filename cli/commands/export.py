"""`clinit export`: write a run or a model as a network that timm loads, or its head alone."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clinit.cli.frame.console import note, say
from clinit.cli.frame.context import Context, given, refuse_idle
from clinit.cli.frame.model_source import FILE_SUFFIXES, looks_like_model
from clinit.cli.frame.options import Overwrite, RecordedBase, RecordedNew, described
from clinit.cli.frame.process import claimed_file, keeps
from clinit.cli.frame.progress import doing
from clinit.errors import RecordError
from clinit.files.paths import check_writable, exists, instead_of, is_folder
from clinit.words import number_of

if TYPE_CHECKING:
    from clinit.headtrain.model.export import Export


@keeps("No partial model is left: it is written completely or not at all.")
def export(
    context: Context,
    run: Annotated[
        Path,
        typer.Argument(
            help="A model, or a run record of train-head or train-top.", metavar="MODEL"
        ),
    ],
    out: Annotated[
        Path,
        described(
            "Model to write: a folder, or a file that ends in .safetensors. A file that ends in"
            " .npz contains only the head."
        ),
    ],
    weights: Annotated[
        Path | None, described("Weights of the backbone.", "FILE", "their path at extraction")
    ] = None,
    base: RecordedBase = None,
    new: RecordedNew = None,
    onnx: Annotated[
        bool, typer.Option("--onnx", help="Write the network as ONNX into the folder too.")
    ] = False,
    memory: Annotated[
        bool,
        typer.Option(
            "--memory/--no-memory",
            help="Store class statistics and held-out features of the run's caches in the folder;"
            " `clinit add` and `predict --reject` use them.",
        ),
    ] = True,
    head_only: Annotated[
        bool,
        typer.Option(
            "--head-only",
            help="Write the head without the backbone, into a .safetensors or .npz file, for"
            " imported features.",
        ),
    ] = False,
    overwrite: Overwrite = False,
) -> None:
    """Write the trained classifier, backbone and head, as a model that plain timm loads.

    The model contains class names and preprocessing, so `clinit predict` needs no
    other file. A folder has the layout of models on the Hugging Face Hub. Before
    anything is written, the network is compared with the trained network. For
    imported features there is no network: use --head-only to write the head.
    A model is written in another form: as a file, with ONNX, or its head alone.
    """
    is_model = looks_like_model(run)
    if not is_model:
        _check_run(run)
    check_writable(out)
    if out.absolute().resolve().is_relative_to(run.resolve()):
        raise typer.BadParameter(f"--out must be outside the run record, got {out}")
    head_only = head_only or out.suffix == ".npz"
    _check_options(context, out, is_model=is_model, head_only=head_only)
    if is_model:
        _export_model(run, out, onnx=onnx, alone=head_only, memory=memory, overwrite=overwrite)
        return
    from clinit.headtrain.model.export import TrainedRun, export_head, export_model

    with claimed_file(out), doing("Putting backbone and head together …"):
        trained = TrainedRun.read(run, base, new)
        if head_only:
            exported = export_head(trained, out, overwrite=overwrite)
        else:
            exported = export_model(
                trained, out, weights=weights, onnx=onnx, remembers=memory, overwrite=overwrite
            )
    for text in exported.notes:
        note(text)
    (_show_head if head_only else _show_network)(exported)


def _export_model(
    path: Path, out: Path, *, onnx: bool, alone: bool, memory: bool, overwrite: bool
) -> None:
    """Write a model in another form."""
    from clinit.headtrain.model.model import load_model

    with claimed_file(out), doing("Putting backbone and head together …"):
        model = load_model(path, device="cpu")
        model = model if memory else replace(model, memory=None)
        written = model.export(out, onnx=onnx, head_only=alone, overwrite=overwrite)
    kind = "folder" if is_folder(out) else "file"
    say(f"{written.model.facts.name}, {number_of(written.model.facts.num_classes, 'class')}")
    if written.onnx is not None:
        say(written.onnx.describe())
    say(f"Model {kind} at {out}")


def _check_run(path: Path) -> None:
    if not exists(path):
        raise RecordError(
            f"no run record at {path}: there is no such folder",
            remedy=instead_of(
                path, "Give a folder that `clinit train-head ... --out FOLDER` has written."
            ),
        )


def _check_options(context: Context, out: Path, *, is_model: bool, head_only: bool) -> None:
    forms = (".npz", ".safetensors")
    if (head_only or out.suffix.lower() in FILE_SUFFIXES) and out.suffix not in forms:
        kind = "a file that ends in .npz or" if head_only else "a folder, or a file that ends in"
        onnx = "; for ONNX, `--out FOLDER --onnx`" * (out.suffix.lower() == ".onnx")
        raise typer.BadParameter(f"--out must be {kind} .safetensors, got {out}{onnx}")
    idle = dict[str, str]()
    if is_model:
        names = ("weights", "base", "new")
        idle = dict.fromkeys(names, "has no effect: a model is given, not a run")
    elif head_only:
        idle = dict.fromkeys(("weights", "memory"), "has no effect if only the head is written")
    if head_only:
        idle["onnx"] = "has no effect if only the head is written"
    refuse_idle(context, idle)
    if given(context, "onnx") is not None and out.suffix in forms:
        raise typer.BadParameter(f"--onnx writes into a folder: --out must be a folder, got {out}")


def _show_head(exported: Export) -> None:
    facts, head = exported.facts, exported.written.model.head
    arrived = sum(task > 0 for task in facts.tasks)
    later = f", {arrived:,} of which are new," if arrived < head.num_classes else ""
    say(
        f"A head of {head.num_classes:,} classes{later}"
        f" on {head.dim:,} features of {facts.backbone or 'an unknown backbone'}"
    )
    if (ended := exported.run.accuracies()["all"]).percent is not None:
        say(f"The run ended with top-1 {ended.percent:.2f} %")
    if facts.temperature is not None:
        say(f"Probabilities: {facts.temperature.describe()}")
    say(f"Head file at {exported.path}; classify features with it:")
    say(f"clinit predict {shlex.quote(str(exported.path))} FEATURES.npy")


def _show_network(exported: Export) -> None:
    from clinit.headtrain.model.network import engine_of, loading_line

    written, facts, ended = exported.written, exported.facts, exported.run.accuracies()
    arrived, tasks = sum(task > 0 for task in facts.tasks), max(facts.tasks)
    old = facts.num_classes - arrived
    of_base = f"{old:,} of the base, " if old else ""
    came = f"{of_base}{arrived:,} that arrived in {number_of(tasks, 'task')}"
    say(f"{facts.backbone} with {facts.num_classes:,} classes: {came}")
    if (top1 := ended["all"]).percent is None:
        say("The run has no test images, so its accuracy is unknown")
    else:
        say(f"The run ended with top-1 {top1.percent:.2f} % on {top1.total:,} test images")
    say(f"Images: {engine_of(written.model).transform.describe()}")
    if facts.temperature is not None:
        say(f"Probabilities: {facts.temperature.describe()}")
    for part in (written.model.memory, written.onnx):
        if part is not None:
            say(part.describe())
    as_folder, path = is_folder(exported.path), shlex.quote(str(exported.path))
    say(f"In Python: model = {loading_line(written.model, exported.path)}.eval()")
    say()
    say(f"Model {'folder' if as_folder else 'file'} at {exported.path}; try it:")
    say(f"clinit predict {path} IMAGE…")
    if as_folder:
        say()
        say("Its model card is README.md: add the licence there. To upload it (clinit does not):")
        say(f"hf upload USER/NAME {path} . --private --exclude memory.safetensors")
