"""The least-square head as an estimator of scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from clinit.headtrain.heads.groups import one_of_each, repeating
from clinit.headtrain.heads.linear import NEVER, Rows
from clinit.headtrain.heads.repeats import find_groups
from clinit.headtrain.heads.statistics import solve
from clinit.headtrain.heads.statistics.class_statistics import ClassStatistics
from clinit.headtrain.heads.temperature import fit_temperature

_DRAWS = 2048


def row_per_class(weight: np.ndarray, bias: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of a classifier; of two classes, scikit-learn has only the difference."""
    if len(weight) != 1:
        return weight, bias
    return np.concatenate([-weight, weight]) / 2, np.concatenate([-bias, bias]) / 2


def check_kind(labels: np.ndarray, known: np.ndarray) -> None:
    """Refuse texts if known labels are numbers, and numbers if they are texts."""
    (new, old) = ("texts" if each.dtype.kind in "USO" else "numbers" for each in (labels, known))
    if len(known) and old != new:
        raise ValueError(f"labels are {new}, but the classes of the head are {old}")


class LinearClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """The answers of a head with a row per class, or with one row for two classes."""

    def decision_function(self, X: Any) -> np.ndarray:  # noqa: N803
        """Return scores (rows, classes); for two classes (rows,), above 0 for the second class."""
        check_is_fitted(self, "coef_")
        rows = validate_data(self, X, reset=False, dtype=np.float64)
        scores: np.ndarray = rows @ self.coef_.T + self.intercept_
        if len(self.classes_) != 2:
            return scores
        return scores[:, 0] if scores.shape[1] == 1 else scores[:, 1] - scores[:, 0]

    def predict(self, X: Any) -> np.ndarray:  # noqa: N803
        """Return the label of each row."""
        scores = self.decision_function(X)
        best = (scores > 0).astype(np.int64) if scores.ndim == 1 else scores.argmax(axis=1)
        return np.asarray(self.classes_[best])


class LeastSquaresClassifier(LinearClassifier):
    """Least squares with one-hot targets: the head of `clinit.least_squares`.

    It minimises 1/2 Ave |W h + b - onehot(y)|^2 + lam/2 (|W|^2 + |b|^2), in float64. Labels may be
    integers or texts.

    `partial_fit` adds rows and classes by class statistics, without the earlier rows: any order of
    calls gives the same head up to rounding. `predict_proba` is the softmax of the scores divided
    by one temperature. `fit` fits it to the scores of each row without itself (of rows that are
    alone in their class, nothing is known), `partial_fit` to rows drawn from the statistics, normal
    classes with a common covariance: too low if classes are not normal.

    Args:
        lam: Ridge, >= 0, added to an average: scikit-learn's `alpha` divided by the number of rows.
            `auto` takes the half decade with the least leave-one-out error (rows that repeat each
            other are left out together); after `partial_fit`, with the least generalised
            cross-validation, which needs no row.
        weighting: Kind of Ave: `sample`, the mean over rows, or `class`, the mean over classes of
            the means over their rows, as in the paper and `clinit.least_squares`. With `class`, all
            rows of a class must come in one call.

    Attributes:
        classes_: The classes, sorted.
        coef_: Weights (classes, dim); for two classes the difference, (1, dim), as in scikit-learn.
        intercept_: Biases (classes,), or (1,).
        lam_: The ridge.
        temperature_: The divisor of scores for probabilities.
        n_features_in_: dim.

    Example:
        >>> import numpy as np
        >>> features = np.array([[0.0, 1.0], [0.0, 2.0], [3.0, 0.0], [4.0, 0.0]])
        >>> model = LeastSquaresClassifier().fit(features, ["cat", "cat", "dog", "dog"])
        >>> model.predict([[0.0, 3.0]]).tolist()
        ['cat']
        >>> model.partial_fit([[9.0, 9.0], [8.0, 9.0]], ["owl", "owl"]).classes_.tolist()
        ['cat', 'dog', 'owl']
    """

    def __init__(self, *, lam: Any = "auto", weighting: Any = "sample") -> None:
        self.lam = lam
        self.weighting = weighting

    def fit(self, X: Any, y: Any) -> LeastSquaresClassifier:  # noqa: N803
        """Solve for the head of labelled rows, and forget all earlier rows.

        Args:
            X: Features (rows, dim).
            y: Labels (rows,), of two classes or more.

        Raises:
            ValueError: If an argument has a wrong shape, type or value.
            StatisticsError: If lam = 0 and the system is singular.
        """
        rows, labels = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(labels)
        classes, numbers = np.unique(labels, return_inverse=True)
        if len(classes) < 2:
            raise ValueError(f"there is one class, {classes[0]}: a classifier needs two")
        sums, groups = self._sums(rows, numbers), repeating(find_groups(rows, numbers))
        drawn, scores = solve.left_out_scores(rows, numbers, sums, groups)
        own = numbers[drawn]
        tested = np.bincount(one_of_each(numbers, groups))[own] > 1

        def left_out(lam: float) -> float | None:
            return fit_temperature(scores(lam)[tested], own[tested], smoothed=True)

        lam = solve.error_curve(scores, own, sums).best if self.lam == "auto" else self.lam
        return self._solved(classes, sums, lam, left_out if tested.any() else None)

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> LeastSquaresClassifier:  # noqa: N803
        """Add labelled rows, of known or of new classes, and solve anew.

        Args:
            X: Features (rows, dim).
            y: Labels (rows,); labels that were not there before are new classes.
            classes: Labels that will come later; they are never predicted until they have a row.

        Raises:
            ValueError: If an argument has a wrong shape, type or value, or if the weighting is
                `class` and rows of a known class arrive.
            StatisticsError: If lam = 0 and the system is singular.
        """
        first = not hasattr(self, "_statistics")
        rows, labels = validate_data(self, X, y, reset=first, dtype=np.float64)
        check_classification_targets(labels)
        before = labels[:0] if first else self.classes_
        check_kind(labels, before)
        given = labels[:0] if classes is None else np.asarray(classes)
        every = np.unique(np.concatenate([before, given, labels]))
        found = self._sums(rows, np.searchsorted(every, labels), len(every))
        if not first:
            place = np.searchsorted(every, before)
            found = self._statistics.renumbered(place, len(every)).merged(found)
        lam = solve.generalised_curve(found).best if self.lam == "auto" else self.lam
        return self._solved(every, found, lam)

    def _sums(self, rows: Any, numbers: Any, num_classes: int | None = None) -> ClassStatistics:
        return ClassStatistics.of(rows, numbers, num_classes=num_classes, weighting=self.weighting)

    def _solved(
        self, classes: np.ndarray, sums: ClassStatistics, lam: Any, left_out: Any = None
    ) -> LeastSquaresClassifier:
        """Solve, and then set all attributes: a solve that fails changes none.

        `left_out`, a function of lambda, returns the temperature of left-out rows, if any.
        """
        path = solve.LambdaPath.of(sums)
        head = path.head(lam)
        self.temperature_ = (left_out and left_out(lam)) or _temperature(head, path, lam)
        self.classes_, self._statistics, self.lam_ = classes, sums, lam
        self.coef_, self.intercept_ = head.weight, np.where(sums.totals > 0, head.bias, NEVER)
        if len(classes) == 2:
            self.coef_ = head.weight[1:] - head.weight[:1]
            self.intercept_ = self.intercept_[1:] - self.intercept_[:1]
        return self

    def predict_proba(self, X: Any) -> Float[np.ndarray, "rows classes"]:  # noqa: N803
        """Return the probability of each class, in the order of `classes_`."""
        scores = self.decision_function(X) / self.temperature_
        if scores.ndim == 1:
            scores = np.stack([np.zeros_like(scores), scores], axis=1)
        return np.asarray(softmax(scores, axis=1))


def _temperature(head: Rows, path: solve.LambdaPath, lam: float) -> float:
    """Return the temperature of rows drawn from the statistics that a head was solved from.

    Scores z of these rows become scores of rows that the head was not solved from by the
    leave-one-out formula (z - h onehot(y)) / (1 - h), with the mean leverage h = f / N for every
    row: N rows let a head reproduce f of them (`effective_rows`).
    """
    statistics = path.statistics
    present = np.flatnonzero(statistics.totals)
    weight, rows = head.weight[present], int(statistics.totals.sum())
    if len(present) < 2:
        return 1.0
    # The smaller of two matrices is decomposed.
    spread, few = statistics.within_covariance, len(present) < statistics.dim
    values, basis = np.linalg.eigh(weight @ spread @ weight.T if few else spread)
    root = basis * np.sqrt(np.maximum(values, 0))
    root = root if few else weight @ root
    random = np.random.default_rng(0)
    drawn = random.choice(len(present), _DRAWS, p=statistics.shares[present])
    means = statistics.class_means[present] @ weight.T + head.bias[present]
    scores = means[drawn] + random.standard_normal((_DRAWS, root.shape[1])) @ root.T
    leverage = min(solve.effective_rows(path, lam) / rows, 1 - 1 / rows)
    logits = (scores - leverage * np.eye(len(present))[drawn]) / (1 - leverage)
    return fit_temperature(logits, drawn, smoothed=True) or 1.0
