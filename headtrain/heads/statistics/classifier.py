"""The least-square head as an estimator of scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from clinit.headtrain.heads.groups import repeating
from clinit.headtrain.heads.repeats import find_groups
from clinit.headtrain.heads.statistics.class_statistics import ClassStatistics
from clinit.headtrain.heads.statistics.lambda_curve import leave_one_out_curve
from clinit.headtrain.heads.statistics.solve import least_squares_head


class LeastSquaresClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Least squares with one-hot targets: the head of `clinit.least_squares`.

    It minimises 1/2 Ave |W h + b - onehot(y)|^2 + lam/2 (|W|^2 + |b|^2), in float64. Labels may be
    integers or texts.

    The outputs of `decision_function` are scores, of which the largest wins. For probabilities,
    wrap the estimator in `sklearn.calibration.CalibratedClassifierCV`.

    Args:
        lam: Ridge, >= 0, added to an average: scikit-learn's `alpha` divided by the number of rows.
            `auto` takes the half decade with the least leave-one-out error (rows that repeat each
            other are left out together).
        weighting: Kind of Ave: `sample`, the mean over rows, or `class`, the mean over classes of
            the means over their rows, as in the paper and `clinit.least_squares`.

    Attributes:
        classes_: The classes, sorted.
        coef_: Weights (classes, dim); for two classes the difference, (1, dim), as in scikit-learn.
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
        self.classes_, numbers = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"there is one class, {self.classes_[0]}: a classifier needs two")
        statistics = ClassStatistics.of(
            rows, numbers, num_classes=len(self.classes_), weighting=self.weighting
        )
        self.lam_ = self.lam
        if self.lam == "auto":
            groups = repeating(find_groups(rows, numbers))
            self.lam_ = leave_one_out_curve(rows, numbers, statistics, groups=groups).best
        head = least_squares_head(statistics, self.lam_)
        self.coef_, self.intercept_ = head.weight, head.bias
        if len(self.classes_) == 2:
            self.coef_ = head.weight[1:] - head.weight[:1]
            self.intercept_ = head.bias[1:] - head.bias[:1]
        return self

    def decision_function(self, X: Any) -> np.ndarray:  # noqa: N803
        """Return scores (rows, classes); for two classes (rows,), above 0 for the second class."""
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
