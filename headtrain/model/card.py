"""The model card: the README of a model folder."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from string import Template

from clinit.extract.dataset.names import in_words
from clinit.headtrain.model.facts import ModelFacts, accuracy_in_words
from clinit.headtrain.model.model import Model
from clinit.words import escaped, number_of


def card(model: Model) -> str:
    """Return the model card: its fields for the Hub as YAML, then Markdown.

    Class names and paths are escaped, because they come from data.
    """
    facts = model.facts
    old = [name for name, task in zip(facts.class_names, facts.tasks, strict=True) if not task]
    later = [name for name in facts.class_names if name not in {*old}]
    came = f"{len(later):,} classes"
    if old:
        came = f"{len(old):,} classes of the pretrained head and {len(later):,} that arrived later"
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
        came=came,
        transform=escaped(transform),
        probabilities="".join(f"\n{each}\n" for each in probabilities),
        lists=_names("of the pretrained head", old) + _names("that arrived later", later),
        accuracy=_accuracy(facts),
    )


def _names(title: str, names: Sequence[str]) -> str:
    text = ", ".join(escaped(in_words(name)) for name in names)
    title = f"{number_of(len(names), 'class')} {title}"
    return f"\n<details><summary>{title}</summary>\n\n{text}\n\n</details>\n" if names else ""


def _accuracy(facts: ModelFacts) -> str:
    measured = [each for each in facts.history if each.accuracy]
    if not measured:
        return "Not known: no test image was evaluated."
    date, found = measured[-1].date, measured[-1].accuracy.items()
    parts = [f"{escaped(name)} {accuracy_in_words(each)}" for name, each in found]
    images = max(each.total for _, each in found)
    return f"Top-1 on {number_of(images, 'test image')}, {escaped(date)}: {', '.join(parts)}."
