"""Statistics of the earlier classes of a stream, for which each row is read once.

A buffer that keeps all rows contains, at task k, the rows of all k tasks. Summing all of them at
each task would cost k times as much as adding only the new rows to the previous sums.

Statistics of earlier classes, and rows that are drawn from them.

With n_c rows of class c, their mean mu_c and, shared by all classes, the covariance within them,

    Sigma = Ave_c (1 / n_c) sum_{i in c} (h_i - mu_c)(h_i - mu_c)^T / Ave_c (1 - 1 / n_c),

an unbiased estimate if all classes have the same covariance. These are C d + d^2 numbers. A row of
class c is drawn as mu_c + A z with A A^T = Sigma, z ~ N(0, I).

A set of rows is drawn in pairs mu_c + A z, mu_c - A z, so that the mean of the drawn rows of a
class is mu_c exactly. If there are at least d pairs, the z of all classes are whitened together:
the within-class covariance of the drawn rows is then Sigma exactly, and least squares, LDA and
D_LS of the drawn rows match the statistics, whatever the seed.

Sources: G. Zhang, L. Wang, G. Kang, L. Chen, Y. Wei, "SLCA: slow learner with classifier alignment
for continual learning on a pre-trained model", ICCV 2023 (rows from N(mu_c, Sigma_c)); the pairs
are antithetic variates (J. M. Hammersley, K. W. Morton, 1956).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import scipy.linalg
import torch
from jaxtyping import Float, Int

from clinit.headtrain.heads.array import FeatureRows, select, take, to_numpy
from clinit.headtrain.heads.groups import one_of_each
from clinit.headtrain.heads.seeds import Draw, generator
from clinit.headtrain.heads.statistics.class_statistics import ClassStatistics, Weighting, count
from clinit.headtrain.protocol.stream.buffer import Pool, TaskRows, drawn_per_class
from clinit.headtrain.protocol.stream.scenario import Scenario
from clinit.headtrain.protocol.stream.task_plan import TaskPlan
from clinit.headtrain.protocol.train.heads import LabelledRows

LEADING = 16
"""The leading 1/16 of the eigenvectors of Ave z z^T are kept exactly."""


@dataclass(frozen=True, eq=False)
class OldClasses:
    """Statistics of the earlier classes with training rows, in float64 on the host."""

    labels: Int[np.ndarray, " classes"]
    """Head rows of the classes, ascending."""
    means: Float[np.ndarray, "classes dim"]
    root: Float[np.ndarray, "dim dim"]
    """A, symmetric."""
    second: Float[np.ndarray, "dim dim"]
    """Ave h h^T over all rows of the classes, each class counting the same."""

    @classmethod
    def of(cls, statistics: ClassStatistics) -> OldClasses:
        """Derive the fields from class-balanced statistics of all rows of these classes."""
        labels, freedom = np.flatnonzero(statistics.totals), statistics.freedom
        means, within = statistics.class_means, to_numpy(statistics.within_covariance)
        mean = to_numpy(statistics.mean)
        return cls(
            labels=labels,
            means=to_numpy(means)[labels],
            root=root(within / freedom if freedom else 0 * within),
            second=to_numpy(statistics.total_covariance) + np.outer(mean, mean),
        )

    @cached_property
    def leading(self) -> tuple[Float[np.ndarray, "dim_and_1 directions"], float]:
        """P and rho with P P^T + rho I close to Ave z z^T, z = (h, 1), over all rows.

        P contains the scaled eigenvectors of the largest eigenvalues; rho is the mean of all other
        eigenvalues.
        """
        mean = self.means.mean(axis=0)
        of_z = np.block([[self.second, mean[:, None]], [mean, 1.0]])
        size = len(of_z)
        kept = -(-size // LEADING)
        values, vectors = scipy.linalg.eigh(of_z, subset_by_index=(size - kept, size - 1))
        rest = (np.trace(of_z) - values.sum()) / (size - kept)
        return vectors * np.sqrt(np.maximum(values - rest, 0.0)), float(rest)

    @property
    def numbers(self) -> int:
        """Number of stored numbers: C d + d^2."""
        return self.means.size + self.root.size

    def draw(self, random: np.random.Generator) -> tuple[np.ndarray, Int[np.ndarray, " rows"]]:
        """Draw equally many rows of each class; return them (rows, dim), in float32, and labels."""
        classes, dim = self.means.shape
        rows = paired_rows(self.means, self.root, drawn_per_class(classes, dim), random)
        return rows.reshape(-1, dim), np.repeat(self.labels, rows.shape[1])


def paired_rows(
    means: Float[np.ndarray, "classes dim"],
    root: Float[np.ndarray, "dim dim"],
    rows_per_class: int,
    random: np.random.Generator,
) -> Float[np.ndarray, "classes rows dim"]:
    """Draw rows of all classes.

    Args:
        means: Means of the classes.
        root: Symmetric root of the shared covariance.
        rows_per_class: Number of rows, which is rounded up to an even number.
        random: Generator of the draws.
    """
    classes, dim = means.shape
    pairs = -(-rows_per_class // 2)
    noise = whitened(random.standard_normal((classes * pairs, dim)))
    offsets = (noise @ root).reshape(classes, pairs, dim)
    centres = means.astype(np.float64)[:, None, :]
    return np.concatenate([centres + offsets, centres - offsets], axis=1).astype(np.float32)


def whitened(noise: Float[np.ndarray, "pairs dim"]) -> Float[np.ndarray, "pairs dim"]:
    """Return the rows transformed to second moment I; unchanged if fewer than `dim`."""
    pairs, dim = noise.shape
    if pairs < dim:
        return noise
    factor = scipy.linalg.cholesky(noise.T @ noise / pairs, lower=True)
    return np.asarray(scipy.linalg.solve_triangular(factor, noise.T, lower=True).T)


def root(covariance: Float[np.ndarray, "dim dim"]) -> Float[np.ndarray, "dim dim"]:
    """Return the symmetric root of a covariance; eigenvalues that rounding made negative are 0."""
    values, vectors = scipy.linalg.eigh(covariance)
    return np.asarray((vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T)


class RunningStatistics:
    """Class statistics that are updated from one call to the next, if the old rows are the same.

    In every call, the same row number must stand for the same features.
    """

    def __init__(self) -> None:
        self._last: dict[Weighting, tuple[np.ndarray, ClassStatistics]] = {}

    def of(
        self,
        rows: TaskRows,
        features: FeatureRows,
        num_classes: int,
        weighting: Weighting,
        groups: Int[np.ndarray, " rows"] | None = None,
    ) -> ClassStatistics:
        """Return the class statistics of the rows of a task.

        If the old rows are exactly the rows of the previous call, only new rows are summed.

        Args:
            rows: The rows.
            features: Their features, of shape (rows, dim).
            num_classes: Number of classes seen so far, including classes without rows.
            weighting: Kind of average.
            groups: Group of each row; rows of a group repeat each other. In every call, the same
                row number must be in the same group.
        """
        summed = partial(ClassStatistics.of, weighting=weighting)
        seen, last = self._last.get(weighting, (rows.rows, None))
        if last is not None and last.num_classes == num_classes and np.array_equal(seen, rows.rows):
            return last
        old = rows.rows[: rows.num_old]  # each row once, in any order
        if last is not None and np.array_equal(np.sort(seen), np.sort(old)):
            new = np.arange(rows.num_old, len(rows.rows))
            of_new = None if groups is None else groups[new]
            part, labels = select(features, new), rows.labels[new]
            totals = count(one_of_each(labels, of_new), num_classes)
            totals[: last.num_classes] += last.totals
            last = last.beside(take(features, slice(0)))
            added = summed(part, labels, totals=totals, shift=last.shift, groups=of_new)
            found = last.within(totals) + added
        else:
            found = summed(features, rows.labels, num_classes=num_classes, groups=groups)
        self._last[weighting] = rows.rows, found
        return found


class Past:
    """Statistics and rows of the classes seen so far, read at their first use."""

    def __init__(
        self, scenario: Scenario, plan: TaskPlan, device: torch.device, *, seed: int
    ) -> None:
        self._scenario, self._plan, self._device, self._seed = scenario, plan, device, seed
        self._sums = RunningStatistics()
        self._found: tuple[int, OldClasses | None] = (-1, None)

    def statistics(self, tasks: int) -> ClassStatistics:
        """Return the class-balanced statistics of all rows of base and first `tasks` tasks."""
        past, train = self._plan.past(tasks), self._scenario.train
        data = LabelledRows.on(self._device, train.stored(past.rows), past.labels)
        groups, stop = train.groups_of(past.rows), self._scenario.ends[tasks]
        return self._sums.of(past, data.arrays(), stop, "class", groups)

    def before(self, number: int) -> OldClasses | None:
        """Return the statistics of the classes before a task; None if they have no rows."""
        if self._found[0] != number:
            statistics = self.statistics(number - 1)
            known = statistics.totals.any()
            self._found = number, OldClasses.of(statistics) if known else None
        return self._found[1]

    def rows(self, seen: TaskRows) -> LabelledRows:
        """Return the features of the rows of a task, drawn here if the row number is negative."""
        train, drawn = self._scenario.train, int((seen.rows < 0).sum())
        stored, old = seen.rows[drawn:], self.before(seen.number) if drawn else None
        if old is None:
            return LabelledRows.on(self._device, train.features(stored), seen.labels)
        parts = old.draw(generator(self._seed, Draw.PSEUDO_ROWS, seen.number))
        pool = Pool(parts, (train.stored(stored), seen.labels[drawn:]), room=train.room)
        features = pool.features(np.arange(len(seen.rows)))
        return LabelledRows.on(self._device, features, seen.labels)

    def groups(self, rows: TaskRows) -> Int[np.ndarray, " rows"] | None:
        """Return the group of each row; None if no row repeats another. Drawn rows never do."""
        train, drawn = self._scenario.train, int((rows.rows < 0).sum())
        groups = train.groups_of(rows.rows[drawn:])
        if groups is None or not drawn:
            return groups
        return np.concatenate([len(train.labels) + np.arange(drawn), groups])
