"""A model's predictions for images of known classes, alone and next to another model.

Top-1 and top-5 are among all classes of the model. Images of classes outside the model do not count
as mistakes. They measure whether the energy of the logits separates them from images of known
classes (AUROC: the probability that an image of a known class scores higher than any other image).

Two models are compared by the images that only one of them classifies correctly: g gained, l lost.
If neither model is better, each of these images is as likely to be gained as lost, and l is
binomial with n = g + l and 1/2: McNemar's exact test, two-sided.

Source: Q. McNemar, "Note on the sampling error of the difference between correlated proportions or
percentages", Psychometrika 12(2), 1947.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import polars as pl
from scipy.stats import binomtest
from sklearn.metrics import roc_auc_score

from clinit.extract.cache.head import Top1
from clinit.extract.dataset.decode import MISSING
from clinit.headtrain.heads.temperature import calibration_error
from clinit.headtrain.model.facts import ModelFacts
from clinit.headtrain.model.predict import SCORES, AnsweredBatch, Rejection
from clinit.words import number_of

TOP = 5
SCHEMA = {
    **dict.fromkeys(("image", "class", "answer", "error"), pl.String),
    **dict.fromkeys(("right", "top5"), pl.Boolean),
    **dict.fromkeys(("probability", "score"), pl.Float64),
}
CHANGES = ("gained", "lost", "both", "neither")
"""Images that only this model, only the other model, both or neither classify correctly."""


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """The predictions of a model for images."""

    table: pl.DataFrame
    """One line per image (`SCHEMA`): its class; the predicted class with its probability; whether
    the prediction is right, and whether the class is among the five likeliest (null if the model
    lacks the class); its energy (`score`), low for unknown images; the error if the image cannot be
    read. After a comparison also `other`, the prediction of the other model, and `change`, one of
    `CHANGES`."""
    rejection: Rejection | None
    """The least energy of a known image; None without a threshold."""

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
        found = self.known.group_by("class").agg(images=pl.len(), **measures)
        return found.sort("top1", "class")

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
        change = pl.when(right & was).then(pl.lit("both")).when(right & ~was).then(pl.lit("gained"))
        change = change.when(~right & was).then(pl.lit("lost"))
        change = change.when(~right & ~was).then(pl.lit("neither"))
        return replace(self, table=joined.with_columns(change=change.otherwise(None)).drop("was"))

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
            against |= {f"{each}_images": self.changed(each).to_dicts() for each in CHANGES[:2]}
        return {
            "images": {"known": len(self.known), "strangers": len(self.strangers)},
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
        found = self.content
        known, strangers = found["images"].values()
        lines = {"images": f"{known:,} of {number_of(len(found['classes']), 'class')}"}
        if known:
            for name, column in (("top-1", "right"), ("top-5", "top5")):
                part = self.top1(column)
                lines[name] = f"{part.percent:.2f} % ({part.correct:,} right)"
            lines["calibration"] = (
                f"expected error {100 * found['calibration_error']:.1f} %,"
                f" mean probability {100 * found['mean_probability']:.1f} %"
            )
        if self.rejection is not None:
            away = self.turned_away
            others = f", {away['strangers']:,} of {strangers:,} others" if strangers else ""
            lines["turned away"] = f"{away['known']:,} of {known:,} of known classes{others}"
        if self.auroc is not None:
            lines["unknown images"] = f"{strangers:,}, AUROC {self.auroc:.3f} by energy"
        if found["against"] is not None:
            gained, lost, both, neither = (found["against"][each] for each in CHANGES)
            lines["against"] = (
                f"{gained:,} gained, {lost:,} lost, {both:,} right and {neither:,} wrong in both"
                f" (McNemar's test: p = {self.p_value:.3g})"
            )
        return lines

    @property
    def tables(self) -> dict[str, pl.DataFrame]:
        """Tables by title: worst classes, most confused pairs, and lost images."""
        taken = self.confused.select("class", pl.col("answer").alias("taken for"), "images")
        worst = self.classes.filter(pl.col("top1") < 100)
        found = {"Worst classes": worst, "Most confused": taken}
        if "change" in self.table.columns:
            found["Lost"] = self.changed("lost").rename({"answer": "now", "other": "before"})
        return {title: rows for title, rows in found.items() if len(rows)}


def evaluate(
    facts: ModelFacts,
    images: Mapping[str, str],
    batches: Iterable[AnsweredBatch],
    rejection: Rejection | None = None,
) -> Evaluation:
    """Compare the predictions of a model with the classes of images.

    Args:
        facts: Facts about the model, with the classes of the columns of the logits.
        images: The name of the class of each image.
        batches: Logits from `Predictor.batches` for these images in this order.
        rejection: The least energy of a known image.
    """
    row_of = {name: row for row, name in enumerate(facts.class_names)}
    divisor = 1.0 if facts.temperature is None else facts.temperature.value
    lines: list[dict[str, Any]] = [
        {"image": image, "class": name, "error": MISSING} for image, name in images.items()
    ]
    for numbers, logits, reasons in batches:
        best = logits.topk(min(TOP, len(row_of)), dim=1).indices.tolist()
        sure = logits.softmax(dim=1).amax(dim=1).tolist()
        scores = SCORES["energy"](logits * divisor).tolist()
        for number, rows, chance, score in zip(numbers, best, sure, scores, strict=True):
            line, truth = lines[number], row_of.get(lines[number]["class"])
            line["error"] = reasons.get(number)
            if number not in reasons:
                line |= {"answer": facts.class_names[rows[0]], "probability": chance}
                line["score"] = score
                if truth is not None:
                    line |= {"right": rows[0] == truth, "top5": truth in rows}
    return Evaluation(pl.DataFrame(lines, schema=SCHEMA), rejection)


def cells_of(rows: pl.DataFrame) -> list[list[str]]:
    """Return the cells of a table as text: floats are percentages."""
    return [
        [f"{each:.1f} %" if isinstance(each, float) else str(each) for each in line]
        for line in rows.iter_rows()
    ]
