"""The model card: the README of a model folder."""

from __future__ import annotations

from importlib.resources import files
from string import Template

from clinit.extract.dataset.names import in_words
from clinit.headtrain.model.facts import Change, ModelFacts
from clinit.headtrain.model.model import Model
from clinit.words import escaped, lines_of_table

UNFOLDED = 60
"""Maximum number of class names in a list that is not folded."""


def card(model: Model) -> str:
    """Return the model card: its fields for the Hub as YAML, then Markdown.

    Class names and paths are escaped, because they come from data.
    """
    facts = model.facts
    arrived = sum(task > 0 for task in facts.tasks)
    old = f"{facts.num_classes - arrived:,} classes of the pretrained head"
    came = f"{old} and {arrived:,} that arrived later"
    probabilities = []
    if (caution := facts.caution) is not None:
        probabilities.append(f"{caution[0].upper()}{escaped(caution[1:])}.")
    if facts.assumed is not None:
        probabilities.append(f"Names of old classes: {escaped(facts.assumed)}.")
    if facts.temperature is not None:
        probabilities.append(
            f"Probabilities: {facts.temperature.describe()}. The rows of the classifier are already"
            " divided by this temperature, which does not change the highest-scoring class."
        )
    name = "card-features.md" if model.engine is None else "card.md"
    template = files(__package__).joinpath(name).read_text(encoding="utf-8")
    transform = "" if model.engine is None else model.engine.transform.describe()
    return Template(template).substitute(
        backbone=escaped(facts.name),
        dim=f"{model.head.dim:,}",
        activation="sigmoid()" if facts.activation == "sigmoid" else "softmax(1)",
        classes=f"{facts.num_classes:,}",
        came=came if arrived < facts.num_classes else f"{arrived:,} classes",
        transform=escaped(transform),
        probabilities="".join(f"\n{each}\n" for each in probabilities),
        lists="".join(f"\n{_names(facts, task)}\n" for task in sorted(set(facts.tasks))),
        accuracy=_accuracy(facts),
        history=_history(facts),
    )


def _done(change: Change) -> str:
    words = {"run": "trained", "more": "given more images"}
    return words.get(change.action, f"{change.action.removesuffix('e')}ed")


def _names(facts: ModelFacts, task: int) -> str:
    names = [n for n, t in zip(facts.class_names, facts.tasks, strict=True) if t == task]
    origin = "of the pretrained head" if task == 0 else f"arrived in task {task}"
    title, text = f"{len(names):,} {origin}", ", ".join(escaped(in_words(name)) for name in names)
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
        return "Not known: the model was exported by a version of clinit that kept no history."
    heads = ["date", "change", "task", "classes", "training images", "clinit"]
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
    return "\n".join(lines_of_table(heads, rows, numbers=4))
