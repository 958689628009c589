"""`clinit model`, `add`, `remember`, `remove` and `rename`: change the classes of a model."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clinit.cli.frame.claim import claimed_file
from clinit.cli.frame.config import ConfigOption
from clinit.cli.frame.console import note, say
from clinit.cli.frame.console import out as terminal
from clinit.cli.frame.interruption import keeps
from clinit.cli.frame.model_source import (
    ModelAndImages,
    ModelArgument,
    ModelOut,
    NetworkOptions,
    check_model,
    check_out,
    command_data,
    listener,
    opened,
    takes_network,
)
from clinit.cli.frame.options import AsJson, Overwrite
from clinit.cli.frame.progress import doing
from clinit.cli.frame.results import print_content
from clinit.cli.frame.study_options import takes
from clinit.extract.dataset.names import in_words
from clinit.headtrain.model.settings import AddConfig, RememberConfig
from clinit.words import number_of

if TYPE_CHECKING:
    from clinit.extract.cache.head import Top1
    from clinit.headtrain.model.add import Addition
    from clinit.headtrain.model.facts import ModelFacts
    from clinit.headtrain.model.memory import Memory
    from clinit.headtrain.model.model import Model

FEW = 30
"""With fewer test images, accuracies are printed as counts: 30 images give an error of 9 points."""
SHOWN = 12
"""Maximum number of class names in one line."""
KEPT_FEATURES = "The features computed so far are kept: run the same command again to resume."
WHOLE = "No partial model is left: the model is written completely or not at all."

app = typer.Typer(no_args_is_help=True, help="Show a model, or merge two.")


@keeps(KEPT_FEATURES)
@takes("config", AddConfig)
@takes_network
def add(
    paths: ModelAndImages,
    out: ModelOut,
    config: AddConfig,
    network: NetworkOptions,
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Replace the rows of classes that the model already has."),
    ] = False,
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
        typer.Option(
            help="Feature cache of old classes, with the model's class names; or a file that"
            " `clinit head statistics` made from such a cache.",
            metavar="PATH",
            show_default="the model's memory",
        ),
    ] = None,
    onnx: Annotated[
        bool,
        typer.Option(
            "--onnx", help="Write the network as ONNX into the folder too; check it on IMAGES."
        ),
    ] = False,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Add nothing if there are warnings or unreadable images."),
    ] = False,
    as_json: AsJson = False,
    overwrite: Overwrite = False,
    config_file: ConfigOption = None,
) -> None:
    """Add classes to a model, from a folder with a folder of images for each.

    The rows of the new classes are computed from the features of their images;
    old images are not needed. The rows of other classes do not change unless
    --iterations trains the head. MODEL is not changed. With --backbone and a
    network without a classifier (DINO, SigLIP, CLIP), the new model has only
    these classes, with a head that is fitted to their images.

    An audit warns about classes that the model already has, classes that look
    alike, repeated images, images that do not fit their class, and old images that
    become wrong. --json prints all findings.

    clinit add scenes/ photographs/ --out scenes2/
    """
    if more and replace:
        raise typer.BadParameter("--more keeps earlier images, --replace forgets them: give one")
    with opened(paths, network, out, overwrite=overwrite, onnx=onnx) as (model, job):
        from clinit.headtrain.model.add import add_images

        added = add_images(
            model, job, config, old=old, replacing=replace, more=more, onnx=onnx, strict=strict
        )
    if as_json:
        data = added.model.facts.history[-1].data
        left_out = {name: data.get(name) for name in ("listing", "unreadable")}
        content = {"model": str(out), **left_out, **data["audit"]}
        print_content(content)
        return
    _tell(added, out, f"; their features are at {job.folder}")


def _tell(added: Addition, out: Path, where: str = "") -> None:
    from clinit.headtrain.heads.groups import repeats_in_words

    facts, change = added.model.facts, added.model.facts.history[-1]
    is_first = len(change.classes) == facts.num_classes
    again = "computed anew" if change.action in ("more", "merge") else "replaced"
    arrived = {again: added.replaced, "added": len(change.classes) - added.replaced}
    done = [f"{number_of(count, 'class')} {what}" for what, count in arrived.items() if count]
    if not change.classes:
        say(f"No class was added: {facts.backbone} has {number_of(facts.num_classes, 'class')}")
        say(f"Model at {out}")
        return
    if more := change.data.get("more"):
        done.insert(0, f"{sum(more.values()):,} more images of {number_of(len(more), 'class')}")
    say(f"{', '.join(done)}: {facts.backbone} now has {number_of(facts.num_classes, 'class')}")
    aside = 0 if added.left_out else added.new.total
    say(f"Images: {sum(change.images.values()):,} to learn from, {aside:,} kept aside{where}")
    if change.data["repeats"]:
        say(f"Repeats: {repeats_in_words(change.data['repeats'])}")
    say(f"In place of old images: {change.data['old_rows']}")
    old_top1 = [accuracy_in_words(each) for each in (added.old_before, added.old)]
    if not added.old.total:
        old_top1 = ["-", "not measured"]
    of_old = [] if is_first else [["old classes, held out", f"{added.old.total:,}", *old_top1]]
    how = "image left out" if added.left_out else "held out"
    of_new = [f"added classes, {how}", f"{added.new.total:,}", "-", accuracy_in_words(added.new)]
    _print_table(["top-1 on images of", "images", "before", "now"], [*of_old, of_new])
    if len({each[1:] for each in added.prices}) > 1 and added.new.total:
        lines = []
        for each in added.prices:
            used = " (used)" if each.points == change.settings["max_old_loss"] else ""
            both = map(accuracy_in_words, (each.old, each.new))
            lines.append([f"--max-old-loss {each.points:g}{used}", *both])
        heading = "points that old classes may lose"
        _print_table([heading, "old classes", "added classes"], lines)
    if not added.new.total:
        note(
            "no image of added classes was tested: it takes a second image of a class, which does"
            " not repeat the first, or a folder val"
        )
    elif added.new.total < FEW:
        note(
            f"{number_of(added.new.total, 'image')} of added classes tested: too few for an"
            " accuracy; give more in a folder val"
        )
    if not added.old.total and not is_first:
        estimate = ""
        if added.taken is not None and added.taken.total:
            estimate = (
                f"; of {added.taken.total:,} features that stand in for old images, new classes"
                f" take an estimated {added.taken.correct:,}"
            )
        note(
            f"accuracy on old classes was not measured{estimate}: give the model images of them"
            " (`clinit remember`), or --old CACHE"
        )
    is_folder = out.suffix != ".safetensors"
    if facts.temperature is not None:
        say(f"Probabilities: {facts.temperature.describe()}")
    if is_folder and added.model.memory is not None:
        say(added.model.memory.describe())
    if added.onnx is not None:
        say(added.onnx.describe())
    say(f"Model {'folder' if is_folder else 'file'} at {out}; try it:")
    say(f"clinit predict {shlex.quote(str(out))} IMAGE…")


def accuracy_in_words(part: Top1 | None) -> str:
    """Return the accuracy in percent; for few images, as counts, which suggest no precision."""
    if part is None or part.percent is None:
        return "-"
    if part.total < FEW:
        return f"{part.correct} of {part.total}"
    return f"{part.percent:.2f} %"


@keeps(KEPT_FEATURES)
@takes("config", RememberConfig)
@takes_network
def remember(
    paths: ModelAndImages,
    out: ModelOut,
    config: RememberConfig,
    network: NetworkOptions,
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
    if out.suffix == ".safetensors":
        raise typer.BadParameter(f"--out must be a folder: a file has no memory, got {out}")
    with opened(paths, network, out, overwrite=overwrite) as (model, job):
        from clinit.headtrain.model.images import remember_images

        found = remember_images(model, job, config)
    facts, memory = found.facts, found.memory
    assert memory is not None
    change = facts.history[-1]
    say(
        f"{len(change.classes):,} of {facts.num_classes:,} classes remembered, of"
        f" {number_of(sum(change.images.values()), 'image')}; their features are at {job.folder}"
    )
    if others := int(memory.known.sum()) - len(change.classes):
        say(f"{others:,} other classes remembered as before")
    if top1 := change.accuracy.get("old"):
        say(f"Top-1 {top1.percent:.2f} % on {number_of(top1.total, 'image')} kept aside")
    say(memory.describe())
    say(f"Model folder at {out}")


@keeps(WHOLE)
def remove(
    model: ModelArgument,
    classes: Annotated[list[str], typer.Argument(help="Names of classes.", metavar="CLASS...")],
    out: ModelOut,
    overwrite: Overwrite = False,
) -> None:
    """Remove classes from a model: their rows, and its memory of them.

    The rows of all other classes and their order do not change. MODEL is not
    changed.

    clinit remove scenes/ campsite iceberg --out fewer-scenes/
    """
    left = _changed(
        model, out, lambda opened, data: opened.removed(classes, data), overwrite=overwrite
    )
    facts = left.facts
    say(
        f"{len(set(classes)):,} removed: {facts.backbone} now has"
        f" {number_of(facts.num_classes, 'class')}"
    )
    if left.memory is not None and not left.memory.exact:
        note(
            "the stored covariance still includes the removed classes:"
            " `clinit remember` computes it anew from images"
        )
    say(f"Model at {out}")


@keeps(WHOLE)
def rename(
    model: ModelArgument,
    names: Annotated[
        list[str],
        typer.Argument(help="Pairs of the present name and the new name.", metavar="OLD=NEW..."),
    ],
    out: ModelOut,
    overwrite: Overwrite = False,
) -> None:
    """Give classes of a model other names.

    Rows and memory do not change. MODEL is not changed.

    clinit rename scenes/ n02979186="cassette player" --out named-scenes/
    """
    pairs: dict[str, str] = {}
    for text in names:
        old, _, new = text.partition("=")
        if not (old and new) or old in pairs:
            raise typer.BadParameter(f"expected OLD=NEW, each OLD once, got {text!r}")
        pairs[old] = new
    _changed(model, out, lambda opened, data: opened.renamed(pairs, data), overwrite=overwrite)
    say(f"{len(pairs):,} renamed. Model at {out}")


def _changed(
    path: Path, out: Path, change: Callable[[Model, Mapping[str, Any]], Model], *, overwrite: bool
) -> Model:
    """Open the model at `path`, apply `change` and write the result to `out`; return it."""
    check_model(path)
    check_out(out, overwrite=overwrite)
    from clinit.headtrain.model.images import check_apart
    from clinit.headtrain.model.reading import open_model
    from clinit.headtrain.model.writing import write_model

    with claimed_file(out), doing("Putting backbone and head together …"):
        opened = open_model(path, device="cpu")
        check_apart(out, path)
        found = change(opened, {**command_data(), "model": opened.origin})
        write_model(found, out, overwrite=overwrite)
    return found


@app.callback()
def model() -> None:
    """Show a model, or merge two: their classes, history and memory."""


@app.command()
@keeps(WHOLE)
@takes("config", AddConfig, but=["hold_out"])
def merge(
    model: ModelArgument,
    other: Annotated[Path, typer.Argument(help="Another model of the same network.")],
    out: ModelOut,
    config: AddConfig,
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
    check_out(out, overwrite=overwrite)
    from clinit.headtrain.model.add import merge_models
    from clinit.headtrain.model.reading import open_model

    with claimed_file(out):
        with doing("Loading the models …"):
            one, two = (open_model(path, device="cpu") for path in (model, other))
        data = command_data()
        added = merge_models(one, two, out, config, data, listener(), overwrite=overwrite)
    if as_json:
        show(out, as_json=True)
    else:
        _tell(added, out)


@app.command()
def show(model: ModelArgument, as_json: AsJson = False) -> None:
    """Show the classes of a model, their history, and its memory."""
    check_model(model)
    from clinit.headtrain.model.reading import memory_of, read_facts

    with doing("Reading the model …"):
        facts = read_facts(model)
        memory = memory_of(model, facts)
    if as_json:
        print_content(_as_json(facts, memory))
        return
    say(f"{model}: {facts.backbone}, {number_of(facts.num_classes, 'class')}")
    say(f"Images: {facts.transform.describe()}")
    if facts.temperature is not None:
        say(f"Probabilities: {facts.temperature.describe()}")
    if facts.assumed is not None:
        say(f"Names of old classes: {facts.assumed}")
    say("The model has no memory of its classes" if memory is None else memory.describe())
    lines = [
        [
            change.date[:16].replace("T", " "),
            change.action,
            _listed(change.classes),
            f"{sum(change.images.values()):,}" if change.images else "",
            ", ".join(accuracy_in_words(change.accuracy.get(group)) for group in ("old", "new")),
        ]
        for change in facts.history
    ]
    if lines:
        _print_table(["when", "change", "classes", "images", "top-1 then: old, new"], lines)
    for task in sorted(set(facts.tasks)):
        names = [n for n, t in zip(facts.class_names, facts.tasks, strict=True) if t == task]
        where = "base" if task == 0 else f"task {task}"
        say(f"{where}, {number_of(len(names), 'class')}: {_listed(names)}")


def _print_table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    from clinit.analysis.report.table import Column, Kind, Table

    kinds: dict[str, Kind] = dict.fromkeys(("images", "before", "now"), "number")
    kinds["classes"] = "setting"
    terminal.print(Table([Column(head, kinds.get(head, "name")) for head in heads], [lines]))


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
    return ", ".join(map(in_words, names[:SHOWN])) + more


def _as_json(facts: ModelFacts, memory: Memory | None) -> dict[str, Any]:
    from dataclasses import asdict

    named = zip(facts.class_names, facts.tasks, strict=True)
    remembered = memory and {
        "classes": int(memory.known.sum()),
        "exact": memory.exact,
        "held_out": len(memory.held_out.labels),
        "kept": len(memory.kept.labels),
        "bytes": memory.num_bytes,
    }
    return {
        "backbone": facts.backbone,
        "transform": facts.transform.describe(),
        "assumed_names": facts.record.get("assumed_names"),
        "temperature": facts.temperature and asdict(facts.temperature),
        "classes": [{"class": name, "task": task} for name, task in named],
        "history": [asdict(change) for change in facts.history],
        "memory": remembered,
    }
