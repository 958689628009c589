"""Deep SLDA: linear discriminants whose means and covariance are updated row by row.

For row t, of class c with n rows before it and running mean m:

    r = h - m,    (t + 1) S <- t S + t / (t + 1) r r^T,    m <- m + r / (n + 1),    t <- t + 1

(a new class starts at m = 0, as in the authors' code). A block of rows updates S by one product:
t S grows by sum_t t / (t + 1) r r^T. The base classes are learnt as a whole: their means, and their
covariance by oracle approximating shrinkage. Then, with e the shrinkage,

    L = [(1 - e) S + e I]^-1,    weight = L mu_c,    bias = -1/2 mu_c.(L mu_c).

Sources: T. L. Hayes, C. Kanan, "Lifelong machine learning with deep streaming linear discriminant
analysis", CVPR Workshops 2020, and the code of its authors; Y. Chen, A. Wiesel, Y. C. Eldar, A. O.
Hero, "Shrinkage algorithms for MMSE covariance estimation", IEEE TSP 58(10), 2010.

KLDA: linear discriminants of random Fourier features, with one or several random maps.

    S = mean over rows of (h - mu_c)(h - mu_c)^T,    L = [(1 - e) S + e s I]^-1,    s = tr S / D,
    weight = L mu_c,    bias = -1/2 mu_c.(L mu_c)

The authors take the pseudo-inverse of the sum over rows, without the shrinkage e. This makes the
softmax of an ensemble's members almost flat, so that the ensemble ranks classes by added logits.
Here S is a mean, so that the softmax is the posterior of the model, and e is relative to the mean
variance, which is at most 1 / D. By default, oracle approximating shrinkage computes e from S and
the number of rows, as in RanDumb: a small e fails if there are about as many rows as random
features.

Sources: S. Momeni, S. Mazumder, B. Liu, "Continual learning using a kernel-based method over
foundation models", AAAI 2025; A. Prabhu, S. Sinha, P. Kumaraguru, P. H. S. Torr, O. Sener, P. K.
Dokania, "Random representations outperform online continually learned representations", NeurIPS
2024; Y. Chen, A. Wiesel, Y. C. Eldar, A. O. Hero, "Shrinkage algorithms for MMSE covariance
estimation", IEEE TSP 58(10), 2010.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float, Int

from clinit.headtrain.heads.array import beside, float64_of, namespace
from clinit.headtrain.heads.closed.interface import (
    Arrival,
    ClosedForm,
    Solution,
    StoredHead,
    linear_scores,
)
from clinit.headtrain.heads.closed.moments import ClassMoments, FeatureMap, grown, median_gamma
from clinit.headtrain.heads.closed.settings import KldaConfig, SldaConfig
from clinit.headtrain.heads.closed.solved import rule_out
from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.start.new_rows import discriminants_of, towards_identity
from clinit.headtrain.heads.statistics.moments import add_by_class, add_products, cut, symmetric
from clinit.observer import Progressed


class Slda(ClosedForm):
    """Running class means and a running covariance; memory O(d^2 + C d)."""

    def __init__(self, config: SldaConfig, zeros: Float[Any, " dim"]) -> None:
        super().__init__(zeros)
        dim = zeros.shape[0]
        self._shrinkage = config.shrinkage
        self._counts = np.zeros(0, dtype=np.int64)
        self._means = self._rows.weight
        self._lower = beside(zeros, np.zeros((dim, dim))).T
        """t S; on the CPU only its lower half."""

    @property
    def covariance(self) -> Float[Any, "dim dim"]:
        """S."""
        return symmetric(self._lower) / max(1, int(self._counts.sum()))

    def learn(self, arrival: Arrival) -> Solution:
        """Update by the rows in their order; learn the base as a whole."""
        with arrival.watch.phase("statistics"):
            self._means = grown(self._means, arrival.num_classes)
            self._counts = grown(self._counts, arrival.num_classes)
            if arrival.task == 0:
                self._begin(arrival)
                return Solution()
            for rows, labels in cut(arrival.features, arrival.labels):
                self._stream(float64_of(rows), labels)
        with arrival.watch.phase("solve"):
            system = towards_identity(self.covariance, self._shrinkage)
            self._rows = rule_out(discriminants_of(self._means, system), self._counts > 0)
        return Solution()

    def _begin(self, arrival: Arrival) -> None:
        """Learn the base: class means, and the covariance about them with shrinkage."""
        for rows, labels in cut(arrival.features, arrival.labels):
            add_by_class(self._means, float64_of(rows), labels)
        self._counts = np.bincount(arrival.labels, minlength=arrival.num_classes)
        counts = np.maximum(self._counts, 1).astype(np.float64)
        self._means = self._means / beside(self._means, counts)[:, None]
        for rows, labels in cut(arrival.features, arrival.labels):
            of_class = beside(self._means, labels)
            centred = float64_of(rows) - namespace(rows).take(self._means, of_class, axis=0)
            self._lower = add_products(self._lower, centred)
        if (base := arrival.statistics) is not None:
            self._counts = base.totals
            self._means = beside(self._means, base.class_means)
            self._lower = beside(self._means, self._counts.sum() * base.within_covariance)
        if total := int(self._counts.sum()):
            covariance = symmetric(self._lower) / total
            weight = oracle_weight(covariance, total)
            self._lower = total * towards_identity(covariance, weight, mean_variance(covariance))
            # The matrix is symmetric. Transposed into Fortran order, because BLAS adds in place
            # only then.
            self._lower = self._lower.T

    def _stream(self, rows: Float[Any, "rows dim"], labels: Int[np.ndarray, " rows"]) -> None:
        """Update covariance and means by a block of rows in their order."""
        xp = namespace(rows)
        seen = int(self._counts.sum()) + np.arange(len(labels))
        residuals, weights = [], []
        for label in np.unique(labels):
            places = np.flatnonzero(labels == label)
            own = xp.take(rows, beside(rows, places), axis=0)
            before = int(self._counts[label])
            # For each row, the sum of all earlier rows of its class.
            sums = xp.cumulative_sum(own, axis=0) - own + before * self._means[label, :]
            numbers = beside(rows, np.maximum(before + np.arange(len(places)), 1.0))
            residuals.append(own - sums / numbers[:, None])
            weights.append(seen[places] / (seen[places] + 1))
            total = sums[-1, :] + own[-1, :]
            self._means[label, :] = total / (before + len(places))
            self._counts[label] += len(places)
        scale = beside(rows, np.sqrt(np.concatenate(weights)))[:, None]
        self._lower = add_products(self._lower, xp.concat(residuals) * scale)


def oracle_weight(covariance: Float[Any, "dim dim"], rows: int) -> float:
    """Return the weight of the mean variance in oracle approximating shrinkage.

    Eq. 23 of Chen et al.

    Args:
        covariance: Sum of outer products of centred rows, divided by `rows`.
        rows: Number of rows.
    """
    mean = mean_variance(covariance)
    square = float(namespace(covariance).mean(covariance**2))
    apart = (rows + 1) * (square - mean**2 / covariance.shape[0])
    return 1.0 if apart == 0 else min(1.0, (square + mean**2) / apart)


def mean_variance(covariance: Float[Any, "dim dim"]) -> float:
    """Return the mean of the diagonal."""
    return float(namespace(covariance).linalg.trace(covariance)) / int(covariance.shape[0])


class Klda(ClosedForm):
    """Class means and one covariance for each map; memory O(E (D^2 + C D))."""

    def __init__(self, config: KldaConfig, zeros: Float[Any, " dim"], *, seed: int) -> None:
        super().__init__(zeros)
        self._config, self._zeros, self._seed = config, zeros, seed
        self._maps: tuple[FeatureMap, ...] = ()
        """Drawn when the first rows arrive, because these rows set the width of the kernel."""
        self._moments = tuple(ClassMoments.like(zeros, config.width) for _ in range(config.members))
        self._members: tuple[Rows, ...] = ()
        self.block_values = config.width

    def learn(self, arrival: Arrival) -> Solution:
        """Add the rows; solve unless they belong to the base."""
        with arrival.watch.phase("statistics"):
            if not self._maps and len(arrival.labels):
                self._maps = self._drawn(arrival)
            for moments in self._moments:
                moments.grow(arrival.num_classes)
            for feature_map, moments in zip(self._maps, self._moments, strict=False):
                moments.add_mapped(arrival.features, arrival.labels, feature_map, arrival.observer)
        if arrival.task == 0:
            return Solution()
        with arrival.watch.phase("solve"):
            arrival.observer(Progressed("solving for the head", 0, 1))
            self._members = tuple(self._discriminants(moments) for moments in self._moments)
        return Solution()

    def scores(self, features: Float[Any, "rows dim"]) -> Float[Any, "rows classes"]:
        """Return the discriminants; with several maps, the log of the mean probability."""
        members = [
            linear_scores(rows, feature_map(features))
            for feature_map, rows in zip(self._maps, self._members, strict=True)
        ]
        if len(members) == 1:
            return members[0]
        total = sum(_softmax(member) for member in members)
        # A class of probability zero in all members must not become a logarithm of zero.
        tiny = float(np.finfo(np.float32).tiny)
        return namespace(total).log(total / len(members) + tiny)

    def head(self) -> StoredHead | None:
        """Return the discriminants of the random features; None with several maps."""
        if len(self._members) > 1:
            return None
        return StoredHead(self._members[0], self._maps[0].description)

    def _drawn(self, arrival: Arrival) -> tuple[FeatureMap, ...]:
        gamma = self._config.gamma
        if isinstance(gamma, str):
            gamma = median_gamma(arrival.features, self._seed)
        shape = self._zeros.shape[0], self._config.width
        return tuple(
            FeatureMap.rff(*shape, gamma=gamma, seed=self._seed, member=member).beside(self._zeros)
            for member in range(self._config.members)
        )

    def _discriminants(self, moments: ClassMoments) -> Rows:
        covariance = moments.within_covariance
        weight = self._config.shrinkage
        if isinstance(weight, str):
            weight = oracle_weight(covariance, int(moments.counts.sum()))
        # If no row differs from its class mean, any multiple of I gives the same order.
        system = towards_identity(covariance, weight, mean_variance(covariance) or 1.0)
        return rule_out(discriminants_of(moments.means, system), moments.counts > 0)


def _softmax(logits: Float[Any, "rows classes"]) -> Float[Any, "rows classes"]:
    xp = namespace(logits)
    powers = xp.exp(logits - xp.max(logits, axis=1, keepdims=True))
    return powers / xp.sum(powers, axis=1, keepdims=True)
