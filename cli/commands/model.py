"""`clinit model`: show a model, or merge two."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clinit.cli.frame import model_source, outcome
from clinit.cli.frame.console import say
from clinit.cli.frame.options import AsJson, Overwrite
from clinit.cli.frame.process import claimed_file, keeps
from clinit.cli.frame.progress import doing, training_progress
from clinit.cli.frame.results import print_content
from clinit.cli.frame.study_options import takes
from clinit.headtrain.model.settings import AddConfig
from clinit.observer import Doing
from clinit.words import DIGEST_LETTERS, examples, number_of, visible

if TYPE_CHECKING:
    from clinit.headtrain.model.facts import ModelFacts
    from clinit.headtrain.model.memory import Memory

app = typer.Typer(no_args_is_help=True, help="Show a model, or merge two.")


@app.command()
@keeps(outcome.WHOLE)
@takes("config", AddConfig)
def merge(
    model: model_source.ModelArgument,
    other: Annotated[Path, typer.Argument(help="Another model of the same network.")],
    config: AddConfig,
    out: model_source.ModelOut = None,
    as_json: AsJson = False,
    overwrite: Overwrite = False,
) -> None:
    """Merge two models, to which different classes were added, into one.

    Both must have the same network, and equal rows or features for the classes
    that they share. All other classes are added to the shared classes at once, from
    the features that the models remember: no image is needed. Equal features are
    one class, whatever its names. A class that one model removed stays removed.
    Neither MODEL nor OTHER is changed.

    clinit model merge scenes-north/ scenes-south/ --out scenes/
    """
    model_source.check_model(model)
    model_source.check_model(other)
    place = model_source.target(out, model, other, overwrite=overwrite)
    from clinit.headtrain.model.add import merge as merged
    from clinit.headtrain.model.model import load_model

    with claimed_file(place), training_progress() as observe:
        observe(Doing("Loading the models …"))
        one, two = (load_model(path, device="cpu") for path in (model, other))
        added = merged(one, two, config, model_source.command_data(), observe)
        observe(Doing(outcome.SAVING))
        written = added.save(place, overwrite=overwrite)
    outcome.tell_added(added, written, as_json=as_json)
    if as_json:
        show(place, as_json=True)


@app.command()
def show(
    model: model_source.ModelArgument, html: outcome.HtmlFile = None, as_json: AsJson = False
) -> None:
    """Show the classes of a model, their history, and its memory."""
    model_source.check_model(model)
    model_source.check_file(html, "html")
    from clinit.headtrain.model.storage import memory_of, read_facts

    with doing("Reading the model …"):
        facts = read_facts(model)
        memory = memory_of(model, facts)
    outcome.write_page(html, str(model), facts)
    if as_json:
        print_content(_as_json(facts, memory))
        return
    name = f"{facts.name}, {facts.digest[:DIGEST_LETTERS]}"
    lines = [f"{model} ({name}) knows {number_of(facts.num_classes, 'class')}"]
    if transform := facts.fingerprint.fields.get("transform"):
        lines.append(f"Images: {transform}")
    if facts.activation != "softmax":
        lines.append(f"Probabilities: a {facts.activation} for each class")
    if facts.probabilities:
        lines.append(f"Probabilities: {facts.probabilities}")
    if facts.assumed is not None:
        lines.append(f"Names of old classes: {facts.assumed}")
    noun = "image" if facts.backbone else "row"
    no = "The model has no memory of its classes"
    lines.append(no if memory is None else memory.describe(noun))
    _say_folded(lines)
    if facts.history:
        heads = ["change", "made of", "classes", f"{noun}s", "top-1: old, new"]
        outcome.print_table(heads, [*_ancestors(facts)])
        tested = (
            f"Tested on {noun}s held out (of new classes: a folder val), or on {noun}s of added"
        )
        _say_folded([f"{tested} classes that were learnt, each without itself."])
    lines = []
    for change in facts.history:
        if new := change.settings.get("names"):
            pairs = examples([f"{a} to {b}" for a, b in new.items()])
            lines.append(f"{change.date[:10]}, renamed: {pairs}")
    for task in sorted(set(facts.tasks)):
        own = [n for n, t in zip(facts.class_names, facts.tasks, strict=True) if t == task]
        lines.append(f"{facts.since(task)}, {number_of(len(own), 'class')}: {outcome.listed(own)}")
    _say_folded(lines)


def _say_folded(lines: Sequence[str]) -> None:
    """Print lines, none wider than 80 columns unless a word is."""
    fold = textwrap.TextWrapper(80, subsequent_indent="    ", break_long_words=False)
    fold.break_on_hyphens = False
    for part in chain.from_iterable(map(fold.wrap, map(visible, lines))):
        say(part)


def _ancestors(facts: ModelFacts) -> Iterator[list[str]]:
    """Yield a line for each change: its origin and its result."""
    from clinit.headtrain.model.facts import accuracy_in_words

    for change in facts.history:
        of = change.data.get("parents") or {"": change.data.get("model", "")}
        names = [f"{Path(path).name} {each[:DIGEST_LETTERS]}".strip() for each, path in of.items()]
        top1 = [accuracy_in_words(change.accuracy.get(group)) for group in ("old", "new")]
        made, total = f"{change.date[:10]} {change.action}", str(change.data.get("total", ""))
        images = f"{sum(change.images.values()):,}" if change.images else ""
        yield [made, ", ".join(names), total, images, ", ".join(top1)]


def _as_json(facts: ModelFacts, memory: Memory | None) -> dict[str, Any]:
    named = zip(facts.class_names, facts.tasks, strict=True)
    remembered = memory and {
        "classes": int(memory.known.sum()),
        "exact": memory.exact,
        "held_out": len(memory.held_out.labels),
        "bytes": memory.num_bytes,
    }
    return {
        "digest": facts.digest,
        "backbone": facts.backbone,
        "transform": facts.fingerprint.fields.get("transform"),
        "activation": facts.activation,
        "assumed_names": facts.record.get("assumed_names"),
        "temperature": facts.temperature and asdict(facts.temperature),
        "classes": [{"class": name, "task": task} for name, task in named],
        "history": [asdict(change) for change in facts.history],
        "memory": remembered,
    }
