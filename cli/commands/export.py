"""`clinit export`: write a run or a model as a network that timm loads, or its head alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clinit.cli.frame.console import note, say
from clinit.cli.frame.context import Context, given, refuse_idle
from clinit.cli.frame.model_source import FILE_SUFFIXES, ONNX_FORM, target
from clinit.cli.frame.options import Overwrite, described
from clinit.cli.frame.process import claimed_file, keeps
from clinit.cli.frame.progress import doing
from clinit.errors import RecordError
from clinit.files.paths import exists, instead_of, is_folder, looks_like_model
from clinit.words import number_of, quoted

if TYPE_CHECKING:
    from clinit.extract.cache.head import Top1
    from clinit.headtrain.model.storage import Written


@keeps("No partial model is left: it is written completely or not at all.")
def export(
    context: Context,
    run: Annotated[
        Path,
        typer.Argument(help="A model, or a record of train-head or train-top.", metavar="MODEL"),
    ],
    out: Annotated[
        Path | None,
        described(
            "Model to write: a folder, or a file that ends in .safetensors. A file that ends in"
            " .npz contains only the head.",
            default="next to MODEL: for flowers, flowers-onnx with --onnx, else flowers-export",
        ),
    ] = None,
    weights: Annotated[
        Path | None, described("Weights of the backbone.", "FILE", "their path at extraction")
    ] = None,
    onnx: Annotated[
        bool, typer.Option("--onnx", help="Write the network as ONNX into the folder too.")
    ] = False,
    overwrite: Overwrite = False,
) -> None:
    """Write the trained classifier, backbone and head, as a model that plain timm loads.

    The model contains class names and preprocessing, so `clinit predict` needs no
    other file. A folder has the layout of models on the Hugging Face Hub, and stores
    statistics of the run's classes, for `clinit add`. Before anything is written,
    the network is compared with the trained network. For imported features there is
    no network: --out FILE.npz writes the head. A model is written in another form:
    as a file, with ONNX, or its head alone.
    """
    is_model = looks_like_model(run)
    if not exists(run):
        remedy = "Give a model, or a folder that `clinit train-head ... --out FOLDER` has written."
        raise RecordError(f"nothing at {run}", remedy=instead_of(run, remedy, exists))
    out = out or target(None, run, form=ONNX_FORM if onnx else "-export", overwrite=overwrite)
    if out.absolute().resolve().is_relative_to(run.resolve()):
        raise typer.BadParameter(f"--out must be outside the run record, got {out}")
    _check_options(context, out, is_model=is_model)
    with claimed_file(out), doing("Putting backbone and head together …"):
        if is_model:
            from clinit.headtrain.model.model import load_model

            model = load_model(run, device="cpu")
            written, top1 = model.export(out, onnx=onnx, overwrite=overwrite), None
        else:
            from clinit.headtrain.model.export import export_model

            written = export_model(run, out, weights=weights, onnx=onnx, overwrite=overwrite)
            top1 = written.run.accuracies()["all"]
            for text in written.notes:
                note(text)
    _show(written, top1)


def _check_options(context: Context, out: Path, *, is_model: bool) -> None:
    forms = (".npz", ".safetensors")
    if out.suffix.lower() in FILE_SUFFIXES and out.suffix not in forms:
        onnx = "; for ONNX, `--out FOLDER --onnx`" * (out.suffix.lower() == ".onnx")
        raise typer.BadParameter(
            f"--out must be a folder, or a file that ends in .npz or .safetensors, got {out}{onnx}"
        )
    if is_model:
        refuse_idle(context, {"weights": "has no effect: a model is given, not a run"})
    elif out.suffix == ".npz":
        refuse_idle(context, {"weights": "has no effect if only the head is written"})
    if given(context, "onnx") is not None and out.suffix in forms:
        raise typer.BadParameter(f"--onnx writes into a folder: --out must be a folder, got {out}")


def _show(written: Written, top1: Top1 | None) -> None:
    """Print what was written, and how to use it; `top1` is the final accuracy of a run."""
    model, path = written.model, quoted(written.path)
    facts, engine = model.facts, model.engine
    arrived = sum(task > 0 for task in facts.tasks)
    old = facts.num_classes - arrived
    came = f"{old:,} of the base, " * (old > 0) + f"{arrived:,} that arrived later"
    what = facts.name if engine else f"A head on {model.head.dim:,} features of {facts.name}"
    say(f"{what}: {number_of(facts.num_classes, 'class')}, {came}")
    if top1 is not None and top1.percent is None:
        say("The run has no test images, so its accuracy is unknown")
    elif top1 is not None:
        say(f"The run ended with top-1 {top1.percent:.2f} % on {top1.total:,} test images")
    if engine is not None:
        say(f"Images: {engine.transform.describe()}")
    if facts.temperature is not None:
        say(f"Probabilities: {facts.temperature.describe()}")
    if engine is not None and path.endswith(".safetensors"):
        say("A file has no memory of the classes: only a model folder stores it")
    elif model.memory is not None:
        say(model.memory.describe(model.noun))
    if written.onnx is not None:
        say(f"{written.path / 'model.onnx'}: {written.onnx}")
    if engine is not None:
        from clinit.headtrain.model.network import loading_line

        say(f"In Python: model = {loading_line(model, written.path)}.eval()")
    if is_folder(written.path):
        say("Its model card is README.md: add the licence there. To upload it (clinit does not):")
        say(f"hf upload USER/NAME {path} . --private --exclude memory.safetensors")
    given = path if written.onnx is None else quoted(written.path / "model.onnx")
    say(f"Next: clinit predict {given} {'FEATURES…' if engine is None else 'PHOTOGRAPH…'}")
