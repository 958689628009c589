"""The least-square head as an estimator of scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from clinit.headtrain.groups import find_groups, repeating
from clinit.headtrain.statistics.class_statistics import ClassStatistics, pooled
from clinit.headtrain.statistics.lambda_curve import generalised_curve, leave_one_out_curve
from clinit.headtrain.statistics.solve import least_squares_head


class LeastSquaresClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Least squares with one-hot targets: the head of `clinit.least_squares`.

    It minimises 1/2 Ave |W h + b - onehot(y)|^2 + lam/2 (|W|^2 + |b|^2), in float64. Labels may be
    integers or texts. `partial_fit` adds the sums over rows that the head is a function of: rows in
    any number of parts give the head that they give together, up to rounding, and none is kept.

    The outputs of `decision_function` are scores, of which the largest wins. For probabilities put
    it into `sklearn.calibration.CalibratedClassifierCV`.

    Args:
        lam: Ridge, >= 0, added to an average: scikit-learn's `alpha` divided by the number of rows.
            `auto` takes the half decade of the least leave-one-out error of the rows (those that
            repeat each other are left out together); after `partial_fit`, which keeps no rows,
            the half decade of the least generalised cross-validation.
        weighting: Kind of Ave: `sample`, the mean over rows, or `class`, the mean over classes of
            the means over their rows, as in the paper and `clinit.least_squares`. `partial_fit`
            takes `sample` alone.

    Attributes:
        classes_: The classes, sorted.
        coef_: Weights (classes, dim); of two classes the difference, (1, dim), as in scikit-learn.
        intercept_: Biases (classes,), or (1,).
        lam_: The ridge.
        n_features_in_: dim.

    Example:
        >>> import numpy as np
        >>> features = np.array([[0.0, 1.0], [0.0, 2.0], [3.0, 0.0], [4.0, 0.0]])
        >>> model = LeastSquaresClassifier().fit(features, ["cat", "cat", "dog", "dog"])
        >>> model.predict([[0.0, 3.0]]).tolist()
        ['cat']
    """

    def __init__(self, *, lam: Any = "auto", weighting: Any = "sample") -> None:
        self.lam = lam
        self.weighting = weighting

    def fit(self, X: Any, y: Any) -> LeastSquaresClassifier:  # noqa: N803
        """Solve for the head of labelled rows; anything learnt before is forgotten.

        Args:
            X: Features (rows, dim).
            y: Labels (rows,), of two classes or more.

        Raises:
            ValueError: If an argument has a wrong shape, type or value.
            StatisticsError: If lam = 0 and the system is singular.
        """
        rows, labels = self._checked(X, y, reset=True)
        named, numbers = np.unique(labels, return_inverse=True)
        _check_classes(named)
        statistics = ClassStatistics.of(
            rows, numbers, num_classes=len(named), weighting=self.weighting
        )
        lam = self.lam
        if lam == "auto":
            groups = repeating(find_groups(rows, numbers))
            lam = leave_one_out_curve(rows, numbers, statistics, groups=groups).best
        self._solve(statistics, lam)
        self.classes_, self._statistics = named, statistics
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> LeastSquaresClassifier:  # noqa: N803
        """Add labelled rows to those learnt so far, and solve again.

        Args:
            X: Features (rows, dim).
            y: Labels (rows,).
            classes: All classes that there will be; needed at the first call alone.

        Raises:
            ValueError: If an argument is wrong, `classes` is missing or differs from what it was,
                or averages are over classes. The rows are not added then.
            StatisticsError: If lam = 0 and the rows so far are too few. They count with later ones.
        """
        if self.weighting != "sample":
            raise ValueError("partial_fit needs weighting='sample': class sizes are not known yet")
        first = not hasattr(self, "_statistics")
        if first and classes is None:
            raise ValueError("the first call of partial_fit needs all classes: classes=[...]")
        rows, labels = self._checked(X, y, reset=first)
        named = self.classes_ if classes is None else np.unique(classes)
        if not first and not np.array_equal(named, self.classes_):
            raise ValueError(f"classes are {named}, at the first call they were {self.classes_}")
        _check_classes(named)
        if unknown := np.setdiff1d(labels, named).tolist():
            raise ValueError(f"y holds {unknown[:3]}, which are none of the classes")
        statistics = ClassStatistics.of(
            rows, np.searchsorted(named, labels), num_classes=len(named), weighting="sample"
        )
        if not first:
            statistics = pooled(self._statistics, statistics)
        # Kept before they are solved: rows that are too few for lam = 0 count with later ones.
        self.classes_, self._statistics = named, statistics
        lam = self.lam
        self._solve(statistics, generalised_curve(statistics).best if lam == "auto" else lam)
        return self

    def decision_function(self, X: Any) -> np.ndarray:  # noqa: N803
        """Return scores (rows, classes); of two classes (rows,), above 0 for the second one."""
        check_is_fitted(self, "coef_")
        rows = validate_data(self, X, reset=False, dtype=np.float64)
        scores: np.ndarray = rows @ self.coef_.T + self.intercept_
        return scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, X: Any) -> np.ndarray:  # noqa: N803
        """Return the label of each row."""
        scores = self.decision_function(X)
        best = (scores > 0).astype(np.int64) if scores.ndim == 1 else scores.argmax(axis=1)
        named: np.ndarray = self.classes_[best]
        return named

    def _checked(self, X: Any, y: Any, *, reset: bool) -> tuple[np.ndarray, np.ndarray]:  # noqa: N803
        rows, labels = validate_data(self, X, y, reset=reset, dtype=np.float64)
        check_classification_targets(labels)
        return rows, labels

    def _solve(self, statistics: ClassStatistics, lam: float) -> None:
        """Keep the head that follows from statistics."""
        head = least_squares_head(statistics, lam)
        weight, bias = head.weight, head.bias
        if len(bias) == 2:
            weight, bias = weight[1:] - weight[:1], bias[1:] - bias[:1]
        self.lam_, self.coef_, self.intercept_ = lam, weight, bias


def _check_classes(named: np.ndarray) -> None:
    if len(named) < 2:
        raise ValueError(f"there is one class, {named[0]}: a classifier needs two")
