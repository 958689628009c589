"""`clinit add`: new classes for a model in use."""

from __future__ import annotations

import shlex
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clinit.cli.claim import claimed_file
from clinit.cli.config import ConfigOption
from clinit.cli.console import note, say
from clinit.cli.console import out as terminal
from clinit.cli.export import remembered
from clinit.cli.interruption import keeps
from clinit.cli.model_source import (
    ModelAndImages,
    ModelOut,
    NetworkOptions,
    check_out,
    check_paths,
    listener,
    open_source,
    takes_network,
)
from clinit.cli.options import Overwrite
from clinit.cli.progress import doing
from clinit.cli.study_options import takes
from clinit.headtrain.model.settings import AddConfig, RememberConfig
from clinit.words import number_of

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn

    from clinit.extract.cache.head import Top1
    from clinit.headtrain.model.add import Addition
    from clinit.headtrain.model.edit import ExtraFiles
    from clinit.headtrain.model.images import Remembered
    from clinit.headtrain.model.model_file import ModelFacts
    from clinit.headtrain.model.onnx import OnnxCheck


FEW = 30
"""Held-out images below which an accuracy is told in counts: of 30 it is known to 9 points."""


@keeps("The features computed so far are kept: the same command goes on after them.")
@takes("config", AddConfig)
@takes_network
def add(
    paths: ModelAndImages,
    out: ModelOut,
    config: AddConfig,
    network: NetworkOptions,
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Replace classes that the model has, in their own rows."),
    ] = False,
    old: Annotated[
        Path | None,
        typer.Option(
            help="Feature cache of old classes, named as the model names them.",
            metavar="FOLDER",
            show_default="what the model remembers",
        ),
    ] = None,
    onnx: Annotated[
        bool,
        typer.Option(
            "--onnx", help="Write the network as ONNX into the folder too, compared on IMAGES."
        ),
    ] = False,
    overwrite: Overwrite = False,
    config_file: ConfigOption = None,
) -> None:
    """Add classes to a model, from a folder with a folder of images for each.

    Their rows are computed from the features of the images; no old image is
    needed, and the rows of the other classes stay as they are unless
    --iterations trains the head. MODEL is not changed.

    clinit add scenes/ photographs/ --out scenes2/
    """
    check_paths(paths, network)
    check_out(out, overwrite=overwrite)
    from clinit.headtrain.model.add import AddRequest, add_images

    if onnx:
        from clinit.headtrain.model.onnx import check_installed

        if out.suffix == ".safetensors":
            raise typer.BadParameter(f"--onnx writes into a folder: give --out one, not {out}")
        check_installed()
    checks: list[OnnxCheck] = []
    with claimed_file(out):
        model, images = open_source(paths, network)
        request = AddRequest(
            images=images,
            out=out,
            config=config,
            extraction=network.extraction(),
            replacing=replace,
            overwrite=overwrite,
            old=old,
            features=network.features,
            data={"command": ["clinit", *sys.argv[1:]]},
        )
        added, folder = add_images(
            model,
            request,
            listener=listener(),
            extra=partial(_extra, images, checks, onnx=onnx),
        )
    _show(added, folder, out)
    for each in checks:
        say(each.describe())


def _extra(
    images: Path, checks: list[OnnxCheck], network: nn.Module, facts: ModelFacts, *, onnx: bool
) -> ExtraFiles:
    """Return the writer of the ONNX form, which is compared on some of the images."""
    from clinit.headtrain.model.folder import ONNX_FILE
    from clinit.headtrain.model.of_run import MOST
    from clinit.headtrain.model.onnx import write_onnx
    from clinit.headtrain.model.predict import find_images

    if not onnx:
        return {}
    found = find_images([images])
    some = found[:: max(1, -(-len(found) // MOST))]
    return {ONNX_FILE: lambda path: checks.append(write_onnx(network, facts, path, some))}


def _show(added: Addition, folder: Path, path: Path) -> None:
    from rich import box
    from rich.table import Table

    facts, change = added.classes.facts, added.classes.facts.history[-1]
    arrived = {"replaced": added.replaced, "added": len(change.classes) - added.replaced}
    done = [f"{number_of(count, 'class')} {what}" for what, count in arrived.items() if count]
    say(f"{', '.join(done)}: {facts.backbone} knows {number_of(facts.num_classes, 'class')} now")
    say(
        f"Images: {sum(change.images.values()):,} to learn from, {added.new.total:,} kept aside;"
        f" their features are at {folder}"
    )
    say(f"Old images: {added.old_kind}")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("top-1 on held-out images of")
    table.add_column("images", justify="right")
    table.add_column("before", justify="right")
    table.add_column("now", justify="right")
    table.add_row(
        "old classes",
        f"{added.old.total:,}",
        accuracy_in_words(added.old_before),
        accuracy_in_words(added.old),
    )
    table.add_row("added classes", f"{added.new.total:,}", "-", accuracy_in_words(added.new))
    terminal.print(table)
    if added.old.total:
        say(f"Held-out images of old classes: {added.old_tested}")
    _note_few(added.new)
    if facts.temperature is not None:
        say(f"Probabilities: {facts.temperature.describe()}")
    if not added.new.total:
        why = (
            "no added class has the five images from which on some are kept aside"
            if change.settings["hold_out"]
            else "--hold-out 0 keeps no new image aside"
        )
        note(f"{why}: accuracy on the added classes was not measured; a folder val measures it")
    if not added.old.total:
        note(
            "no held-out image of an old class is known: give some with --old CACHE, or let the"
            " model remember them with `clinit remember`"
        )
    if (memory := added.classes.memory) is not None and path.suffix != ".safetensors":
        say(remembered(memory))
    kind = "file" if path.suffix == ".safetensors" else "folder"
    say(f"Model {kind} at {path}; try it:")
    say(f"clinit predict {shlex.quote(str(path))} IMAGE…")


def _note_few(new: Top1) -> None:
    if 0 < new.total < FEW:
        several = new.total > 1
        note(
            f"{new.total} image{'s' if several else ''} of added classes"
            f" {'are' if several else 'is'} too few to tell how well they are recognised: a folder"
            " val with more measures it"
        )


def accuracy_in_words(part: Top1) -> str:
    """Return the accuracy in percent; of few images in counts, which promise no precision."""
    if part.percent is None:
        return "-"
    if part.total < FEW:
        return f"{part.correct} of {part.total}"
    return f"{part.percent:.2f} %"


@keeps("The features computed so far are kept: the same command goes on after them.")
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

    IMAGES is a folder with a folder of images for each class, named as the model
    names it. `clinit add` then needs none of these images: it draws features from
    the statistics, and measures old accuracy on the features kept aside. With
    --backbone a network of timm becomes a model that remembers.

    clinit remember scenes/ photographs/ --out scenes-with-memory/
    """
    check_paths(paths, network)
    if out.suffix == ".safetensors":
        raise typer.BadParameter(f"--out is a folder here: a file remembers nothing, got {out}")
    check_out(out, overwrite=overwrite)
    from clinit.headtrain.model.edit import write_classes
    from clinit.headtrain.model.images import check_own, image_features, where_from
    from clinit.headtrain.model.images import remember as remember_classes

    with claimed_file(out):
        model, images = open_source(paths, network)
        source, folder = image_features(
            model,
            images,
            out=out,
            features=network.features,
            config=network.extraction(),
            check=partial(check_own, model.facts),
            listener=listener(),
        )
        data = {"command": ["clinit", *sys.argv[1:]], **where_from(model, images, source)}
        found = remember_classes(model, source, config, data=data)
        with doing("Putting backbone and head together …"):
            write_classes(model, found.classes, out, overwrite=overwrite)
    _show_remembered(found, folder, out)


def _show_remembered(found: Remembered, folder: Path, out: Path) -> None:
    memory, change = found.classes.memory, found.classes.facts.history[-1]
    assert memory is not None
    say(
        f"{found.num_remembered:,} of {found.classes.facts.num_classes:,} classes remembered, of"
        f" {number_of(sum(change.images.values()), 'image')}; their features are at {folder}"
    )
    if found.kept_from_before:
        say(f"{found.kept_from_before:,} others as they were remembered before")
    if found.accuracy.percent is not None:
        say(
            f"Top-1 {found.accuracy.percent:.2f} % on"
            f" {number_of(found.accuracy.total, 'image')} kept aside"
        )
    say(
        f"Means of {memory.dim} numbers, one covariance,"
        f" {number_of(len(memory.held_out.labels), 'feature')} kept aside,"
        f" {len(memory.kept.labels):,} for rehearsal: {memory.num_bytes / 1e6:,.1f} MB"
    )
    say(f"Model folder at {out}")
