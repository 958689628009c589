"""`clinit model`, `add`, `remember`, `remove` and `rename`: change the classes of a model."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clinit.cli.frame.config import ConfigOption
from clinit.cli.frame.console import note, say, warn
from clinit.cli.frame.console import out as terminal
from clinit.cli.frame.model_source import (
    GivenNetwork,
    ModelAndImages,
    ModelArgument,
    ModelOut,
    check_file,
    check_model,
    command_data,
    opened,
    takes_network,
    target,
)
from clinit.cli.frame.options import AsJson, Overwrite, described
from clinit.cli.frame.process import claimed_file, keeps
from clinit.cli.frame.progress import doing, training_progress
from clinit.cli.frame.results import print_content
from clinit.cli.frame.study_options import takes
from clinit.extract.dataset.names import in_words
from clinit.headtrain.model.settings import AddConfig, ArrivalKind, RememberConfig
from clinit.observer import Doing
from clinit.words import DIGEST_LETTERS, examples, number_of, visible

if TYPE_CHECKING:
    from clinit.headtrain.model.addition import Addition
    from clinit.headtrain.model.facts import ModelFacts
    from clinit.headtrain.model.memory import Memory
    from clinit.headtrain.model.model import Model
    from clinit.headtrain.model.storage import Written

HtmlFile = Annotated[
    Path | None,
    described(
        "Write a page into this .html file: photographs that the audit found, with thumbnails and"
        " boxes that make a list for --without."
    ),
]
SHOWN = 12
"""Maximum number of class names in one line."""
KEPT_FEATURES = "The features computed so far are kept: run the same command again to resume."
SAVING = "Putting backbone and head together …"
WHOLE = "No partial model is left: the model is written completely or not at all."

app = typer.Typer(no_args_is_help=True, help="Show a model, or merge two.")


@keeps(KEPT_FEATURES)
@takes("config", AddConfig)
@takes_network
def add(
    paths: ModelAndImages,
    config: AddConfig,
    network: GivenNetwork,
    out: ModelOut = None,
    more: Annotated[
        bool,
        typer.Option(
            "--more",
            help="Give more images of classes that the model has: the rows of these classes, and of"
            " all classes added with them, are computed anew from all images.",
        ),
    ] = False,
    old: Annotated[
        Path | None,
        described(
            "Feature cache of old classes, named as in the model.", "PATH", "the model's memory"
        ),
    ] = None,
    html: HtmlFile = None,
    as_json: AsJson = False,
    overwrite: Overwrite = False,
    config_file: ConfigOption = None,
) -> None:
    """Add classes to a model, from a folder with a folder of images for each.

    Or from features of them, to a head that reads such features: MODEL is then a
    head file, IMAGES a feature cache or a file of arrays with labels.

    The rows of the new classes are computed from the features of their images;
    old images are not needed. The rows of other classes do not change, nor does
    MODEL. With --backbone and a network without a classifier (DINO, SigLIP, CLIP),
    the new model has only these classes, with a head that is fitted to their images.

    An audit warns about classes that the model already has, classes that look
    alike, repeated images, images that do not fit their class, and old images that
    become wrong. --json prints all findings.

    clinit add scenes/ photographs/
    """
    check_file(html, "html")
    with opened(paths, network, out, overwrite=overwrite) as (model, inputs, out, observe):
        from clinit.headtrain.model.add import add as added_to

        kind: ArrivalKind = "more" if more else "add"
        added = added_to(model, inputs, config, kind=kind, old=old, observe=observe)
        observe(Doing(SAVING))
        written = added.save(out, overwrite=overwrite)
    _tell(added, written, as_json=as_json)
    _write_page(html, str(out), added.model.facts)
    change = added.change
    if html is None and added.audit.misfits and "images" in change.data:
        page = f"clinit model show {shlex.quote(str(out))} --html PAGE.html"
        note(f"`{page}` shows odd photographs, and how to move them or leave them out")
    if as_json:
        told = ("listing", "unreadable", "notes", "untested", "estimated_loss")
        facts = {name: change.data.get(name) for name in told}
        accuracy = {name: asdict(each) for name, each in change.accuracy.items()}
        prices = [{"points": n, "old": asdict(a), "new": asdict(b)} for n, a, b in added.prices]
        facts |= {"accuracy": accuracy, "prices": prices, **change.data["audit"]}
        print_content({"model": str(out), "knows": added.model.facts.num_classes, **facts})


def _tell(added: Addition, written: Written, *, as_json: bool) -> None:
    """Print the answer, what to look at, and the next command."""
    for line in [] if as_json else added.lines(str(written.path)):
        say(line)
    for text in added.audit.lines:
        warn(text)
    for text in added.notes(str(written.path)):
        note(text)
    if as_json:
        return
    for heads, lines in added.tables():
        _print_table(heads, lines)
    what = "PHOTOGRAPH…" if added.model.engine is not None else "FEATURES…"
    say(f"Next: clinit predict {shlex.quote(str(written.path))} {what}")


@keeps(KEPT_FEATURES)
@takes("config", RememberConfig)
@takes_network
def remember(
    paths: ModelAndImages,
    config: RememberConfig,
    network: GivenNetwork,
    out: ModelOut = None,
    overwrite: Overwrite = False,
    config_file: ConfigOption = None,
) -> None:
    """Let a model remember its classes: no image, but their statistics.

    IMAGES is a folder with a folder of images for each class, with the model's
    class names. `clinit add` then needs none of these images: it draws features
    from the statistics, and measures old accuracy on held-out features. With
    --backbone, a timm network becomes a model that remembers its classes.

    clinit remember scenes/ photographs/ --out scenes-with-memory/
    """
    with opened(paths, network, out, overwrite=overwrite) as (model, inputs, out, observe):
        from clinit.headtrain.model.inputs import remember
        from clinit.headtrain.model.storage import write_model

        if out.suffix == ".safetensors" and model.engine is not None:
            raise typer.BadParameter(f"--out must be a folder: a file has no memory, got {out}")
        found = remember(model, inputs, config, observe)
        observe(Doing(SAVING))
        write_model(found, out, overwrite=overwrite)
    facts, memory = found.facts, found.memory
    assert memory is not None
    change = facts.history[-1]
    images = number_of(sum(change.images.values()), "image")
    place = getattr(inputs, "features", None) if model.engine is not None else None
    where = f"; their features are at {place}" if isinstance(place, Path) else ""
    known = f"{int(memory.known.sum()):,} of {number_of(facts.num_classes, 'class')}"
    say(f"{out} remembers {known}, {len(change.classes):,} of them now, from {images}{where}")
    if top1 := change.accuracy.get("old"):
        say(f"Top-1 {top1.percent:.2f} % on {number_of(top1.total, 'other image')}, held out")
    tests = memory.held_out.counts() + memory.left_out.counts()
    if left := int((tests == 0).sum()):
        untested = f"No image held out of {number_of(left, 'class')}, which are not tested"
        say(f"{untested}; of five images or more, one is held out")
    say(memory.describe())
    say(f"Next: clinit add {shlex.quote(str(out))} {'FOLDER' if model.engine else 'FEATURES'}")


@keeps(WHOLE)
def remove(
    model: ModelArgument,
    classes: Annotated[list[str], typer.Argument(help="Names of classes.", metavar="CLASS...")],
    out: ModelOut = None,
    overwrite: Overwrite = False,
) -> None:
    """Remove classes from a model: their rows, and its memory of them.

    The rows of all other classes and their order do not change. MODEL is not
    changed.

    clinit remove scenes/ campsite iceberg
    """
    left = _changed(model, out, lambda one, data: one.remove(classes, data), overwrite=overwrite)
    knows = f"{left.origin} knows {number_of(left.facts.num_classes, 'class')}"
    gone = left.facts.history[-1].classes
    say(f"{knows}, {len(gone):,} fewer: {_listed(gone)} removed")
    if left.memory is not None and not left.memory.exact:
        note(
            "the stored covariance still includes the removed classes:"
            " `clinit remember` computes it anew from images"
        )


@keeps(WHOLE)
def rename(
    model: ModelArgument,
    names: Annotated[
        list[str],
        typer.Argument(help="Pairs of the present name and the new name.", metavar="OLD=NEW..."),
    ],
    out: ModelOut = None,
    overwrite: Overwrite = False,
) -> None:
    """Give classes of a model other names.

    Rows and memory do not change. MODEL is not changed.

    clinit rename scenes/ n02979186="cassette player"
    """
    pairs: dict[str, str] = {}
    for text in names:
        old, _, new = text.partition("=")
        if not (old and new) or old in pairs:
            example = shlex.quote(f"{old or 'tench'}=new name")
            raise typer.BadParameter(f"expected OLD=NEW ({example}), each OLD once, got {text!r}")
        pairs[old] = new
    found = _changed(model, out, lambda one, data: one.rename(pairs, data), overwrite=overwrite)
    named = found.facts.history[-1].settings["names"].items()
    told = [f"{in_words(before)} is now {in_words(now)}" for before, now in named]
    say(f"{found.origin}: {examples(told, SHOWN)}")


def _changed(
    path: Path,
    out: Path | None,
    change: Callable[[Model, Mapping[str, Any]], Model],
    *,
    overwrite: bool,
) -> Model:
    """Open the model at `path`, apply `change` and write the result to `out`; return it."""
    check_model(path)
    import numpy as np

    from clinit.extract.cache.head import Head
    from clinit.headtrain.model.model import Model, load_model
    from clinit.headtrain.model.storage import check_apart, read_facts

    if path.suffix != ".onnx":  # wrong names are refused before the network is loaded
        facts = read_facts(path)
        nothing = np.zeros((facts.num_classes, 1), np.float32)
        head = Head(nothing, nothing[:, 0], facts.class_names)
        change(Model(facts=facts, linear=head), {})
    place = target(out, path, overwrite=overwrite)
    with claimed_file(place), doing(SAVING):
        opened = load_model(path, device="cpu")
        check_apart(place, path)
        found = change(opened, {**command_data(), "model": opened.origin})
        return found.save(place, overwrite=overwrite).model


@app.callback()
def model() -> None:
    """Show a model, or merge two: their classes, history and memory."""


@app.command()
@keeps(WHOLE)
@takes("config", AddConfig)
def merge(
    model: ModelArgument,
    other: Annotated[Path, typer.Argument(help="Another model of the same network.")],
    config: AddConfig,
    out: ModelOut = None,
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
    check_model(model)
    check_model(other)
    place = target(out, model, overwrite=overwrite)
    from clinit.headtrain.model.add import merge as merged
    from clinit.headtrain.model.model import load_model
    from clinit.headtrain.model.storage import check_apart

    with claimed_file(place), training_progress() as observe:
        for path in (model, other):
            check_apart(place, path)
        observe(Doing("Loading the models …"))
        one, two = (load_model(path, device="cpu") for path in (model, other))
        added = merged(one, two, config, command_data(), observe)
        observe(Doing(SAVING))
        written = added.save(place, overwrite=overwrite)
    _tell(added, written, as_json=as_json)
    if as_json:
        show(place, as_json=True)


@app.command()
def show(model: ModelArgument, html: HtmlFile = None, as_json: AsJson = False) -> None:
    """Show the classes of a model, their history, and its memory."""
    check_model(model)
    check_file(html, "html")
    from clinit.headtrain.model.storage import memory_of, read_facts

    with doing("Reading the model …"):
        facts = read_facts(model)
        memory = memory_of(model, facts)
    _write_page(html, str(model), facts)
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
    lines.append("The model has no memory of its classes" if memory is None else memory.describe())
    _say_folded(lines)
    if facts.history:
        heads = ["change", "made of", "classes", "images", "top-1: old, new"]
        _print_table(heads, _ancestors(facts))
        tested = "Tested on images held out (of new classes: a folder val), or on images of added"
        _say_folded([f"{tested} classes that were learnt, each without itself."])
    lines = []
    for change in facts.history:
        if new := change.settings.get("names"):
            pairs = examples([f"{a} to {b}" for a, b in new.items()])
            lines.append(f"{change.date[:10]}, renamed: {pairs}")
    for task in sorted(set(facts.tasks)):
        names = [n for n, t in zip(facts.class_names, facts.tasks, strict=True) if t == task]
        lines.append(f"{facts.since(task)}, {number_of(len(names), 'class')}: {_listed(names)}")
    _say_folded(lines)


def _say_folded(lines: Sequence[str]) -> None:
    """Print lines, none wider than 80 columns unless a word is."""
    fold = textwrap.TextWrapper(80, subsequent_indent="    ", break_long_words=False)
    fold.break_on_hyphens = False
    for part in chain.from_iterable(map(fold.wrap, map(visible, lines))):
        say(part)


def _write_page(path: Path | None, title: str, facts: ModelFacts) -> None:
    """Write the page of photographs to look at, if it is wanted."""
    if path is None:
        return
    from clinit.analysis.page.page import save_page
    from clinit.analysis.page.photographs import model_page

    save_page(path, lambda: model_page(title, facts))
    note(f"photographs to look at: {path}")


def _ancestors(facts: ModelFacts) -> list[list[str]]:
    """Return a line for each change: what it was made of, and what came of it."""
    from clinit.headtrain.model.facts import accuracy_in_words

    lines = []
    for change in facts.history:
        of = change.data.get("parents") or {"": change.data.get("model", "")}
        names = [f"{Path(path).name} {each[:DIGEST_LETTERS]}".strip() for each, path in of.items()]
        top1 = [accuracy_in_words(change.accuracy.get(group)) for group in ("old", "new")]
        made, total = f"{change.date[:10]} {change.action}", str(change.data.get("total", ""))
        images = f"{sum(change.images.values()):,}" if change.images else ""
        lines.append([made, ", ".join(names), total, images, ", ".join(top1)])
    return lines


def _print_table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    from clinit.analysis.report.table import Column, Kind, Table

    kinds: dict[str, Kind] = dict.fromkeys(("classes", "images"), "number")
    terminal.print(Table([Column(head, kinds.get(head, "name")) for head in heads], [lines]))


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
    return ", ".join(map(in_words, names[:SHOWN])) + more


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
