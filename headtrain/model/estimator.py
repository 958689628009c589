"""A head with classes added to it, as an estimator of scikit-learn."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.special import expit, softmax
from sklearn.base import BaseEstimator
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from clinit.extract.cache.features import FeatureSet
from clinit.extract.cache.head import Head, read_head
from clinit.headtrain.heads.array import as_array, to_numpy
from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.statistics import classifier
from clinit.headtrain.protocol.stream.source import Source


class AddedClassesClassifier(classifier.LinearClassifier):
    """A released head that learns new classes, as `clinit.Model.add`; its rows do not change.

    Labels that are not among `classes` are new. Rows of old classes show what new classes may take
    from them; they are optional. `partial_fit` adds rows to the rows of earlier calls.

    Args:
        head: Weight (classes, dim) and bias (classes,) as a pair, a `clinit.Head` or a
            `torch.nn.Linear`; a head file; or a fitted linear classifier of scikit-learn (in a
            `FrozenEstimator` if this classifier is cloned, as in cross-validation, which forgets
            what was fitted). None: all classes are new, and the first head is that of
            `LeastSquaresClassifier`.
        classes: The label of each row of `head`; None: its class names or, without any, 0, 1, ...
        init: Start of new rows, as `clinit add --init`.
        max_old_loss: Points of accuracy that old classes may lose, as `clinit add --max-old-loss`.
        activation: `softmax`, or `sigmoid` if the probabilities of classes are independent.

    Attributes:
        classes_: All classes, sorted.
        coef_: Weights (classes, dim), a row per class, also of two classes.
        intercept_: Biases (classes,).
        temperature_: The divisor of scores for probabilities.
        n_features_in_: dim.

    Example:
        >>> import numpy as np
        >>> head = np.eye(2, 3), np.zeros(2)
        >>> rows = np.array([[0.1, 0.0, 2.0], [0.0, 0.1, 2.5], [2.0, 0.0, 0.1], [0.0, 2.0, 0.0]])
        >>> model = AddedClassesClassifier(head).fit(rows, [7, 7, 0, 1])
        >>> model.predict(rows).tolist()
        [7, 7, 0, 1]
    """

    _seen: tuple[np.ndarray, np.ndarray]

    def __init__(
        self,
        head: Any = None,
        classes: Any = None,
        *,
        init: Any = "auto",
        max_old_loss: Any = 1.0,
        activation: Any = "softmax",
    ) -> None:
        self.head = head
        self.classes = classes
        self.init = init
        self.max_old_loss = max_old_loss
        self.activation = activation

    def fit(self, X: Any, y: Any) -> AddedClassesClassifier:  # noqa: N803
        """Compute the rows of new classes, and forget the rows of earlier calls.

        Args:
            X: Features (rows, dim).
            y: Labels (rows,), of new classes and, if possible, of old ones.

        Raises:
            ValueError: If an argument has a wrong shape, type or value.
            ClinitError: If the head cannot be read, or its width differs from dim.
        """
        self.__dict__.pop("_seen", None)
        return self.partial_fit(X, y)

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> AddedClassesClassifier:  # noqa: N803
        """Add rows of known or of new classes, and compute all new rows anew.

        Args:
            X: Features (rows, dim).
            y: Labels (rows,).
            classes: Not needed, as new labels are new classes.
        """
        first = not hasattr(self, "_seen")
        rows, labels = validate_data(self, X, y, reset=first, dtype=np.float64)
        check_classification_targets(labels)
        if not first:
            before, labels_before = self._seen
            classifier.check_kind(labels, labels_before)
            rows, labels = np.concatenate([before, rows]), np.concatenate([labels_before, labels])
        self._grow(rows, labels)
        self._seen = rows, labels
        return self

    def _grow(self, rows: np.ndarray, labels: np.ndarray) -> None:
        self.temperature_ = 1.0
        if self.head is None:
            first = classifier.LeastSquaresClassifier().fit(rows, labels)
            self.classes_, self.temperature_ = first.classes_, first.temperature_
            self.coef_, self.intercept_ = classifier.row_per_class(first.coef_, first.intercept_)
            return
        weight, bias, known = self._released()
        classifier.check_kind(labels, known)
        if weight.shape[1] != rows.shape[1]:
            read = f"the head reads {weight.shape[1]}"
            raise ValueError(f"X has {rows.shape[1]} features, but {read}")
        every = np.concatenate([known, np.setdiff1d(labels, known)])
        order = np.argsort(every)
        number = order[np.searchsorted(every, labels, sorter=order)]
        if len(every) > len(known):
            weight, bias = self._with_new(weight, bias, rows, number, len(every))
        self.classes_, self.coef_, self.intercept_ = every[order], weight[order], bias[order]

    def _released(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return weight, bias and labels of the head."""
        given = self.head
        if isinstance(given, str | PathLike):
            given = read_head(Path(given))
        names = getattr(given, "class_names", getattr(given, "classes_", None))
        names = names if self.classes is None else self.classes
        if isinstance(given, BaseEstimator):
            check_is_fitted(given, "coef_")
            given = given.coef_, given.intercept_
        pair = (given.weight, given.bias) if hasattr(given, "weight") else given
        weight, bias = classifier.row_per_class(*(to_numpy(as_array(each)) for each in pair))
        known = np.arange(len(weight)) if names is None else np.asarray(names)
        if len(np.unique(known)) != len(weight) or bias.shape != known.shape:
            raise ValueError(
                f"the head has {len(weight)} rows and {bias.shape} biases for"
                f" {len(np.unique(known))} different classes"
            )
        return weight.astype(np.float64), bias.astype(np.float64), known

    def _with_new(
        self, weight: np.ndarray, bias: np.ndarray, rows: np.ndarray, number: np.ndarray, count: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return weight and bias with the rows of new classes, and set the temperature."""
        from clinit.headtrain.model.model import Model

        names = tuple(map(str, range(count)))
        known, features = names[: len(bias)], rows.astype(np.float32)
        is_old = number < len(bias)
        head = Head(weight.astype(np.float32), bias.astype(np.float32), known)
        sides = [
            FeatureSet(features[chosen], number[chosen] - first, of)
            for chosen, first, of in ((is_old, 0, known), (~is_old, len(bias), names[len(bias) :]))
        ]
        found = Model(head, activation=self.activation).add(
            sides[1],
            old=Source(sides[0], sides[0].nothing()) if is_old.any() else None,
            init=self.init,
            max_old_loss=float(self.max_old_loss),
        )
        grown, temperature = found.model.head, found.model.facts.temperature
        self.temperature_ = 1.0 if temperature is None else temperature.value
        added = Rows.of_head(grown).between(len(bias), count)
        return np.concatenate([weight, added.weight]), np.concatenate([bias, added.bias])

    def predict_proba(self, X: Any) -> Float[np.ndarray, "rows classes"]:  # noqa: N803
        """Return the probability of each class, in the order of `classes_`."""
        check_is_fitted(self, "coef_")
        rows = validate_data(self, X, reset=False, dtype=np.float64)
        scores = (rows @ self.coef_.T + self.intercept_) / self.temperature_
        return np.asarray(expit(scores) if self.activation == "sigmoid" else softmax(scores, 1))
