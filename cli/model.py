"""`clinit model`: what a model says about itself."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from clinit.cli.claim import claimed_file
from clinit.cli.console import note, out, print_json, say
from clinit.cli.interruption import keeps
from clinit.cli.model_source import ModelArgument, ModelOut, check_out
from clinit.cli.options import AsJson, Output, OutputFormat, Overwrite
from clinit.cli.progress import doing
from clinit.cli.run_data import check_model
from clinit.words import number_of, visible

if TYPE_CHECKING:
    from pathlib import Path

    from clinit.headtrain.model.memory import Memory
    from clinit.headtrain.model.model_file import ModelFacts


SHOWN = 12
"""Class names in one line."""

app = typer.Typer(no_args_is_help=True, help="Show a model: its classes, history and memory.")


@app.callback()
def model() -> None:
    """Show a model: its classes, history and memory."""


@app.command()
def show(
    model: ModelArgument,
    output: OutputFormat = Output.table,
    as_json: AsJson = False,
) -> None:
    """Show which classes a model has, when they came and from what, and what it remembers."""
    check_model(model)
    from clinit.headtrain.model.folder import model_file_of, read_whole
    from clinit.headtrain.model.memory import memory_in
    from clinit.headtrain.model.model_file import read_facts

    def read() -> tuple[ModelFacts, Memory | None]:
        facts = read_facts(model_file_of(model))
        return facts, memory_in(model, facts)

    with doing("Reading the model …"):
        facts, memory = read_whole(model, read)
    if as_json or output is Output.json:
        print_json(json.dumps(_as_json(facts, memory), ensure_ascii=False))
        return
    _show(model, facts, memory)


def _show(path: Path, facts: ModelFacts, memory: Memory | None) -> None:
    from rich import box
    from rich.table import Table

    say(f"{path}: {facts.backbone}, {number_of(facts.num_classes, 'class')}")
    say(f"Images: {facts.transform.describe()}")
    if facts.temperature is not None:
        say(f"Probabilities: {facts.temperature.describe()}")
    if memory is None:
        say("It remembers nothing of their images")
    else:
        exact = (
            ""
            if memory.exact
            else " (their covariance is also of images that were removed or replaced)"
        )
        say(
            f"It remembers {int(memory.known.sum()):,} of them{exact},"
            f" {number_of(len(memory.held_out.labels), 'feature')} kept aside and"
            f" {len(memory.kept.labels):,} for rehearsal: {memory.num_bytes / 1e6:,.1f} MB"
        )
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("when", no_wrap=True)
    table.add_column("what", no_wrap=True)
    table.add_column("classes", overflow="fold")
    table.add_column("images", justify="right", no_wrap=True)
    table.add_column("top-1 then: old, new", no_wrap=True)
    for change in facts.history:
        table.add_row(
            change.date[:16].replace("T", " "),
            change.action,
            Text(visible(_listed(change.classes))),
            f"{sum(change.images.values()):,}" if change.images else "",
            ", ".join(_accuracy(change.accuracy.get(group)) for group in ("old", "new")),
        )
    if facts.history:
        out.print(table)
    for task in sorted(set(facts.tasks)):
        names = [n for n, t in zip(facts.class_names, facts.tasks, strict=True) if t == task]
        where = "base" if task == 0 else f"task {task}"
        say(f"{where}, {number_of(len(names), 'class')}: {_listed(names)}")


def _listed(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    more = f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _accuracy(part: Mapping[str, int] | None) -> str:
    return f"{100 * part['correct'] / part['total']:.2f} %" if part else "-"


def _as_json(facts: ModelFacts, memory: Memory | None) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "backbone": facts.backbone,
        "transform": facts.transform.describe(),
        "temperature": None if facts.temperature is None else asdict(facts.temperature),
        "classes": [
            {"class": name, "task": task}
            for name, task in zip(facts.class_names, facts.tasks, strict=True)
        ],
        "history": [asdict(change) for change in facts.history],
        "memory": None
        if memory is None
        else {
            "classes": int(memory.known.sum()),
            "exact": memory.exact,
            "held_out": len(memory.held_out.labels),
            "kept": len(memory.kept.labels),
            "bytes": memory.num_bytes,
        },
    }


@keeps("No half of a model is left: it is written whole or not at all.")
def remove(
    model: ModelArgument,
    classes: Annotated[
        list[str],
        typer.Argument(help="Names of classes.", metavar="CLASS...", show_default=False),
    ],
    out: ModelOut,
    overwrite: Overwrite = False,
) -> None:
    """Remove classes from a model: their rows, and what it remembers of them.

    The rows of all other classes stay as they are, in their order. MODEL is not
    changed.

    clinit remove scenes/ campsite iceberg --out fewer-scenes/
    """
    check_model(model)
    check_out(out, overwrite=overwrite)
    from clinit.headtrain.model.edit import Classes, check_apart, open_model, removed, write_classes

    with claimed_file(out), doing("Putting backbone and head together …"):
        opened = open_model(model, device="cpu")
        check_apart(out, model)
        data = {"command": ["clinit", *sys.argv[1:]], "model": opened.origin}
        left = removed(Classes.of(opened), classes, data=data)
        facts = write_classes(opened, left, out, overwrite=overwrite)
    say(
        f"{len(set(classes)):,} removed: {facts.backbone} knows"
        f" {number_of(facts.num_classes, 'class')} now"
    )
    if left.memory is not None and not left.memory.exact:
        note(
            "the covariance that all classes share is still that of the removed ones too:"
            " `clinit remember` computes it anew from images"
        )
    say(f"Model at {out}")


@keeps("No half of a model is left: it is written whole or not at all.")
def rename(
    model: ModelArgument,
    names: Annotated[
        list[str],
        typer.Argument(
            help="Pairs of names, the one that the model has first.",
            metavar="OLD=NEW...",
            show_default=False,
        ),
    ],
    out: ModelOut,
    overwrite: Overwrite = False,
) -> None:
    """Give classes of a model other names.

    Rows and what it remembers stay as they are. MODEL is not changed.

    clinit rename scenes/ n02979186="cassette player" --out named-scenes/
    """
    pairs = _pairs(names)
    check_model(model)
    check_out(out, overwrite=overwrite)
    from clinit.headtrain.model.edit import Classes, check_apart, open_model, renamed, write_classes

    with claimed_file(out), doing("Putting backbone and head together …"):
        opened = open_model(model, device="cpu")
        check_apart(out, model)
        data = {"command": ["clinit", *sys.argv[1:]], "model": opened.origin}
        classes = renamed(Classes.of(opened), pairs, data=data)
        write_classes(opened, classes, out, overwrite=overwrite)
    say(f"{len(pairs):,} renamed. Model at {out}")


def _pairs(names: list[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in names:
        old, equals, new = text.partition("=")
        if not (old and equals and new):
            raise typer.BadParameter(f"expected OLD=NEW, got {text!r}")
        if old in pairs:
            raise typer.BadParameter(f"{old!r} is renamed twice")
        pairs[old] = new
    return pairs
