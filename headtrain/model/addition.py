"""What an addition did: classes measured on held-out or left-out images, in numbers and in words.

The row of a new class is computed from all images of the class. For each image, the logits of rows
computed without it, and without images that repeat it, have a closed form
(`clinit.headtrain.heads.start.left_out`). No image then needs to be held out, and no image
is classified by rows computed from it. Only lambda, and the factor and shift that all new rows
share, have seen all images.

Leave-one-out logits are stored as corrections of the logits of the head: features get one more
number per new class, and the head one more column, which adds this number to the logit.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import rankdata

from clinit.extract.cache.features import FeatureSet
from clinit.extract.cache.head import Head, Top1, accuracy
from clinit.extract.dataset.names import in_words
from clinit.headtrain.heads.array import take, to_numpy
from clinit.headtrain.heads.groups import repeating
from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.losses import LOSSES
from clinit.headtrain.heads.repeats import groups_of
from clinit.headtrain.heads.start.calibration_set import CalibrationSet
from clinit.headtrain.heads.start.left_out import leave_one_out
from clinit.headtrain.heads.start.new_rows import NewClasses
from clinit.headtrain.heads.start.scale import LeftOut
from clinit.headtrain.heads.start.settings import Start
from clinit.headtrain.heads.statistics.solve import least_squares_head
from clinit.headtrain.heads.temperature import LEAST_ROWS, Activation, logits_of
from clinit.headtrain.model.audit import PLACES, Audit
from clinit.headtrain.model.engine import AnyPath
from clinit.headtrain.model.facts import FEW, Change, Known, accuracy_in_words
from clinit.headtrain.model.memory import MOST_LEFT_OUT
from clinit.headtrain.model.model import Model
from clinit.headtrain.model.predict import RULES, scores
from clinit.headtrain.model.storage import Written, write_model
from clinit.words import examples, listed, number_of, quoted

MOST_KNOWN = 2048
NONE = Top1(0, 0)


class Price(NamedTuple):
    """Accuracy on old and new classes if old classes may lose so many points."""

    points: float | None
    """None: as many as without a bound, or between that and the default bound."""
    old: Top1
    new: Top1


def first_left_out(images: FeatureSet, head: Head) -> LeftOut | None:
    """Return leave-one-out logits of a first head, which `probe` computed by least squares.

    Here images that repeat each other count as one; `probe` counts each image, so that its head
    differs a little. None if no class has two images that do not repeat each other.
    """
    assert head.origin is not None
    rows, groups, lam = Rows.of_head(head), repeating(groups_of(images)), head.origin["lam"]
    data = NewClasses(images.features, images.labels, rows, 0, head.num_classes, groups=groups)
    if not (data.counts[data.start :] > 1).any():  # no class has a row to leave out
        return None
    sample, statistics = CalibrationSet.of(data, LOSSES["ce"]).judgeable, data.statistics()
    solved = least_squares_head(statistics, lam)
    logits = leave_one_out(Start(init="least-square"), solved, sample, statistics, lam)
    return LeftOut(data, sample.drawn, logits / head.origin.get("temperature", 1.0))


class Examined(NamedTuple):
    """A head, and the images of old and of new classes on which it is measured."""

    head: Head
    old: FeatureSet
    new: FeatureSet

    @classmethod
    def of(
        cls,
        head: Head,
        found: LeftOut | None,
        old: FeatureSet,
        new: FeatureSet,
        untested: Collection[str] = (),
    ) -> Examined:
        """Measure old and new classes on held-out images, or else on leave-one-out logits.

        Args:
            head: A row per class, new classes last.
            found: Leave-one-out logits of the training images.
            old: Held-out and left-out images of old classes, as `Growth.tested`.
            new: Held-out images of new classes.
            untested: New classes that leave-one-out logits test.
        """
        assert head.class_names is not None
        names = head.class_names
        old, new = (rows.named(names) for rows in (old, new))
        start = head.num_classes if found is None else found.data.start
        owed = old.features[:, -1:].astype(np.float32)
        owing = np.unique(old.labels[owed[:, 0] != 0])
        changed = np.concatenate([owing, np.arange(start, head.num_classes)])
        columns = np.eye(head.num_classes, dtype=np.float32)[:, changed]

        def wide(features: Any, added: Any, labels: np.ndarray) -> FeatureSet:
            both = np.concatenate([features, added], axis=1).astype(np.float32)
            return FeatureSet(both, labels, names)

        own = -owed * (old.labels[:, None] == changed)
        parts = [
            wide(old.features[:, :-1], own, old.labels),
            wide(new.features[:], np.zeros((len(new.labels), len(changed))), new.labels),
        ]
        if found is not None:
            gaps, is_old = found.logits.cpu().numpy(), found.labels < start
            is_old &= not len(old.labels)
            chosen_new = np.isin(found.labels, [names.index(name) for name in untested])
            for side, chosen in enumerate((is_old, chosen_new)):
                features = to_numpy(take(found.data.features, found.drawn[chosen]))
                features = features.astype(np.float32)
                gap = gaps[chosen] - (features @ head.weight[start:].T + head.bias[start:])
                gap = np.pad(gap, ((0, 0), (len(owing), 0)))
                more = wide(features, gap, found.labels[chosen])
                parts[side] = FeatureSet.joined([parts[side], more], names)
        weight = np.concatenate([head.weight, columns], axis=1)
        return cls(replace(head, weight=weight), *parts)

    def left_out(self, images: FeatureSet, classes: tuple[str, ...]) -> FeatureSet:
        """Return new images with what their margins owe to them, for `Memory.left_out`.

        Args:
            images: All of them, which give all classes, width and dtype.
            classes: Those whose images are returned.
        """
        rows, head = self.new.first(MOST_LEFT_OUT), self.head
        known, margins = np.where(np.arange(rows.dim) < images.dim, rows.features, 0), []
        for features in (known, rows.features):
            logits = features @ head.weight.T + head.bias
            own = np.take_along_axis(logits, rows.labels[:, None], axis=1)
            np.put_along_axis(logits, rows.labels[:, None], -np.inf, axis=1)
            margins.append(own[:, 0] - logits.max(axis=1))
        stored = np.column_stack([known[:, : images.dim], margins[0] - margins[1]])
        found = replace(rows, features=stored.astype(images.features.dtype))
        return found.named(classes).named(images.class_names)

    def parted(
        self, earlier: tuple[str, ...], untested: Collection[str]
    ) -> tuple[Examined, FeatureSet]:
        """Return the same with images of earlier classes among the old ones; and these images.

        As many are taken of those that are untested but for left-out images as are remembered.
        """
        names, kinds = self.new.class_names, (set(untested), set(earlier).difference(untested))
        left_out, held_out = (tuple(n for n in earlier if n in kind) for kind in kinds)
        parts = (self.new.named(left_out).first(MOST_LEFT_OUT), self.new.named(held_out))
        moved = FeatureSet.joined([each.named(names) for each in parts], names)
        rest = tuple(name for name in names if name not in earlier)
        old = FeatureSet.joined([self.old, moved], names)
        return self._replace(old=old, new=self.new.named(rest).named(names)), moved

    def shifted(self, new: int, shift: float) -> Examined:
        """Return the same with larger biases of the last `new` classes."""
        moved = np.arange(self.head.num_classes) >= self.head.num_classes - new
        bias = (self.head.bias + shift * moved).astype(np.float32)
        return self._replace(head=replace(self.head, bias=bias))

    def price(self, points: float | None) -> Price:
        """Return the accuracy on old and on new classes."""
        return Price(points, accuracy(self.head, self.old), accuracy(self.head, self.new))

    @property
    def both(self) -> FeatureSet:
        """All images, the old ones first."""
        return FeatureSet.joined([self.old, self.new], self.new.class_names)

    def known(self, activation: Activation = "softmax") -> Known | None:
        """Return the scores of all images, and the score that best recognises unknown images.

        Images of new classes, without the logit of their own class, are images of classes that the
        head lacks. The best score has the largest area under the curve of all against these.
        """
        both = self.both
        count = min(len(both.labels), MOST_KNOWN)
        if count < LEAST_ROWS:
            return None
        chosen = np.linspace(0, len(both.labels) - 1, count).astype(np.int64)
        logits = logits_of(self.head, both, chosen)
        without = logits.copy()
        np.put_along_axis(without, both.labels[chosen][:, None], -np.inf, axis=1)
        is_new, areas, levels = chosen >= len(self.old.labels), {}, {}
        for rule in RULES:
            known, unknown = scores(rule, logits, activation), scores(rule, without, activation)
            areas[rule] = float(rankdata(np.concatenate([known, unknown[is_new]]))[:count].sum())
            levels[rule] = tuple(np.sort(known)[count * np.arange(100) // 100].tolist())
        if activation == "sigmoid":  # an energy would sum classes that exclude nothing
            del areas["energy"]
        return Known(rule=max(areas, key=areas.__getitem__), images=count, levels=levels)


TableOf = tuple[Sequence[str], Sequence[Sequence[str]]]
"""Heads of columns, and lines of cells."""


@dataclass(frozen=True, slots=True, eq=False)
class Addition:
    """Result of adding classes; accuracies are top-1, among all classes of the model."""

    model: Model
    """The new model; its history ends with this addition."""
    audit: Audit
    """What seems wrong with the images."""
    computed_anew: int = 0
    """Number of classes of the model whose rows were computed again."""
    old_before: Top1 = NONE
    """Accuracy of the original model on held-out images of old classes."""
    earlier_before: Top1 = NONE
    """Accuracy of the original model on images of classes that are computed anew with new ones."""
    prices: tuple[Price, ...] = ()
    """Accuracies for several values of `--max-old-loss`, ascending, the requested value among them,
    and last those of the model, if no value was requested and few old classes are known.
    Empty unless the rows are discriminants and images of old classes are held out."""
    place: str = ""
    """Where the features of the images are."""
    heard: tuple[str, ...] = ()
    """Warnings of the work that nobody was shown, first among `notes`."""

    @property
    def change(self) -> Change:
        """The addition in the history of the model."""
        return self.model.facts.history[-1]

    @property
    def old(self) -> Top1:
        """Accuracy of the new model on held-out images of old classes."""
        return self.change.accuracy.get("old", NONE)

    @property
    def new(self) -> Top1:
        """Accuracy of the new model on images of the added classes, held out or left out."""
        return self.change.accuracy.get("new", NONE)

    @property
    def left_out(self) -> bool:
        """Whether `new` is leave-one-out: each image is classified by rows computed without it."""
        return bool(self.change.data.get("left_out"))

    def save(self, out: AnyPath, *, overwrite: bool = False) -> Written:
        """Write the new model; see `Model.save`."""
        return write_model(self.model, Path(out), overwrite=overwrite)

    def __repr__(self) -> str:
        """Return the answer, what seems wrong with the images, and notes."""
        return "\n".join([*self.lines(), *self.audit.lines, *self.notes()])

    def lines(self, name: str = "The model") -> list[str]:
        """Return the answer in one line, and then what else was done."""
        change, classes = self.change, number_of(self.model.facts.num_classes, "class")
        if not change.classes:
            return [f"{name} knows {classes}, as before: none was added"]
        lines = [" ".join([f"{name} knows {classes}.", self._new_in_words, *self._old_in_words])]
        earlier = change.data.get("earlier", 0)
        if change.action != "add":
            anew = self.computed_anew - earlier
            arrived = {"computed anew": anew, "added": len(change.classes) - anew}
            done = [f"{number_of(n, 'class')} {what}" for what, n in arrived.items() if n]
            if more := change.data.get("more"):
                told = number_of(sum(more.values()), f"more {self._noun}")
                done.insert(0, f"{told} of {number_of(len(more), 'class')}")
            lines.append(", ".join(done))
        if earlier:
            which = number_of(earlier, "class")
            lines.append(
                f"Computed anew with these: {which} of earlier additions, as if all at once"
            )
        if probabilities := self.model.facts.probabilities:
            lines.append(f"Probabilities: {probabilities}")
        if self.place:
            kept = f"what the network computed of these {self._noun}s, to add them again faster"
            lines.append(f"Kept in {self.place}: {kept}")
        return lines

    @property
    def _noun(self) -> str:
        return "photograph" if self.audit.noun == "image" else self.audit.noun

    @property
    def _new_in_words(self) -> str:
        count = sum(self.change.images.values())
        given = number_of(count, self._noun)
        if fresh := self.change.data.get("more"):
            anew = number_of(len(self.change.classes), "class")
            given += f" ({sum(fresh.values()):,} new) of {anew} computed anew"
        if not self.new.total:
            return f"Your {self._noun if count == 1 else given} could not be tested."
        if not self.left_out:
            held_out = self.change.data["held_out"]
            of = f"Of {number_of(held_out, self._noun)} held out"
            if more := self.new.total - held_out:
                of += f" and {more:,} more, each tested without itself"
            return f"{of}, {_right(self.new)}."
        more, repeats = count - self.new.total, sum(e["given"] for e in self.audit.repeated)
        alone = sum(self.change.images[name] for name in self.change.data.get("untested", ()))
        rest = "to save time" if self.change.data["sampled"] else "as repeats"
        why = {"alone in a class": alone, rest: more - alone}
        others = f"({' and '.join(f'{n:,} not, {what}' for what, n in why.items() if n > 0)})"
        each = f"{self.new.total:,} tested {others}, each" if more else "each tested"
        other = "other places, cameras or days" if self._noun == "photograph" else "other sources"
        guessed, init = "weights" in self.change.data["old_rows"], self.change.settings["init"]
        easy = ", too easy a test of few while old classes are not remembered"
        easy = easy if guessed and init == "discriminant" else ""
        found = f"{_right(self.new)}{easy}; {other} may be harder"
        found += f" ({repeats:,} are repeats or nearly alike, listed below)" if repeats else ""
        return f"Your {given}, {each} without itself: {found}."

    @property
    def _old_in_words(self) -> list[str]:
        if len(self.change.classes) == self.model.facts.num_classes:
            return []
        lines, tested = list[str](), self.change.data["tested_classes"]
        if self.old.total:
            learnt = self.change.data["old_left_out"]
            kinds = {"held out": self.old.total - learnt, "learnt before": learnt}
            noun = self._noun
            of = " and ".join(f"{number_of(n, noun)} {kind}" for kind, n in kinds.items() if n)
            of += ", each tested without itself" if learnt else ""
            before = f"before the change, {self.old_before.correct:,}"
            which = "Other" if "more" in self.change.data else "Old"
            lines.append(f"{which} classes: of {of}, {_right(self.old)}; {before}.")
        if earlier := self.change.accuracy.get("earlier"):
            of = f"{number_of(earlier.total, self._noun)}, each tested without itself"
            before = f"; before the change, {self.earlier_before.correct:,}"
            before = before if self.earlier_before.total == earlier.total else ""
            lines.append(f"Classes added before: of {of}, {_right(earlier)}{before}.")
        if self.model.facts.leaves_untested:
            others = self.model.facts.num_classes - len(self.change.classes)
            left = number_of(others - tested, "class")
            of = Path(self.change.data.get("model", "both models")).name
            which = "The other" if tested else "The"
            takes = "give `clinit remember` five or more of each"
            why = f"no {self._noun} of them is held out to test ({takes})"
            lines.append(f"{which} {left} of {of}: {why}, so what they lose is not known.")
        return lines

    def tables(self) -> list[TableOf]:
        """Return the accuracies by the price of old classes, if they differ by over a point."""
        both = [[each.percent or 0.0 for each in (price.old, price.new)] for price in self.prices]
        if not both or max(max(side) - min(side) for side in zip(*both, strict=True)) <= 1:
            return []
        lines = [["before the change", accuracy_in_words(self.old_before), ""]]
        price = self.change.data["price"] if self.prices[-1].points is not None else None
        for (old, new, _), same in groupby(self.prices, lambda p: (*p[1:], p.points is None)):
            points = [each.points for each in same]
            bound = "default" if None in points else f"--max-old-loss {points[0]:g}"
            bound += f" to {points[-1]:g}" if len(points) > 1 else ""
            if price in points:
                bound += f" ({price:g} used)" if len(points) > 1 else " (used)"
            lines.append([bound, accuracy_in_words(old), accuracy_in_words(new)])
        heads = ["points that old classes may lose", "old classes, tested", "added classes"]
        return [(heads, lines)]

    def notes(self, name: str = "MODEL") -> list[str]:
        """Return what the numbers do not show; `name` is the place of the model."""
        change, notes = self.change, [*self.heard]
        for each in self.audit.known[:1]:
            model, old = change.data.get("model", "MODEL"), shlex.quote(each["old"])
            how = f"remove the old one: `clinit remove {quoted(name)} {old}`"
            if dict(zip(self.model.class_names, self.model.facts.tasks, strict=True))[each["old"]]:
                to = shlex.quote(f"NEW/{each['old']}")
                how = f"move its {self._noun}s to {to} and run `clinit add {model} NEW --more`"
            notes.append(f"is {each['class']} the same as {in_words(each['old'])}? Then {how}")
        if self.place and any(each["where"] == PLACES[3] for each in self.audit.repeated):
            none = f"`clinit cache group {quoted(self.place)} --groups none`"
            notes.append(f"are those nearly alike different ones? Then {none}, and add again")
        lost = self.old_before.correct - self.old.correct
        if self.prices and self.prices[-1].points is None and 100 * lost > self.old.total:
            told = f"{number_of(lost, self._noun)} fewer of old classes are right"
            (spared,) = (each for each in self.prices if each.points == 1)
            missed = self.prices[-1].new.correct - spared.new.correct
            cost = number_of(missed, self._noun) if missed > 0 else f"no {self._noun}"
            notes.append(f"{told}; `--max-old-loss 1` costs {cost} of added classes instead")
        if empty := change.data.get("lost"):
            which = f"{number_of(len(empty), 'class')} ({examples(empty)})"
            notes.append(f"not added, without a finite {self._noun}: {which}")
        if names := change.data.get("untested"):
            takes = f"a second {self._noun}, which does not repeat the first"
            takes = takes if self.left_out else f"a {self._noun} in val, or five to hold one out"
            which = f"{number_of(len(names), 'class')} ({examples(names)})"
            notes.append(f"never tested: {which}; a class takes {takes}")
        steps = self.model.facts.history if change.action == "more" else ()
        models = [each.data.get("models", [each.data.get("model", "MODEL")])[-1] for each in steps]
        for step, one in enumerate(steps[:-1], 1):
            found, then = one.data.get("audit", {}), [*map(quoted, models[step:])]
            odd = [each["image"] for each in found.get("misfits", ())]
            for each in found.get("repeated", ()):  # those that the model had already come first
                odd += each["images"][-each.get("given", 0) :]
            if odd and not {*one.classes}.isdisjoint(change.classes):
                notes.append(
                    f"odd {self._noun}s of an earlier step are still learnt ({examples(odd)})."
                    f" `clinit model show {then[0]} --html PAGE.html` shows them, and how to repeat"
                    f" that step without them; then make {listed([*then[1:], 'this model'])} again"
                )
        return notes


def _right(part: Top1) -> str:
    """Return the count of right answers; its share too if the images are enough for one."""
    share = f" ({part.percent:.1f} %)" if part.total >= FEW else ""
    return f"{part.correct:,} right{share}"
