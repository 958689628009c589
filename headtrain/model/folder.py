"""Model folders: a model file with what timm and people need beside it.

    model.safetensors    the model file of `clinit export`; clinit needs nothing else
    config.json          what `timm.create_model("local-dir:FOLDER", pretrained=True)` reads
    README.md            the model card: `card.md` next to this file, filled in
    model.onnx           the same network for other runtimes, where it was asked for
    memory.safetensors   what later classes need of the earlier ones, where it was asked for

The folder is written under a temporary name and renamed: it is whole, or not there. Other files
in it are left alone.

`config.json` has the form of timm's models on the Hugging Face Hub (`timm.models.save_for_hf`).
clinit believes the description in the model file alone, and refuses a folder where the two
disagree.
"""

from __future__ import annotations

import json
import math
import os
import shlex
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import timm
import torch
from torch import nn

from clinit.errors import ModelError, StorageError
from clinit.extract.cache.head import foreign_to_head
from clinit.extract.dataset.known import title
from clinit.extract.network.backbone import Backbone, BackboneConfig, load_backbone
from clinit.extract.network.transform import Transform
from clinit.files import paths as occupied
from clinit.files.commit import commit_folder
from clinit.files.text import TextFileError, read_text
from clinit.headtrain.model.memory import MEMORY_FILE, Memory, read_memory
from clinit.headtrain.model.model_file import Change, ModelFacts, read_facts, write_model
from clinit.machine import choose_device
from clinit.words import contrast_digests, escaped, lines_of_table, visible

MODEL_FILE, CONFIG_FILE, CARD_FILE = "model.safetensors", "config.json", "README.md"
ONNX_FILE = "model.onnx"
_FILES = frozenset({MODEL_FILE, CONFIG_FILE, CARD_FILE, ONNX_FILE, MEMORY_FILE})
_TOLERANCE = 1e-5
"""Between the logits of the two networks, relative to the largest."""


Stored = tuple[ModelFacts, Backbone | None, Memory | None]


def read_model(path: Path, *, device: str | None = None, remembers: bool = True) -> Stored:
    """Read a model folder or a model file.

    Args:
        path: The folder or the file.
        device: Where the network goes; None to leave it unread.
        remembers: Whether its memory is read.

    Returns:
        How it describes itself; the network on its device, its classifier included, None where it
        was not asked for; what it remembers, None where that is nothing or was not asked for.

    Raises:
        ModelError: If there is no model at `path`, it has changed since it was written, or its
            folder contradicts its file.
        BackboneError: If this version of timm cannot build the network.
        DeviceError: If the device is absent.
    """
    file, facts = _read_facts(path)
    backbone = None if device is None else _read_network(file, facts, device)
    return facts, backbone, _read_memory(path, facts) if remembers else None


def _read_facts(path: Path) -> tuple[Path, ModelFacts]:
    """Return the model file at `path`, or in the folder there, and how it describes itself."""
    if not path.is_dir():
        return path, read_facts(path)
    file, config = path / MODEL_FILE, path / CONFIG_FILE
    if not file.exists():
        run = path if (path / "run.json").is_file() else "RUN"
        raise ModelError(
            f"{path} is a folder without a {MODEL_FILE}: it is not a model",
            remedy=f"Give one that `clinit export {run} --out FOLDER` has written.",
        )
    remedy = f"Give the file, if it is one of `clinit export`: {file}; or write the folder again."
    try:
        found = json.loads(read_text(config))
    except (TextFileError, ValueError, RecursionError) as error:
        raise ModelError(f"cannot read {config}: {error}", remedy=remedy) from error
    facts = read_facts(file)
    expected = json.loads(json.dumps(_content(facts))) if facts.timm else found
    if found != expected:
        both = {**expected, **found} if isinstance(found, dict) else ()
        differing = [name for name in both if expected.get(name) != found.get(name)]
        raise ModelError(
            f"{config} and the model file beside it disagree about"
            f" {', '.join(differing) or 'everything'}",
            remedy=remedy,
        )
    return file, facts


def _read_memory(path: Path, facts: ModelFacts) -> Memory | None:
    """Return what the model at `path` remembers; None for a file, or a folder without a memory."""
    file = path / MEMORY_FILE
    if not os.path.lexists(file):  # a link that leads nowhere is a memory that is lost
        return None
    memory = read_memory(file)
    if memory.class_names != facts.class_names:
        raise ModelError(
            f"{file} remembers {len(memory.class_names):,} classes that are not the"
            f" {facts.num_classes:,} of the model",
            remedy="Remember the classes anew: `clinit remember MODEL IMAGES --out NEW`.",
        )
    return memory


def _read_network(file: Path, facts: ModelFacts, device: str) -> Backbone:
    config = BackboneConfig(
        name=facts.backbone,
        weights=file,
        model_args={**facts.model_args, "num_classes": facts.num_classes},
        device=str(choose_device(device)),
        autocast=facts.autocast,
    )
    backbone = load_backbone(config)
    if backbone.weights_sha256 != facts.weights:
        found, exported = contrast_digests(backbone.weights_sha256, facts.weights)
        raise ModelError(
            f"the weights in {file} are not those that were exported: SHA-256 {found} instead of"
            f" {exported}",
            remedy="Export the run again; this file is damaged.",
        )
    return backbone


def write_model_folder(
    folder: Path,
    network: nn.Module,
    facts: ModelFacts,
    *,
    more: Callable[[Path], object] = lambda draft: None,
    overwrite: bool = False,
) -> None:
    """Write the model to `folder`.

    Args:
        folder: The folder; it must not exist, unless it is overwritten.
        network: On any device.
        facts: What the model file says of itself.
        more: Writes further files into the folder that it is given; its error leaves no folder.
        overwrite: Whether a model that is there is replaced.

    Raises:
        ModelError: If there is something at `folder`, or timm does not build the same network
            from it.
        ClinitError: If it cannot be written; nothing is left behind then.
    """
    check_free(folder, overwrite=overwrite)

    def write(draft: Path) -> None:
        write_model(network, facts, draft / MODEL_FILE)
        config = json.dumps(_content(facts), indent=2, allow_nan=False) + "\n"
        (draft / CONFIG_FILE).write_text(config, encoding="utf-8")
        (draft / CARD_FILE).write_text(card(facts), encoding="utf-8")
        if why := _difference_in_timm(draft, network, facts):
            raise ModelError(
                f"timm does not build the same {facts.backbone} from a folder:"
                f" {' '.join(why.split())}",
                remedy="Export to a file instead of a folder: `--out FILE.safetensors`.",
            )
        more(draft)

    commit_folder(folder, write, overwrite=overwrite)


def check_free(out: Path, *, overwrite: bool = False) -> None:
    """Check that a model, or a head alone, can be written to `out`.

    Args:
        out: A folder or a file.
        overwrite: Whether a model or a head that is there may be replaced.

    Raises:
        ModelError: If there is something that may not be replaced.
    """
    occupied.check_free(out, "model", _foreign, ModelError, overwrite=overwrite)


def _foreign(path: Path) -> str | None:
    """Return why what is there is no model, or what lies in it beside one; None for a model."""
    if path.is_dir():
        if others := sorted({each.name for each in path.iterdir()} - _FILES):
            return f"it holds {', '.join(others[:3])}, which is not of a model folder"
    elif foreign_to_head(path) is None:
        return None  # a head alone is exported to the same place
    try:
        read_facts(path / MODEL_FILE if path.is_dir() else path)
    except (ModelError, StorageError):
        return "it is no model"
    return None


@torch.inference_mode()
def _difference_in_timm(folder: Path, network: nn.Module, facts: ModelFacts) -> str | None:
    """Return how the network that timm builds from a folder differs on seeded noise, if it does."""
    try:
        loaded = timm.create_model(f"local-dir:{folder}", pretrained=True)
    except Exception as error:  # whatever an architecture makes of its arguments
        return f"{type(error).__name__}: {error}"
    device = next(network.parameters()).device
    noise = torch.randn(2, 3, *facts.transform.crop, generator=torch.Generator().manual_seed(0))
    images = noise.to(device, memory_format=torch.channels_last)
    expected = network(images)
    found = loaded.eval().to(device).to(memory_format=torch.channels_last)(images)
    if found.shape != expected.shape:
        return f"it has {found.shape[-1]:,} rows, not {expected.shape[-1]:,}"
    difference, largest = (found - expected).abs().max(), expected.abs().max()
    if difference <= _TOLERANCE * largest:  # not true of NaN
        return None
    return f"its logits differ by {difference:g} of {largest:g}"


def data_config(transform: Transform) -> dict[str, Any]:
    """Return the words of timm from which `timm.data.create_transform` makes `transform`.

    Raises:
        ModelError: If it has none for it.
    """
    return {
        "input_size": (3, *transform.crop),
        "interpolation": transform.interpolation,
        "crop_pct": _crop_fraction(transform),
        "crop_mode": "center" if isinstance(transform.resize, int) else "squash",
        "mean": transform.mean,
        "std": transform.std,
    }


def _content(facts: ModelFacts) -> dict[str, Any]:
    """Return the configuration, as far as the model file knows it."""
    assert facts.timm is not None
    return {
        **facts.timm,
        "label_descriptions": {name: title(name) for name in facts.class_names},
        "architecture": facts.backbone.partition(".")[0],
        "num_classes": facts.num_classes,
        "label_names": facts.class_names,
        "model_args": dict(facts.model_args),
        "pretrained_cfg": {
            **facts.timm["pretrained_cfg"],
            **data_config(facts.transform),
            "num_classes": facts.num_classes,
        },
    }


def _crop_fraction(transform: Transform) -> float:
    """Return the crop fraction p of fewest digits for which floor(crop / p) is the resized side.

    Usually that is the one that the side was computed from.
    """
    height, width = transform.crop
    resize = (transform.resize,) * 2 if isinstance(transform.resize, int) else transform.resize
    pairs = tuple(zip(transform.crop, resize, strict=True))
    for digits in range(7 if resize is transform.resize or height == width else 0):
        nearest = round(height / resize[0], digits)
        for fraction in (nearest, round(nearest - 10**-digits, digits)):
            if fraction > 0 and all(math.floor(c / fraction) == r for c, r in pairs):
                return fraction
    raise ModelError(
        f"timm has no words for what the images go through: {transform.describe()}",
        remedy="Export to a file instead of a folder: `--out FILE.safetensors`.",
    )


UNFOLDED = 60
"""Class names that stand open in the card; longer lists are folded."""


def card(facts: ModelFacts) -> str:
    """Return the model card: its fields for the Hub as YAML, then Markdown.

    Names of classes and paths are text from data: they are escaped wherever they stand.
    """
    arrived = sum(task > 0 for task in facts.tasks)
    old = f"{facts.num_classes - arrived:,} classes of the pretrained head"
    came = f"{old} and {arrived:,} that arrived later"
    probabilities = []
    if (caution := facts.caution) is not None:
        probabilities.append(f"{caution[0].upper()}{escaped(caution[1:])}.")
    if facts.temperature is not None:
        probabilities.append(
            f"Probabilities: {facts.temperature.describe()}. The rows of the classifier are divided"
            " by it already; the class that scores highest is the same without it."
        )
    template = files(__package__).joinpath("card.md").read_text(encoding="utf-8")
    return Template(template).substitute(
        backbone=escaped(facts.backbone),
        classes=f"{facts.num_classes:,}",
        came=came if arrived < facts.num_classes else f"{arrived:,} classes",
        transform=escaped(facts.transform.describe()),
        probabilities="".join(f"\n{each}\n" for each in probabilities),
        lists="".join(f"\n{_names(facts, task)}\n" for task in sorted(set(facts.tasks))),
        accuracy=_accuracy(facts),
        history=_history(facts),
    )


def _done(change: Change) -> str:
    return "trained" if change.action == "run" else f"{change.action.removesuffix('e')}ed"


def _names(facts: ModelFacts, task: int) -> str:
    names = [n for n, t in zip(facts.class_names, facts.tasks, strict=True) if t == task]
    origin = "of the pretrained head" if task == 0 else f"arrived in task {task}"
    title, text = f"{len(names):,} {origin}", ", ".join(map(escaped, names))
    if task == 0 or len(names) > UNFOLDED:
        return _folded(title, text)
    return f"* {title}: {text}"


def _folded(title: str, text: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{text}\n\n</details>"


def _accuracy(facts: ModelFacts) -> str:
    for change in reversed(facts.history):
        rows = [
            [escaped(group), f"{part.correct:,}", f"{part.total:,}", f"{part.percent:.2f} %"]
            for group, part in change.accuracy.items()
            if part.total
        ]
        if rows:
            when = f"{_done(change)} ({escaped(change.date)})"
            table = lines_of_table(["classes", "right", "test images", "top-1"], rows, numbers=3)
            return "\n".join([f"Top-1 when the classes were last {when}:", "", *table])
    return "Not known: no test image was evaluated."


def _history(facts: ModelFacts) -> str:
    if not facts.history:
        return "Not known: the model was exported by a version of clinit that kept none."
    heads = ["date", "what", "task", "classes", "training images", "clinit"]
    rows = [
        [
            escaped(each.date),
            _done(each),
            "-" if each.task is None else str(each.task),
            f"{len(each.classes):,}",
            f"{sum(each.images.values()):,}" if each.images else "-",
            escaped(each.clinit),
        ]
        for each in facts.history
    ]
    details = [
        _folded(f"{number}: what was {_done(each)}, and how", _details(each))
        for number, each in enumerate(facts.history, start=1)
    ]
    return "\n\n".join(["\n".join(lines_of_table(heads, rows, numbers=4)), *details])


def _details(change: Change) -> str:
    """Return what a change was made from and how it is repeated."""
    data = dict(change.data)
    words, command = data.pop("command", None), ""
    if isinstance(words, list | tuple) and words:
        command = f"The command:\n\n```\n{visible(shlex.join(map(str, words)))}\n```\n\n"
    # Every line of JSON begins with a brace, a bracket or a quotation mark: none ends the block.
    content = {
        "classes": {name: change.images.get(name) for name in change.classes},
        "data": data,
        "settings": dict(change.settings),
    }
    text = visible(json.dumps(content, indent=2, ensure_ascii=False), lines=True)
    heading = "Classes with their training images, data and settings:"
    return f"{command}{heading}\n\n```json\n{text}\n```"
