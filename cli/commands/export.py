"""`clinit export`: write the backbone and the head of a run as one network that timm loads."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clinit.cli.frame.claim import claimed_file
from clinit.cli.frame.console import note, say
from clinit.cli.frame.context import Context, given, refuse_idle
from clinit.cli.frame.interruption import keeps
from clinit.cli.frame.model_source import FILE_SUFFIXES, check_onnx_out
from clinit.cli.frame.options import Overwrite, RecordedBase, RecordedNew, described
from clinit.cli.frame.progress import doing
from clinit.cli.frame.run_data import check_run
from clinit.files.paths import check_writable, is_folder
from clinit.words import number_of

if TYPE_CHECKING:
    from clinit.headtrain.model.export import Export


@keeps("No partial model is left: it is written completely or not at all.")
def export(
    context: Context,
    run: Annotated[Path, typer.Argument(help="Run record of train-head or train-top.")],
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
    temperature: Annotated[
        bool,
        typer.Option(
            "--temperature/--no-temperature",
            help="Divide the head by a temperature that calibrates its probabilities on test"
            " images of the run; predicted classes stay the same.",
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
    """
    check_run(run)
    check_writable(out)
    if out.absolute().resolve().is_relative_to(run.resolve()):
        raise typer.BadParameter(f"--out must be outside the run record, got {out}")
    head_only = head_only or out.suffix == ".npz"
    is_folder = out.suffix not in (".npz", ".safetensors")
    reads_features = temperature or (memory and is_folder and not head_only)
    _check_options(context, out, head_only=head_only, reads_features=reads_features)
    from clinit.headtrain.model.export import export_run

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
            overwrite=overwrite,
            head_only=head_only,
        )
    for text in exported.notes:
        note(text)
    (_show_head if exported.network is None else _show_network)(exported)


def _check_options(context: Context, out: Path, *, head_only: bool, reads_features: bool) -> None:
    forms = (".npz", ".safetensors")
    if (head_only or out.suffix.lower() in FILE_SUFFIXES) and out.suffix not in forms:
        kind = "a file that ends in .npz or" if head_only else "a folder, or a file that ends in"
        raise typer.BadParameter(f"--out must be {kind} .safetensors, got {out}")
    alone = ["weights", "onnx", "memory"] if head_only else []
    idle = dict.fromkeys(alone, "has no effect if only the head is written")
    if not reads_features:
        read = ["base", "new"] if head_only else ["new"]
        idle |= dict.fromkeys(read, "has no effect if no features are read")
    refuse_idle(context, idle)
    if given(context, "onnx") is not None:
        check_onnx_out(out)


def _show_head(exported: Export) -> None:
    arrived = sum(task > 0 for task in exported.run.tasks)
    backbone = exported.run.record.info["new"]["fingerprint"].get("backbone")
    later = f", {arrived:,} of which are new," if arrived < exported.head.num_classes else ""
    say(
        f"A head of {exported.head.num_classes:,} classes{later}"
        f" on {exported.head.dim:,} features of {backbone or 'an unknown backbone'}"
    )
    if (ended := exported.run.accuracies()["all"]).percent is not None:
        say(f"The run ended with top-1 {ended.percent:.2f} %")
    if exported.temperature is not None:
        say(f"Probabilities: {exported.temperature.describe()}")
    say(f"Head file at {exported.path}; classify features with it:")
    say(f"clinit predict {shlex.quote(str(exported.path))} FEATURES.npy")


def _show_network(exported: Export) -> None:
    network = exported.network
    assert network is not None
    facts, ended = network.facts, exported.run.accuracies()
    arrived, tasks = sum(task > 0 for task in facts.tasks), max(facts.tasks)
    old = facts.num_classes - arrived
    of_base = f"{old:,} of the base, " if old else ""
    came = f"{of_base}{arrived:,} that arrived in {number_of(tasks, 'task')}"
    say(f"{facts.backbone} with {facts.num_classes:,} classes: {came}")
    changed = "the backbone unchanged"
    if num_changed := sum(value.size for value in exported.run.changed.values()):
        changed = f"{num_changed:,} of the backbone changed in training"
    say(f"{network.num_parameters:,} parameters, {changed}")
    if ended["all"].percent is None:
        say("The run has no test images, so its accuracy is unknown")
    else:
        parts = [
            f"{part.percent:.2f} % of {part.total:,} of {name} classes"
            for name, part in ended.items()
            if name in ("base", "new") and part.percent is not None
        ]
        top1 = f"top-1 {ended['all'].percent:.2f} % on {ended['all'].total:,} test images"
        say(f"The run ended with {top1}" + (f" ({', '.join(parts)})" if parts else ""))
    say(f"Images: {facts.transform.describe()}")
    if facts.temperature is not None:
        say(f"Probabilities: {facts.temperature.describe()}")
    for part in (exported.memory, network.onnx):
        if part is not None:
            say(part.describe())
    as_folder, path = is_folder(exported.path), shlex.quote(str(exported.path))
    say(f"In Python: model = {facts.loading_line(exported.path)}.eval()")
    say()
    say(f"Model {'folder' if as_folder else 'file'} at {exported.path}; try it:")
    say(f"clinit predict {path} IMAGE…")
    if as_folder:
        say()
        say("Its model card is README.md: add the licence there. To upload it (clinit does not):")
        say(f"hf upload USER/NAME {path} . --private --exclude memory.safetensors")
