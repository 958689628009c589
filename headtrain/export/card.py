"""The model card: a README.md in the form that the Hugging Face Hub shows.

Names of classes and paths are text from data: they are escaped wherever they stand.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from huggingface_hub import ModelCardData

from clinit.files.commit import commit_file
from clinit.headtrain.export.change import Change
from clinit.headtrain.export.model_file import ModelFacts
from clinit.headtrain.export.probabilities import caution
from clinit.words import escaped, lines_of_table, visible

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
