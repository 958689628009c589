"""Model folders: a model file with what timm and people need beside it.

    model.safetensors    the model file of `clinit export`; clinit needs nothing else
    config.json          what `timm.create_model("local-dir:FOLDER", pretrained=True)` reads
    README.md            the model card
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
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import timm
import torch
from huggingface_hub import ModelCardData
from torch import nn

from clinit.errors import ClinitError, ModelError, StorageError
from clinit.extract.cache.head import foreign_to_head
from clinit.extract.network.transform import Transform
from clinit.extract.wordnet import title
from clinit.files import paths as occupied
from clinit.files.commit import commit_file, commit_folder
from clinit.files.text import TextFileError, read_text
from clinit.headtrain.model.model_file import Change, ModelFacts, caution, read_facts, write_model
from clinit.words import escaped, lines_of_table, visible

MODEL_FILE, CONFIG_FILE, CARD_FILE = "model.safetensors", "config.json", "README.md"
ONNX_FILE, MEMORY_FILE = "model.onnx", "memory.safetensors"
_FILES = frozenset({MODEL_FILE, CONFIG_FILE, CARD_FILE, ONNX_FILE, MEMORY_FILE})
TRANSFORM_LINE = "timm.data.create_transform(**timm.data.resolve_model_data_config(model))"
"""The Python expression that gives what the images of a loaded `model` go through."""
_TOLERANCE = 1e-5
"""Between the logits of the two networks, relative to the largest."""
T = TypeVar("T")


def read_whole(path: Path, read: Callable[[], T]) -> T:
    """Read a model of several files; once more if it was replaced meanwhile.

    Args:
        path: The folder or the file.
        read: Reads it; what it returns is of one model, or it raises a ClinitError.

    Raises:
        ModelError: If it was replaced during the second reading too.
        ClinitError: Of `read`, if the model has stayed the same.
    """
    for _ in range(2):
        before = _identity(path)
        try:
            return read()
        except ClinitError:
            if _identity(path) == before:
                raise
    raise ModelError(
        f"{path} was replaced again and again while it was read",
        remedy="Wait until the command that writes it has ended, then run this one again.",
    )


def _identity(path: Path) -> tuple[int, int] | None:
    """Return what changes when a folder or a file is replaced; None where there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def model_file_of(path: Path) -> Path:
    """Return the model file in the folder `path`; any other path as it is.

    Raises:
        ModelError: If it is a folder that lacks a model file or its configuration, or the two
            disagree.
    """
    if not path.is_dir():
        return path
    file, config = path / MODEL_FILE, path / CONFIG_FILE
    if not file.exists():
        is_run = (path / "run.json").is_file()
        raise ModelError(
            f"{path} is a folder without a {MODEL_FILE}: it is not a model",
            remedy=f"`clinit export {path} --out FOLDER` makes one of this run record."
            if is_run
            else "Give a folder or file that `clinit export RUN --out FOLDER` has written.",
        )
    if not config.exists():
        raise ModelError(
            f"{path} holds a {MODEL_FILE}, but no {CONFIG_FILE} as a model folder does",
            remedy=f"Give the file if it is one of `clinit export`: {file}.",
        )
    check_config(config, read_facts(file))
    return file


def write_model_folder(
    folder: Path,
    network: nn.Module,
    facts: ModelFacts,
    *,
    extra: Mapping[str, Callable[[Path], object]] = MappingProxyType({}),
    overwrite: bool = False,
) -> None:
    """Write the model to `folder`.

    Args:
        folder: The folder; it must not exist, unless it is overwritten.
        network: On any device.
        facts: What the model file says of itself.
        extra: Writers of further files by their names in the folder; each is given the path to
            write to, and its error leaves no folder.
        overwrite: Whether a model that is there is replaced.

    Raises:
        ModelError: If there is something at `folder`, or timm does not build the same network
            from it.
        ClinitError: If it cannot be written; nothing is left behind then.
    """
    check_free(folder, overwrite=overwrite)

    def write(draft: Path) -> None:
        write_model(network, facts, draft / MODEL_FILE)
        write_config(facts, draft / CONFIG_FILE)
        write_card(facts, draft / CARD_FILE)
        _check_timm_loads(draft, network, facts)
        for name, write_file in extra.items():
            write_file(draft / name)

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


def loading_line(folder: Path) -> str:
    """Return the Python expression that loads the model folder with timm alone."""
    return f"timm.create_model({f'local-dir:{folder}'!r}, pretrained=True)"


@torch.inference_mode()
def _check_timm_loads(folder: Path, network: nn.Module, facts: ModelFacts) -> None:
    try:
        loaded = timm.create_model(f"local-dir:{folder}", pretrained=True)
    except Exception as error:  # whatever an architecture makes of its arguments
        raise _refusal(facts, f"{type(error).__name__}: {error}") from error
    device = next(network.parameters()).device
    noise = torch.randn(2, 3, *facts.transform.crop, generator=torch.Generator().manual_seed(0))
    images = noise.to(device, memory_format=torch.channels_last)
    loaded.eval().to(device).to(memory_format=torch.channels_last)
    expected, found = network(images), loaded(images)
    if found.shape != expected.shape:
        raise _refusal(facts, f"it has {found.shape[-1]:,} rows, not {expected.shape[-1]:,}")
    difference, largest = (found - expected).abs().max(), expected.abs().max()
    if not difference <= _TOLERANCE * largest:  # not true of NaN either
        raise _refusal(facts, f"its logits differ by {difference:g} of {largest:g}")


def _refusal(facts: ModelFacts, why: str) -> ModelError:
    return ModelError(
        f"timm does not build the same {facts.backbone} from a folder: {' '.join(why.split())}",
        remedy="Export to a file instead of a folder: `--out FILE.safetensors`.",
    )


def write_config(facts: ModelFacts, path: Path) -> None:
    """Write the configuration of a model, as timm reads it, to `path`.

    Raises:
        ModelError: If timm has no words for the transform.
    """
    text = json.dumps(_content(facts), indent=2, allow_nan=False) + "\n"
    commit_file(path, lambda draft: draft.write_text(text, encoding="utf-8"))


def check_config(path: Path, facts: ModelFacts) -> None:
    """Check that the configuration at `path` says the same as the facts of the model file.

    Raises:
        ModelError: If it cannot be read, or disagrees about the network, the classes or the
            preparation of images.
    """
    remedy = "One of the two is damaged or of another model: write the folder again."
    try:
        found = json.loads(read_text(path))
    except (TextFileError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} is damaged: {error}", remedy=remedy) from error
    # Earlier files do not hold what timm alone reads.
    expected, whole = json.loads(json.dumps(_content(facts))), facts.timm is not None
    if differing := _difference(expected, found, whole=whole):
        raise ModelError(
            f"{path} and the model file beside it disagree about {differing}", remedy=remedy
        )


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
    more: Mapping[str, Any] = {"pretrained_cfg": {}}
    if facts.timm is not None:
        described = {name: title(name) for name in facts.class_names}
        more = {**facts.timm, "label_descriptions": described}
    return {
        **more,
        "architecture": facts.backbone.partition(".")[0],
        "num_classes": facts.num_classes,
        "label_names": facts.class_names,
        "model_args": dict(facts.model_args),
        "pretrained_cfg": {
            **more["pretrained_cfg"],
            **data_config(facts.transform),
            "num_classes": facts.num_classes,
        },
    }


def _difference(expected: Mapping[str, Any], found: object, *, whole: bool) -> str | None:
    """Return the name of the first field of `expected` that `found` lacks or has otherwise.

    With `whole`, that may also be a field which `found` alone has.
    """
    if not isinstance(found, dict):
        return "everything: it holds no fields"
    for name, value in expected.items():
        if isinstance(value, dict) and name != "model_args":
            if (inner := _difference(value, found.get(name), whole=whole)) is not None:
                return f"{name}.{inner}" if " " not in inner else name
        elif found.get(name) != value:
            return name
    return next((name for name in found if name not in expected), None) if whole else None


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
"""Class names that stand open; longer lists are folded."""
_OWNER = (
    "# license: to be stated by the owner of this model, such as `license: apache-2.0`. What may"
    " be stated depends on the licences of the backbone's weights and of the images.\n"
    "# datasets, base_model: identifiers on the Hub, where the data and the backbone are there."
)
_USE = """\
import timm
import torch
from PIL import Image

model = timm.create_model("local-dir:FOLDER", pretrained=True).eval()
transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
with torch.inference_mode():
    scores = model(transform(Image.open("photo.jpg").convert("RGB"))[None]).softmax(1)[0]
for score, row in zip(*scores.topk(min(5, len(scores)))):
    print(model.pretrained_cfg["label_names"][row], float(score))
"""
_DONE = {
    "run": "trained",
    "add": "added",
    "replace": "replaced",
    "remove": "removed",
    "rename": "renamed",
    "remember": "remembered",
}


def write_card(facts: ModelFacts, path: Path) -> None:
    """Write the model card of a model folder to `path`."""
    text = card(facts)
    commit_file(path, lambda draft: draft.write_text(text, encoding="utf-8"))


def card(facts: ModelFacts) -> str:
    """Return the model card: its fields for the Hub as YAML, then Markdown."""
    data = ModelCardData(
        library_name="timm",
        pipeline_tag="image-classification",
        tags=["image-classification", "timm", "clinit", "continual-learning"],
        metrics=["accuracy"],
    )
    sections = (_title, _licence, _use, _classes, _accuracy, _history)
    body = "\n".join(line for section in sections for line in (*section(facts), ""))
    return f"---\n{data.to_yaml()}\n{_OWNER}\n---\n\n{body}"


def _title(facts: ModelFacts) -> Iterator[str]:
    arrived = sum(task > 0 for task in facts.tasks)
    name = escaped(facts.backbone)
    yield f"# {name} with {facts.num_classes:,} classes"
    yield ""
    yield (
        f"A classifier of images: {facts.num_classes - arrived:,} classes of the pretrained head"
        f" and {arrived:,} that arrived later. The network is {name} of timm; its head was made by"
        " clinit from penultimate features."
    )


def _licence(facts: ModelFacts) -> Iterator[str]:
    yield "## Licence"
    yield ""
    yield (
        "Not stated yet. The owner of this model states it here and in the fields at the top of"
        " this file; the licences of the backbone's weights and of the images decide what may be"
        " stated."
    )


def _use(facts: ModelFacts) -> Iterator[str]:
    yield "## Use"
    yield ""
    yield "With timm alone; `hf-hub:USER/NAME` instead of `local-dir:FOLDER` where it is published:"
    yield ""
    yield f"```python\n{_USE}```"
    yield ""
    yield "With clinit, which decodes and resizes as at the extraction of the features:"
    yield ""
    yield "```\nclinit predict FOLDER photo.jpg\n```"
    yield ""
    yield (
        f"Images go through: {escaped(facts.transform.describe())}. timm resizes images of Pillow,"
        " clinit uint8 tensors: a value may differ by a grey level or two. `label_names` in"
        " `config.json` names the rows."
    )
    if (warning := caution(facts)) is not None:
        yield ""
        yield f"{warning[0].upper()}{escaped(warning[1:])}."
    if facts.temperature is not None:
        yield ""
        yield (
            f"Probabilities: {facts.temperature.describe()}. The rows of the classifier are divided"
            " by it already; the class that scores highest is the same without it."
        )


def _classes(facts: ModelFacts) -> Iterator[str]:
    yield "## Classes"
    for task in sorted(set(facts.tasks)):
        names = [n for n, t in zip(facts.class_names, facts.tasks, strict=True) if t == task]
        origin = "of the pretrained head" if task == 0 else f"arrived in task {task}"
        yield ""
        yield from _list(f"{len(names):,} {origin}", names, folded=task == 0)


def _list(title: str, names: Sequence[str], *, folded: bool = False) -> Iterator[str]:
    text = ", ".join(map(escaped, names))
    if folded or len(names) > UNFOLDED:
        yield from _folded(title, text)
    else:
        yield f"* {title}: {text}"


def _folded(title: str, text: str) -> Iterator[str]:
    yield f"<details><summary>{title}</summary>"
    yield ""
    yield text
    yield ""
    yield "</details>"


def _accuracy(facts: ModelFacts) -> Iterator[str]:
    yield "## Accuracy"
    yield ""
    measured = next((each for each in reversed(facts.history) if each.accuracy), None)
    rows = [] if measured is None else list(_accuracy_rows(measured))
    if measured is None or not rows:
        yield "Not known: no test image was evaluated."
        return
    yield f"Top-1 when the classes were last {_DONE[measured.action]} ({escaped(measured.date)}):"
    yield ""
    heads = ["classes", "right", "test images", "top-1"]
    yield from lines_of_table(heads, rows, numbers=3)


def _accuracy_rows(change: Change) -> Iterator[list[str]]:
    for group, counts in change.accuracy.items():
        correct, total = counts.get("correct", 0), counts.get("total", 0)
        if total:
            yield [escaped(group), f"{correct:,}", f"{total:,}", f"{100 * correct / total:.2f} %"]


def _history(facts: ModelFacts) -> Iterator[str]:
    yield "## History"
    yield ""
    if not facts.history:
        yield "Not known: the model was exported by a version of clinit that kept none."
        return
    heads = ["date", "what", "task", "classes", "training images", "clinit"]
    yield from lines_of_table(heads, [_row(each) for each in facts.history], numbers=4)
    for number, change in enumerate(facts.history, start=1):
        yield ""
        yield from _folded(f"{number}: what was {_DONE[change.action]}, and how", _told(change))


def _row(change: Change) -> list[str]:
    return [
        escaped(change.date),
        _DONE[change.action],
        "-" if change.task is None else str(change.task),
        f"{len(change.classes):,}",
        f"{sum(change.images.values()):,}" if change.images else "-",
        escaped(change.clinit),
    ]


def _told(change: Change) -> str:
    """Return what a change was made from and how it is repeated."""
    data = dict(change.data)
    words = data.pop("command", None)
    parts = []
    if isinstance(words, list | tuple) and words:
        line = visible(shlex.join(map(str, words)))
        parts.append(f"The command:\n\n```\n{line}\n```\n")
    # Every line of JSON begins with a brace, a bracket or a quotation mark: none ends the block.
    told = {
        "classes": {name: change.images.get(name) for name in change.classes},
        "data": data,
        "settings": dict(change.settings),
    }
    text = visible(json.dumps(told, indent=2, ensure_ascii=False), lines=True)
    return "\n".join(
        [*parts, f"Classes with their training images, data and settings:\n\n```json\n{text}\n```"]
    )
