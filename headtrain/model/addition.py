"""The result of adding classes: accuracies before and now, in numbers and in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic

from clinit.extract.cache.head import Top1
from clinit.headtrain.heads.groups import repeats_in_words
from clinit.headtrain.model.audit import Audit
from clinit.headtrain.model.classifier import AnyPath, M
from clinit.headtrain.model.facts import FEW, Change, accuracy_in_words
from clinit.headtrain.model.measure import Price
from clinit.headtrain.model.writing import Written, write_model
from clinit.words import number_of

TableOf = tuple[Sequence[str], Sequence[Sequence[str]]]
"""Heads of columns, and lines of cells."""


@dataclass(frozen=True, slots=True, eq=False)
class Addition(Generic[M]):
    """Result of adding classes; accuracies are top-1, among all classes of the model."""

    model: M
    """The new model; its history ends with this addition."""
    replaced: int
    """Number of classes of the model that were replaced."""
    old_before: Top1
    """Accuracy of the original model on held-out images of old classes."""
    old: Top1
    """Accuracy of the new model on the same images."""
    new: Top1
    """Accuracy of the new model on images of the added classes, held out or left out."""
    left_out: bool
    """Whether `new` is leave-one-out: each image is classified by rows computed without it."""
    audit: Audit
    """What seems wrong with the images."""
    prices: tuple[Price, ...] = ()
    """Accuracies for several values of `--max-old-loss`, ascending, the requested value among them.
    Empty unless the rows are discriminants and images of old classes are held out."""
    taken: Top1 | None = None
    """Without held-out images of old classes: how many of the features that stand in for them
    (`total`) new classes take (`correct`). An estimate; None for rows that are not discriminants.
    """
    place: str = ""
    """Where the features of the images are."""

    @property
    def change(self) -> Change:
        """The addition in the history of the model."""
        return self.model.facts.history[-1]

    def save(self, out: AnyPath, *, onnx: bool = False, overwrite: bool = False) -> Written:
        """Write the new model; see `Model.save`."""
        return write_model(self.model, Path(out), onnx=onnx, overwrite=overwrite)

    def lines(self) -> list[str]:
        """Return what was done, in sentences."""
        facts, change = self.model.facts, self.change
        if not change.classes:
            classes = number_of(facts.num_classes, "class")
            return [f"No class was added: {facts.name} has {classes}"]
        again = "computed anew" if change.action in ("more", "merge") else "replaced"
        arrived = {again: self.replaced, "added": len(change.classes) - self.replaced}
        done = [f"{number_of(count, 'class')} {what}" for what, count in arrived.items() if count]
        if more := change.data.get("more"):
            done.insert(0, f"{sum(more.values()):,} more images of {number_of(len(more), 'class')}")
        aside = 0 if self.left_out else self.new.total
        where = f"; their features are at {self.place}" if self.place else ""
        noun = "Rows" if "features" in change.data else "Images"
        lines = [
            f"{', '.join(done)}: {facts.name} now has {number_of(facts.num_classes, 'class')}",
            f"{noun}: {sum(change.images.values()):,} to learn from, {aside:,} kept aside{where}",
        ]
        if change.data["repeats"]:
            lines.append(f"Repeats: {repeats_in_words(change.data['repeats'])}")
        lines.append(f"In place of old images: {change.data['old_rows']}")
        if facts.temperature is not None:
            lines.append(f"Probabilities: {facts.temperature.describe()}")
        return lines

    def tables(self) -> list[TableOf]:
        """Return the accuracies before and now, and by the price of old classes."""
        change, tables = self.change, list[TableOf]()
        if not change.classes:
            return tables
        old_top1 = [accuracy_in_words(each) for each in (self.old_before, self.old)]
        if not self.old.total:
            old_top1 = ["-", "not measured"]
        of_old = ["old classes, held out", f"{self.old.total:,}", *old_top1]
        how = "image left out" if self.left_out else "held out"
        now = accuracy_in_words(self.new)
        of_new = [f"added classes, {how}", f"{self.new.total:,}", "-", now]
        lines = [of_new] if self._is_first else [of_old, of_new]
        tables.append((["top-1 on images of", "images", "before", "now"], lines))
        if len({each[1:] for each in self.prices}) > 1 and self.new.total:
            lines = []
            for each in self.prices:
                used = " (used)" if each.points == change.settings["max_old_loss"] else ""
                both = map(accuracy_in_words, (each.old, each.new))
                lines.append([f"--max-old-loss {each.points:g}{used}", *both])
            heading = "points that old classes may lose"
            tables.append(([heading, "old classes", "added classes"], lines))
        return tables

    def notes(self) -> list[str]:
        """Return what the numbers do not show."""
        notes = list[str]()
        if not self.change.classes:
            return notes
        if not self.new.total:
            notes.append(
                "no image of added classes was tested: it takes a second image of a class, which"
                " does not repeat the first, or a folder val"
            )
        elif self.new.total < FEW:
            notes.append(
                f"{number_of(self.new.total, 'image')} of added classes tested: too few for an"
                " accuracy; give more in a folder val"
            )
        if not self.old.total and not self._is_first:
            estimate = ""
            if self.taken is not None and self.taken.total:
                estimate = (
                    f"; of {self.taken.total:,} features that stand in for old images, new classes"
                    f" take an estimated {self.taken.correct:,}"
                )
            notes.append(
                f"accuracy on old classes was not measured{estimate}: give the model images of them"
                " (`clinit remember`), or --old CACHE"
            )
            if max(self.change.images.values()) == 1 and "weights" in self.change.data["old_rows"]:
                notes.append(
                    "nothing shows how images of a class vary, so that new classes may take most of"
                    " the old ones: give a second image of a class, or images of old classes"
                )
        return notes

    @property
    def _is_first(self) -> bool:
        return len(self.change.classes) == self.model.facts.num_classes
