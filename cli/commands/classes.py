"""`clinit add`, `remember`, `remove` and `rename`: change the classes of a model."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clinit.cli.frame import model_source, outcome
from clinit.cli.frame.config import ConfigOption
from clinit.cli.frame.console import note, say, warn
from clinit.cli.frame.options import AsJson, Overwrite, described
from clinit.cli.frame.process import claimed_file, keeps
from clinit.cli.frame.progress import doing
from clinit.cli.frame.results import print_content
from clinit.cli.frame.study_options import takes
from clinit.extract.dataset.names import by_word, in_words, plain
from clinit.headtrain.model.settings import AddConfig, ArrivalKind, RememberConfig
from clinit.observer import Doing
from clinit.words import examples, number_of, quoted

if TYPE_CHECKING:
    from clinit.headtrain.model.model import Model

KEPT_FEATURES = "The features computed so far are kept: run the same command again to resume."


@keeps(KEPT_FEATURES)
@takes("config", AddConfig)
@model_source.takes_network
def add(
    paths: model_source.ModelAndImages,
    config: AddConfig,
    network: model_source.GivenNetwork,
    out: model_source.ModelOut = None,
    more: Annotated[
        bool,
        typer.Option(
            "--more",
            help="Give more images of classes that the model has: their rows are computed anew from"
            " all images.",
        ),
    ] = False,
    old: Annotated[
        Path | None,
        described(
            "Feature cache of old classes, named as in the model.", "PATH", "the model's memory"
        ),
    ] = None,
    html: outcome.HtmlFile = None,
    as_json: AsJson = False,
    overwrite: Overwrite = False,
    config_file: ConfigOption = None,
) -> None:
    """Add classes to a model, from a folder with a folder of images for each.

    Or from features of them, to a head that reads such features: MODEL is then a
    head file, IMAGES a feature cache or a file of arrays with labels.

    The rows of the new classes are computed from the features of their images;
    old images are not needed. The rows that MODEL came with do not change. Rows of
    classes added before with the same options are computed anew with the new ones,
    so that steps add up to one. With --backbone and a network without a classifier
    (DINO, SigLIP, CLIP), the new model has only these classes, with a head that is
    fitted to their images.

    An audit warns about classes that the model already has, classes that look
    alike, repeated images, images that do not fit their class, and old images that
    become wrong. --json prints all findings.

    clinit add scenes/ photographs/
    """
    model_source.check_file(html, "html")
    kind: ArrivalKind = "more" if more else "add"
    opened = model_source.opened(paths, network, out, kind, overwrite=overwrite)
    with opened as (model, inputs, out, observe):
        from clinit.headtrain.model.add import add as added_to

        added = added_to(model, inputs, config, kind=kind, old=old, observe=observe)
        observe(Doing(outcome.SAVING))
        written = added.save(out, overwrite=overwrite)
    outcome.tell_added(added, written, html, as_json=as_json)
    change = added.change
    if as_json:
        told = ("listing", "unreadable", "notes", "untested")
        facts = {name: change.data.get(name) for name in told}
        accuracy = {name: asdict(each) for name, each in change.accuracy.items()}
        prices = [{"points": n, "old": asdict(a), "new": asdict(b)} for n, a, b in added.prices]
        facts |= {"accuracy": accuracy, "prices": prices, **change.data["audit"]}
        print_content({"model": str(out), "knows": added.model.facts.num_classes, **facts})


@keeps(KEPT_FEATURES)
@takes("config", RememberConfig)
@model_source.takes_network
def remember(
    paths: model_source.ModelAndImages,
    config: RememberConfig,
    network: model_source.GivenNetwork,
    out: model_source.ModelOut = None,
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
    opened = model_source.opened(paths, network, out, "remember", overwrite=overwrite)
    with opened as (model, inputs, out, observe):
        from clinit.headtrain.model.inputs import remember
        from clinit.headtrain.model.storage import write_model

        if out.suffix == ".safetensors" and model.engine is not None:
            raise typer.BadParameter(f"--out must be a folder: a file has no memory, got {out}")
        found = remember(model, inputs, config, observe)
        observe(Doing(outcome.SAVING))
        write_model(found, out, overwrite=overwrite)
    facts, memory, noun = found.facts, found.memory, found.noun
    assert memory is not None
    change = facts.history[-1]
    images = number_of(sum(change.images.values()), noun)
    place = getattr(inputs, "features", None) if model.engine is not None else None
    where = f"; their features are at {place}" if isinstance(place, Path) else ""
    known = f"{int(memory.known.sum()):,} of {number_of(facts.num_classes, 'class')}"
    given = number_of(len(change.classes), "class")
    say(f"{out} remembers {known}; given now: {given}, {images}{where}")
    if top1 := change.accuracy.get("old"):
        told = f"Top-1 {top1.percent:.2f} % on {number_of(top1.total, f'other {noun}')}, held out"
        say(f"{told}; if the head was trained on these {noun}s, it seems better than it is")
    tests = memory.held_out.counts() + memory.left_out.counts()
    if left := int((tests == 0).sum()):
        are = f"{number_of(left, 'class')} {'is' if left == 1 else 'are'} not tested"
        say(f"{are}: a class needs five {noun}s, of which a fifth is held out")
    if few := int(((memory.counts > 0) & (memory.counts < 5)).sum()):
        say(f"Known from few {noun}s: {number_of(few, 'class')}; 5 to 20 of each are better")
    say(memory.describe(noun))
    say(f"Next: clinit add {quoted(out)} {'FOLDER' if model.engine else 'FEATURES'}")


@keeps(outcome.WHOLE)
def remove(
    model: model_source.ModelArgument,
    classes: Annotated[list[str], typer.Argument(help="Names of classes.", metavar="CLASS...")],
    out: model_source.ModelOut = None,
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
    say(f"{knows}, {len(gone):,} fewer: {outcome.listed(gone)} removed")
    if left.facts.temperature is not None:
        note(f"probabilities are divided as before: {left.facts.probabilities}")
    if left.memory is not None and not left.memory.exact:
        note(
            "the stored covariance still includes the removed classes:"
            " `clinit remember` computes it anew from images"
        )


@keeps(outcome.WHOLE)
def rename(
    model: model_source.ModelArgument,
    names: Annotated[
        list[str],
        typer.Argument(help="Pairs of the present name and the new name.", metavar="OLD=NEW..."),
    ],
    out: model_source.ModelOut = None,
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
    say(f"{found.origin}: {examples(told, outcome.SHOWN)}")
    others = by_word([name for name in found.class_names if name not in {*pairs.values()}])
    twice = [f"{new} and {others[plain(new)]}" for new in pairs.values() if plain(new) in others]
    if twice:
        warn(f"classes of one name in words: {examples(twice, outcome.SHOWN)}")


def _changed(
    path: Path, out: Path | None, edit: Callable[[Model, dict[str, Any]], Model], *, overwrite: bool
) -> Model:
    """Open the model at `path`, apply `edit` and write the result to `out`; return it."""
    model_source.check_model(path)
    from clinit.headtrain.model.model import load_model

    if path.suffix != ".onnx":  # wrong names are refused before the network is loaded
        edit(model_source.without_network(path), {})
    place = model_source.target(out, path, overwrite=overwrite)
    with claimed_file(place), doing(outcome.SAVING):
        before = load_model(path, device="cpu")
        found = edit(before, {**model_source.command_data(), "model": before.origin})
        return found.save(place, overwrite=overwrite).model
