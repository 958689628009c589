"""A model's predictions for images of known classes, alone and next to another model.

Questions are labelled images, or rows of features. Top-1 and top-5 are among all classes of the
model. Images of classes outside the model do not count as mistakes. They measure whether the score
of the logits separates them from images of known classes (AUROC: the probability that an image of a
known class scores higher than any other image).

Two models are compared by the images that only one of them classifies correctly: g gained, l lost.
If neither model is better, each of these images is as likely to be gained as lost, and l is
binomial with n = g + l and 1/2: McNemar's exact test, two-sided.

Source: Q. McNemar, "Note on the sampling error of the difference between correlated proportions or
percentages", Psychometrika 12(2), 1947.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from scipy.stats import binomtest
from sklearn.metrics import roc_auc_score

from clinit.errors import ModelError
from clinit.extract.cache.head import Top1
from clinit.extract.dataset.decode import MISSING
from clinit.extract.dataset.known import FOLDER
from clinit.extract.dataset.names import in_words
from clinit.extract.dataset.scan import available_splits, scan, without as leave_out
from clinit.headtrain.heads.temperature import PROBABILITIES, calibration_error
from clinit.headtrain.model import predict
from clinit.headtrain.model.engine import AnsweredBatch, Logits
from clinit.headtrain.model.inputs import FeatureInput, ask_names, features_in, is_features
from clinit.headtrain.model.model import Model
from clinit.headtrain.model.reading import AS_USUAL, Reading
from clinit.observer import Doing, Noted, Observer, ignore
from clinit.words import examples, lines_of_table, number_of

RATE = 0.05
"""Share of the model's held-out images that the threshold for rejection rejects."""
TOP = 5
SCHEMA = {
    **dict.fromkeys(("image", "class", "answer", "error"), pl.String),
    **dict.fromkeys(("right", "top5", "learnt"), pl.Boolean),
    **dict.fromkeys(("probability", "own", "score"), pl.Float64),
}
CHANGES = ("gained", "lost", "both", "neither")
"""Images that only this model, only the other model, both or neither classify correctly."""
ONLY = ("only this", "only other")
"""Images of classes that only this or only the other model knows."""
LIKELY = 0.05
"""Least p-value of differences that may be chance."""
SAME = 5e-3
"""Largest relative difference of the logits of an image and of its features, stored as float16."""
LISTED = 10
"""Maximum number of lost images in a line, and of lines of a table."""


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """The predictions of a model for images."""

    table: pl.DataFrame
    """One line per image (`SCHEMA`): its class; the predicted class with its probability, and the
    probability of its `own` class; whether the prediction is right, and whether the class is among
    the five likeliest (null if the model lacks the class); its `score` by `rule`, low for unknown
    images; whether the model `learnt` from it, if it stores its features; the error if the image
    cannot be read. After a comparison also `other`, the prediction
    of the other model, and `change`, one of `CHANGES` or `ONLY`."""
    rejection: predict.Rejection | None
    """The least score of a known image; None without a threshold."""
    rule: str = "energy"
    """The score."""
    noun: str = "image"
    """Name of the inputs in sentences: `image`, or `row` of features."""

    @property
    def known(self) -> pl.DataFrame:
        """The images of classes of the model, if they can be read."""
        return self.table.drop_nulls("right")

    @property
    def strangers(self) -> pl.DataFrame:
        """The images of classes that the model lacks, if they can be read."""
        return self.table.filter(pl.col("right").is_null(), pl.col("answer").is_not_null())

    def top1(self, column: str = "right") -> Top1:
        """Return the number of correct images; `top5`: class among the five likeliest."""
        return Top1(int(self.known[column].sum()), len(self.known))

    @property
    def calibration_error(self) -> float:
        """Expected calibration error, in [0, 1]."""
        known = self.known
        return calibration_error(known["probability"].to_numpy(), known["right"].to_numpy())

    @property
    def classes(self) -> pl.DataFrame:
        """Images, top-1 and top-5 in percent of each class, the worst first."""
        measures = {"top1": 100 * pl.col("right").mean(), "top5": 100 * pl.col("top5").mean()}
        return self.known.group_by("class").agg(images=pl.len(), **measures).sort("top1", "class")

    @property
    def confused(self) -> pl.DataFrame:
        """Pairs of a class and a wrong prediction for its images, the most frequent pairs first."""
        pairs = self.known.filter(~pl.col("right")).group_by("class", "answer", maintain_order=True)
        found = pairs.agg(images=pl.len(), files="image")
        return found.sort("images", "class", "answer", descending=[True, False, False])

    @property
    def auroc(self) -> float | None:
        """How well the score separates known and unknown images; None if one kind is missing."""
        known, strangers = self.known["score"], self.strangers["score"]
        if not (len(known) and len(strangers)):
            return None
        kinds = [True] * len(known) + [False] * len(strangers)
        return float(roc_auc_score(kinds, pl.concat([known, strangers])))

    @property
    def turned_away(self) -> dict[str, int]:
        """Number of known and of unknown images whose score is below the threshold."""
        assert self.rejection is not None
        low = pl.col("score") < self.rejection.threshold
        return {name: len(getattr(self, name).filter(low)) for name in ("known", "strangers")}

    def against(self, other: Evaluation) -> Evaluation:
        """Return this evaluation with the predictions of another model for the same images."""
        answers = pl.col("answer").alias("other")
        joined = self.table.join(
            other.table.select("image", answers, was="right"), on="image", maintain_order="left"
        )
        right, was = pl.col("right"), pl.col("was")
        kinds = {
            "both": right & was,
            "gained": right & ~was,
            "lost": ~right & was,
            "neither": ~right & ~was,
            ONLY[0]: right.is_not_null() & was.is_null(),
            ONLY[1]: right.is_null() & was.is_not_null(),
        }
        change = pl.coalesce(pl.when(found).then(pl.lit(n)) for n, found in kinds.items())
        return replace(self, table=joined.with_columns(change=change))

    def changed(self, change: str) -> pl.DataFrame:
        """Return the images of one of `CHANGES`, with both predictions."""
        return self.table.filter(change=change).select("image", "class", "answer", "other")

    @property
    def p_value(self) -> float:
        """P-value of McNemar's exact two-sided test."""
        gained, lost = len(self.changed("gained")), len(self.changed("lost"))
        return float(binomtest(lost, gained + lost).pvalue) if gained + lost else 1.0

    @property
    def content(self) -> dict[str, Any]:
        """All measures, as plain values."""
        rejection: dict[str, Any] = {"auroc": self.auroc}
        if self.rejection is not None:
            rejection |= {"threshold": self.rejection.threshold, "turned_away": self.turned_away}
        against: dict[str, Any] | None = None
        if "change" in self.table.columns:
            against = {change: len(self.changed(change)) for change in CHANGES}
            against |= {"p_value": self.p_value}
            for name, column in zip(ONLY, ("right", "was"), strict=True):
                of = self.table.filter(change=name)
                against[name] = {"images": len(of), "classes": of["class"].n_unique()}
                against[name]["right"] = int(of[column].sum())
            against |= {f"{each}_images": self.changed(each).to_dicts() for each in CHANGES[:2]}
        return {
            "images": {"known": len(self.known), "strangers": len(self.strangers)},
            "learnt": int(self.table["learnt"].sum()),
            "top1": self.top1().percent,
            "top5": self.top1("top5").percent,
            "calibration_error": self.calibration_error,
            "mean_probability": self.known["probability"].mean(),
            "rejection": rejection,
            "classes": self.classes.to_dicts(),
            "confused": self.confused.to_dicts(),
            "unreadable": self.table.drop_nulls("error").select("image", "error").to_dicts(),
            "against": against,
        }

    @property
    def summary(self) -> dict[str, str]:
        """The measures in words, by name."""
        found, noun = self.content, self.noun
        known, strangers = found["images"].values()
        classes = number_of(len(found["classes"]), "class")
        lines = {"right": f"0 {noun}s of classes of the model"}
        if known:
            one, five = (self.top1(column) for column in ("right", "top5"))
            right = f"{one.correct:,} of {number_of(known, noun)} of {classes} right"
            lines["right"] = f"{right} ({one.percent:.2f} %)"
            lines["top-5"] = f"{five.correct:,} right ({five.percent:.2f} %)"
            mean = found["mean_probability"]
            gap = mean - one.correct / known
            chance = math.sqrt(max(0.0, mean * (1 - mean)) / known)  # largest standard error
            told = f": too {'high' if gap > 0 else 'low'}" if abs(gap) > 2 * chance else ""
            right = f"right {one.percent:.1f} %"
            lines["calibration"] = f"mean probability {100 * mean:.1f} %, {right}{told}"
            error = f"{100 * found['calibration_error']:.1f} %"
            lines["calibration error"] = f"{error} on average over groups of like probability"
        if learnt := found["learnt"]:
            of = number_of(len(self.table), noun)
            lines["learnt"] = (
                f"{learnt:,} of {of}, from which the model was made: only others test it"
            )
        if self.auroc is not None:
            score = f"AUROC {self.auroc:.3f} by {self.rule} (0.5 chance, 1 all told apart)"
            lines[f"unknown {noun}s"] = f"{strangers:,}, {score}"
            if self.rejection is not None:
                refused, caught = self.turned_away.values()
                shares = (100 * caught / strangers, 100 * refused / known)
                lines["with --reject auto"] = (
                    f"{caught:,} of {strangers:,} unknown caught ({shares[0]:.0f} %),"
                    f" {refused:,} of {known:,} known refused ({shares[1]:.0f} %)"
                )
        return lines if found["against"] is None else lines | self._compared(found["against"])

    def _compared(self, found: dict[str, Any]) -> dict[str, str]:
        """Return the comparison in words: common classes, other classes, and what was lost."""
        gained, lost, both, _ = counts = [found[each] for each in CHANGES]
        lines = {
            "both know": f"{number_of(sum(counts), self.noun)}: {gained:,} gained, {lost:,}"
            f" lost, {both:,} right in both"
        }
        if not sum(counts):
            lines = {"both know": "the models share none of these classes"}
        if gained + lost:
            chance = "may be" if self.p_value > LIKELY else "is hardly"
            lines["difference"] = (
                f"{number_of(lost, self.noun)} lost, {gained:,} gained: this {chance} chance"
                f" (p = {self.p_value:.3g}, McNemar's test)"
            )
        for name, which in zip(ONLY, ("this model", "the other"), strict=True):
            count, classes, right = found[name].values()
            if count:
                told = f"{number_of(count, self.noun)} of {number_of(classes, 'class')}"
                lines[f"only {which} knows"] = f"{told}: {right:,} right"
        files = [
            f"{image} (now {in_words(answer)})"
            for image, answer in self.changed("lost").select("image", "answer").iter_rows()
        ]
        more = f" and {lost - LISTED:,} more (--csv FILE)" if lost > LISTED else ""
        return lines | ({"lost": ", ".join(files[:LISTED]) + more} if files else {})

    def lines(self, name: str = "The model") -> list[str]:
        """Return the measures in lines, as `clinit evaluate` prints them."""
        (_, right), *others = self.summary.items()
        return [f"{name}: {right}", *(f"{each}: {words}" for each, words in others)]

    def __str__(self) -> str:
        """Return the measures, and the worst classes and pairs."""
        tables = [
            [title, *lines_of_table(rows.columns, cells_of(rows.head(LISTED)))]
            for title, rows in self.tables.items()
        ]
        return "\n".join(line for lines in (self.lines(), *tables) for line in lines)

    @property
    def tables(self) -> dict[str, pl.DataFrame]:
        """Tables by title: classes with mistakes, and most confused pairs."""
        taken = self.confused.select("class", pl.col("answer").alias("taken for"), "images")
        worst = self.classes.filter(pl.col("top1") < 100)
        found = {"Classes with mistakes": worst, "Most confused pairs of classes": taken}
        return {title: rows for title, rows in found.items() if len(rows)}


@dataclass(frozen=True, slots=True, eq=False)
class Questions:
    """Labelled images, or rows of features, to ask models about."""

    place: Path
    """The folder of the images, or where the features are."""
    classes: Mapping[str, str]
    """The name of the class of each image or row."""
    rows: FeatureInput | None = None
    """The features; None for images."""

    @classmethod
    def of(
        cls, given: Any, labels: Any = None, observe: Observer = ignore, without: Path | None = None
    ) -> Questions:
        """List a folder of images or read features: the split val if it exists, else train.

        Raises:
            ClinitError: If they cannot be read, or have no labels.
        """
        if not is_features(given):
            root = Path(given)
            observe(Doing("Listing the images …"))
            split = "val" if "val" in available_splits(FOLDER, root, labels) else "train"
            found = scan(FOLDER, root, split, labels=labels)
            if without is not None:
                (found,) = leave_out([found], without)
            found.tell(observe)
            return cls(root, dict(found.manifest.table.select("path", "class_name").iter_rows()))
        observe(Doing("Reading the features …"))
        rows = features_in(given, labels)
        split = "val" if "val" in rows.splits else "train"
        part = rows.splits[split]
        rows.need_labels()
        names = [part.class_names[label] for label in part.labels]
        classes = dict(zip(rows.row_names(split), names, strict=True))
        return cls(rows.path, classes, replace(rows, splits={split: part}))

    @property
    def noun(self) -> str:
        """Name of the inputs in sentences."""
        return "image" if self.rows is None else "row"

    def check(self, model: Model, observe: Observer = ignore) -> None:
        """Note the classes that the model lacks.

        Raises:
            ModelError: If it lacks all of them.
        """
        if self.rows is None:
            model.need_engine()
        every = {*model.class_names}
        strangers = [name for name in self.classes.values() if name not in every]
        names = list(dict.fromkeys(strangers))
        ask_names(names, model, "the folder", observe)
        told = examples(list(map(in_words, names)))
        kind = "folder" if self.rows is None else "class"
        if names and len(strangers) == len(self.classes):
            raise ModelError(
                f"of {number_of(len(names), kind)} ({told}), none is named as a class of the model",
                remedy=f"Rename them: `clinit model show {model.origin}` lists the class names.",
            )
        if names:
            which = f"{number_of(len(names), kind)} not named as a class of the model ({told})"
            count = number_of(len(strangers), self.noun)
            observe(Noted(f"{which}: {count}, which only test whether the model notices that"))

    def answered(self, model: Model, reading: Reading) -> Generator[AnsweredBatch]:
        """Return the logits of a model for these images, in this order."""
        if self.rows is not None:
            return predict.of_features(model, self.rows)
        images = [self.place / image for image in self.classes]
        return model.need_engine().answered(images, reading)


def evaluate(
    model: Model, asked: Questions, reading: Reading = AS_USUAL, against: Model | None = None
) -> Evaluation:
    """Compare the predictions of a model, and perhaps of another one, with the classes of images.

    Images pass only once through a network that both models share. A class that was renamed since
    one became the other has the name of the images.
    """
    is_shared = against is not None and against.depends_on == model.depends_on
    if against is not None and is_shared and against.head.dim == model.head.dim:
        from clinit.headtrain.model.again import with_names_of

        asked_for, names = {*asked.classes.values()}, with_names_of(model, against, []).class_names
        pairs = zip(against.class_names, names, strict=True)
        free = asked_for - {*against.class_names}
        against = against.rename({w: n for w, n in pairs if n in free and w not in asked_for})
    judges = [_Judge.of(each, asked) for each in (model, against) if each is not None]
    if against is not None and is_shared and asked.rows is None and model.depends_on:
        joint = model.with_rows_of(against)
        with closing(asked.answered(joint, reading)) as batches:
            for numbers, logits, reasons in batches:
                parts = np.split(logits, [model.facts.num_classes], axis=1)
                for judge, part in zip(judges, parts, strict=True):
                    judge.see((numbers, part, reasons))
    else:
        for judge in judges:
            with closing(asked.answered(judge.model, reading)) as batches:
                for batch in batches:
                    judge.see(batch)
    found, *others = (each.found for each in judges)
    return found.against(others[0]) if others else found


@dataclass(frozen=True, slots=True, eq=False)
class _Judge:
    """Compares the predictions of one model with the classes of the images."""

    model: Model
    noun: str
    rule: str
    lines: list[dict[str, Any]]
    learnt: Logits
    """Of the stored images that the model learnt from."""

    @classmethod
    def of(cls, model: Model, asked: Questions) -> _Judge:
        why = MISSING if asked.rows is None else None
        lines = [{"image": at, "class": name, "error": why} for at, name in asked.classes.items()]
        stored = None if model.memory is None else model.memory.learnt.features
        learnt = np.zeros((0, 0)) if stored is None else model.logits(stored)
        return cls(model, asked.noun, predict.default_rule(model.facts), lines, learnt)

    def see(self, batch: AnsweredBatch) -> None:
        """Take the predictions of a batch."""
        facts, (numbers, logits, reasons) = self.model.facts, batch
        row_of = {name: row for row, name in enumerate(facts.class_names)}
        best = predict.best_classes(logits, TOP).tolist()
        chances = PROBABILITIES[facts.activation](logits)
        trained = predict.as_trained(facts, logits)
        judged = predict.scores(self.rule, trained, facts.activation).tolist()
        found = zip(numbers, best, chances, judged, self._is_learnt(logits), strict=True)
        for number, rows, chance, score, is_learnt in found:
            line, truth = self.lines[number], row_of.get(self.lines[number]["class"])
            line["error"] = reasons.get(number)
            if number not in reasons:
                line["learnt"] = is_learnt
                line |= {"answer": facts.class_names[rows[0]], "probability": chance.max()}
                line["score"] = score
                if truth is not None:
                    line |= {"right": rows[0] == truth, "top5": truth in rows, "own": chance[truth]}

    def _is_learnt(self, logits: Logits) -> list[bool]:
        """Return whether images have the logits of stored features, which are rounded."""
        if not len(self.learnt):
            return [False] * len(logits)
        # Equal images have no spread that a difference could be compared with.
        middle = self.learnt.mean(axis=0) * np.ptp(self.learnt, axis=0).any()
        one, other = self.learnt - middle, logits.astype(np.float64) - middle
        squares = (one**2).sum(axis=1) - 2 * other @ one.T
        near = one[squares.argmin(axis=1)]
        gaps, sizes = (np.linalg.norm(each, axis=1) for each in (other - near, near))
        return [*map(bool, gaps <= SAME * sizes)]

    @property
    def found(self) -> Evaluation:
        """The evaluation, when all batches were seen."""
        rejection = None
        with suppress(ModelError):  # no image was held out or left out
            rejection = predict.Rejection.at_rate(self.model, self.rule, RATE)
        return Evaluation(pl.DataFrame(self.lines, schema=SCHEMA), rejection, self.rule, self.noun)


def cells_of(rows: pl.DataFrame) -> list[list[str]]:
    """Return the cells of a table as text: floats are percentages, synsets have their titles."""
    return [
        [f"{each:.1f} %" if isinstance(each, float) else in_words(str(each)) for each in line]
        for line in rows.iter_rows()
    ]
