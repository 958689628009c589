"""The rows of new classes before scaling, and the data that they are computed from.

    random         U(-1/sqrt(d), 1/sqrt(d)) for weight and bias: the default of `torch.nn.Linear`
    class-mean     the mean of the extended feature z = (h, 1), weight mu_c and bias 1, as in the
                   paper; or the mean of h / |h| with bias 0, as in the authors' earlier code
    least-square   the rows of the new classes in W_LS, solved over old and new rows together for
                   all classes that have a row in the data
    imprint        weight m_c / |m_c| with m_c = mean of h / |h| over the class; bias 0
    lda            linear discriminants with shrinkage, as in Deep SLDA (below)
    zero           weight and bias 0; `calibrated` sets the bias to match the class prior

Source of imprinting: H. Qi, M. Brown, D. G. Lowe, "Low-shot learning with imprinted weights",
CVPR 2018. Their cosine classifier also normalises features, has no bias, and multiplies the cosine
by a learnt scale. Here the head is linear in h, and `scale` sets the scale.

Linear discriminants:

    L = [(1 - e) Sigma_W + e I]^-1,    weight = L mu_c,    bias = -1/2 mu_c.(L mu_c),    e = 1e-4

Source: T. L. Hayes, C. Kanan, "Lifelong machine learning with deep streaming linear
discriminant analysis", CVPR Workshops 2020, Eqs. 1 to 3. Here Sigma_W is the class-balanced
within-class covariance over buffer and new task; Deep SLDA averages over rows (`weighting`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int

from clinit.errors import ExperimentError
from clinit.headtrain.heads.array import (
    Cholesky,
    FeatureRows,
    beside,
    float64_of,
    library,
    namespace,
    take,
    to_numpy,
    unit,
)
from clinit.headtrain.heads.groups import Mask, one_of_each, shares_of
from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.seeds import Draw, generator
from clinit.headtrain.heads.start.settings import Start
from clinit.headtrain.heads.statistics.class_statistics import ClassStatistics, Weighting
from clinit.headtrain.heads.statistics.moments import add_by_class, cut
from clinit.headtrain.heads.statistics.solve import least_squares_head
from clinit.setting import Imported


@runtime_checkable
class Drawn(Protocol):
    """How rows of old classes came about that were drawn from statistics, known or guessed."""

    @property
    def guess(self) -> object | None:
        """The classes whose statistics were guessed, if any."""

    def anew(self, data: NewClasses, kept: Mask) -> NewClasses:
        """Return some rows of data, with guessed rows from a guess by the new images among them."""

    def statistics(self, data: NewClasses, weighting: Weighting) -> ClassStatistics:
        """Return the statistics of data, with those that rows were drawn from in place of rows."""


@dataclass(frozen=True, slots=True, eq=False)
class NewClasses:
    """Input of an initialisation: a head with new rows [start, stop), and all stored data."""

    features: FeatureRows
    """Shape (rows, dim): old and new rows together, in their stored dtype."""
    labels: Int[np.ndarray, " rows"]
    """Class of each row of data, as a row number of the head."""
    head: Rows
    """The current head, in arrays of the library that reads the features. Its new rows are stale:
    they contain a random draw."""
    start: int
    stop: int
    """Head rows from `stop` on (full head width) belong to classes not seen yet. They stay fixed,
    and no data row has their label."""
    base: int | None = None
    """Head rows [0, base) came with the pretrained head or, without one, with the first task; rows
    [base, start) were initialised in earlier tasks. None: rows [0, start) came with the head."""
    groups: Int[np.ndarray, " rows"] | None = None
    """Groups of repeated rows, as from `find_groups`: a group counts as one row, and is left out as
    a whole. None: no row repeats another."""
    drawn: Drawn | None = None
    """How rows of old classes came about that were drawn, if any."""

    @property
    def counts(self) -> Int[np.ndarray, " seen"]:
        """Number of rows of each class in [0, stop); a group counts as one row."""
        return np.bincount(one_of_each(self.labels, self.groups), minlength=self.stop)

    @property
    def shares(self) -> Float[np.ndarray, " rows"] | None:
        """Weight of each row within its group; None if every row has weight 1."""
        return shares_of(self.groups)

    @property
    def came_with(self) -> int:
        """Number of head rows that came with the head, not from a later task."""
        return self.start if self.base is None else min(self.base, self.start)

    @property
    def guessed(self) -> Drawn | None:
        """`drawn`, if it contains guesses."""
        return self.drawn if self.drawn is not None and self.drawn.guess is not None else None

    @property
    def stale(self) -> Rows:
        """The new rows before their initialisation: a random draw."""
        return self.head.between(self.start, self.stop)

    @property
    def has_old_rows(self) -> bool:
        """Whether an earlier class has a row of data."""
        return bool((self.labels < self.start).any())

    def subset(self, kept: Mask) -> NewClasses:
        """Return the data of the chosen rows."""
        groups = None if self.groups is None else self.groups[kept]
        features = take(self.features, np.flatnonzero(kept))
        return replace(self, features=features, labels=self.labels[kept], groups=groups)

    def statistics(self, weighting: Weighting = "class") -> ClassStatistics:
        """Return the statistics of old and new rows; all heads of a task share them."""
        if self.drawn is not None:
            return self.drawn.statistics(self, weighting)
        return ClassStatistics.of(
            self.features, self.labels, num_classes=self.stop, weighting=weighting,
            groups=self.groups,
        )  # fmt: skip


SHRINKAGE = 1e-4


def discriminants(statistics: ClassStatistics, classes: slice = slice(None)) -> Rows:
    """Return the discriminants of `classes`, for equal priors."""
    return discriminants_of(statistics.class_means[classes, :], shrunk(statistics))


def discriminants_of(means: Float[Any, "classes dim"], covariance: Float[Any, "dim dim"]) -> Rows:
    """Return the discriminants of classes with these means and this covariance.

    Raises:
        numpy.linalg.LinAlgError: If the covariance is not positive definite to working precision.
    """
    weight = Cholesky.of(covariance).solve(means.T).T
    return Rows(weight, -0.5 * namespace(weight).sum(weight * means, axis=1))


def shrunk(statistics: ClassStatistics) -> Float[Any, "dim dim"]:
    """Return (1 - e) Sigma_W + e I."""
    return towards_identity(statistics.within_covariance, SHRINKAGE)


def towards_identity(
    covariance: Float[Any, "dim dim"], weight: float, size: float = 1.0
) -> Float[Any, "dim dim"]:
    """Return (1 - weight) covariance + weight size I."""
    system = (1 - weight) * covariance
    return system + beside(system, weight * size * np.eye(covariance.shape[0]))


def raw_rows(
    start: Start, data: NewClasses, statistics: ClassStatistics | None, lam: float | None = None
) -> Rows:
    """Compute the rows [start, stop) of the head, before scaling.

    Args:
        start: Kind of the rows; not `random`.
        data: The data and the head.
        statistics: Statistics of old and new rows, if `start.reads_statistics`.
        lam: Ridge, if `start.reads_lambda`.
    """
    if start.own is not None:
        return own_rows(start, data, statistics)
    new, xp = slice(data.start, data.stop), namespace(data.head.weight)
    if start.init == "zero":
        return Rows(xp.zeros_like(data.stale.weight), xp.zeros_like(data.stale.bias))
    if start.init == "imprint" or statistics is None:
        means = unit_class_mean_rows(data)
        return Rows(unit(means.weight), means.bias) if start.init == "imprint" else means
    if start.init == "class-mean":
        return Rows(statistics.class_means[new, :], xp.ones_like(data.stale.bias))
    if start.init == "lda":
        return discriminants(statistics, new)
    assert lam is not None
    return least_squares_head(statistics, lam, new, holds_bias=start.holds_bias)


def own_rows(start: Start, data: NewClasses, statistics: ClassStatistics | None = None) -> Rows:
    """Compute the rows of new classes by a user's function.

    The function receives read-only NumPy arrays, whatever the device: features (rows, dim) of old
    and new rows together, float32 or float64; their labels, as row numbers of the head; the old
    rows of the head, as `Rows`; and the `ClassStatistics` of all features. It returns weight
    (new, dim) and bias (new,), in the order of the classes, before scaling.

    Raises:
        ExperimentError: If the function cannot be imported, or returns anything else.
    """
    assert start.own is not None
    function, old = start.own.load(), data.head.between(0, data.start).on_host()
    features = to_numpy(take(data.features, slice(None)))
    features = features.astype(np.result_type(features, np.float32), copy=False)
    if statistics is None or library(statistics.mean) != "numpy":
        statistics = replace(data, features=features).statistics(start.weighting)
    old = Rows(_read_only(old.weight), _read_only(old.bias))
    names = ("totals", "counts", "shift", "sums", "gram")
    arrays: dict[str, Any] = {n: _read_only(getattr(statistics, n)) for n in names}
    statistics = replace(statistics, **arrays)
    found = function(_read_only(features), _read_only(data.labels), old, statistics)
    wanted = (data.stop - data.start, features.shape[1])
    parts = (found.weight, found.bias) if isinstance(found, Rows) else found
    try:
        weight, bias = map(np.array, parts)
    except Exception:  # conversions of other libraries raise anything
        raise _not_rows(start.own, type(found).__name__, "weight and bias") from None
    for name, array, shape in (("weight", weight, wanted), ("bias", bias, wanted[:1])):
        if array.shape != shape or array.dtype.kind != "f":
            raise _not_rows(start.own, f"{name} {array.dtype} {array.shape}", f"floats {shape}")
        if not np.isfinite(array).all():
            raise _not_rows(start.own, f"{name} that is not finite", "finite numbers")
    return Rows(*(beside(data.head.weight, each.astype(np.float64)) for each in (weight, bias)))


def _read_only(array: np.ndarray) -> np.ndarray:
    """Return a view that cannot be written: other starts read the same numbers."""
    view = array.view()
    view.flags.writeable = False
    return view


def _not_rows(function: Imported, found: str, wanted: str) -> ExperimentError:
    return ExperimentError(
        f"{function.path} returned {found}, expected {wanted}",
        remedy="Return weight (new classes, dim) and bias (new classes,) as arrays of NumPy.",
    )


def unit_class_mean_rows(data: NewClasses) -> Rows:
    """Return (mean of h / |h|, 0) for each new class; a feature of zeros stays zero."""
    return Rows(new_class_means(data, unit), namespace(data.stale.bias).zeros_like(data.stale.bias))


def new_class_means(
    data: NewClasses, of: Callable[[Any], Any] = float64_of
) -> Float[Any, "new dim"]:
    """Return the mean of a function of the features of each new class."""
    new = np.flatnonzero(data.labels >= data.start)
    order = new[np.argsort(data.labels[new], kind="stable")]
    sums = namespace(data.stale.weight).zeros_like(data.stale.weight)
    for block, labels, *shares in cut(data.features, data.labels, order, data.shares):
        features = of(block)
        if shares:
            features *= beside(features, shares[0])[:, None]
        add_by_class(sums, features, labels - data.start)
    return sums / beside(sums, data.counts[data.start :].astype(np.float64))[:, None]


def random_rows(rng: np.random.Generator, classes: int, dim: int) -> Rows:
    """Draw `classes` rows for features of width `dim`; the weights first, then the biases."""
    bound = dim**-0.5
    weight = rng.uniform(-bound, bound, size=(classes, dim))
    return Rows(weight, rng.uniform(-bound, bound, size=classes))


def random_task_rows(seed: int, task: int, classes: int, dim: int) -> Rows:
    """Draw random rows for the classes of a task; they depend on nothing else that a run does."""
    return random_rows(generator(seed, Draw.RANDOM_ROWS, task), classes, dim)
