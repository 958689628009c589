"""`clinit export`: write the backbone and the head of a run as one network that timm loads."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clinit.cli.claim import claimed_file
from clinit.cli.console import err, note, say
from clinit.cli.interruption import keeps

if TYPE_CHECKING:
    from clinit.extract.head import Top1
    from clinit.headtrain.export.run import Export


@keeps("No half of a file is left: it is written whole or not at all.")
def export(
    run: Annotated[
        Path,
        typer.Argument(help="Run record of train-head or train-top.", show_default=False),
    ],
    out: Annotated[
        Path, typer.Option(help="Model file to write, .safetensors.", show_default=False)
    ],
    weights: Annotated[
        Path | None,
        typer.Option(
            help="Weights of the backbone.", show_default="where they were when it was extracted"
        ),
    ] = None,
    base: Annotated[
        Path | None,
        typer.Option(
            help="Feature cache of the base classes.", show_default="where it was in training"
        ),
    ] = None,
) -> None:
    """Write the trained classifier, backbone and head, as one file that plain timm loads.

    The file holds the class names and the preprocessing too: `clinit predict`
    needs nothing else. The network is compared with what was trained before
    anything is written.
    """
    from clinit.headtrain.export.run import export_run

    if out.suffix != ".safetensors":
        raise typer.BadParameter(f"--out is the model file to write, .safetensors, got {out}")
    with claimed_file(out), err.status("Putting backbone and head together …"):
        exported = export_run(run, out, base=base, weights=weights)
    for text in exported.notes:
        note(text)
    _show(exported)


def _show(exported: Export) -> None:
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
    say()
    say("import timm")
    say(f"model = {facts.loading_line(exported.path)}.eval()")
    say()
    say(f"Model file at {exported.path}; try it:")
    say(f"clinit predict {shlex.quote(str(exported.path))} IMAGE…")


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
