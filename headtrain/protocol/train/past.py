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

Anchors: penalties that hold a head near its start while it learns a task.

With W_0, b_0 all rows of the head when the training of the task begins, and s the strength, this
penalty is added to the loss of a batch:

    moments    s/2 Ave |(W - W_0) h + b - b_0|^2

It averages over features h of earlier classes: it is the mean squared change of all logits. With
z = (h, 1), the change (D, d) = (W - W_0, b - b_0) and Ave z z^T approximated by P P^T + rho I, its
gradient is

    s [(D, d) P P^T + rho (D, d)].

It takes the same time for any number of averaged rows. P contains the sixteenth of the eigenvectors
with the largest eigenvalues; rho is the mean of all other eigenvalues. With all eigenvectors, a
step would take half as long again and lead to the same accuracy.

Source: It is the penalty of a Kronecker-factored Laplace approximation (H. Ritter, A. Botev,
D. Barber, "Online structured Laplace approximations for overcoming catastrophic forgetting",
NeurIPS 2018) for one layer, with the identity for the factor of its outputs.

The strength can be chosen by the loss on rows that are set aside. A fifth of the rows of each new
class (never its last row) and a fifth of the stored old rows are set aside, in whole groups of rows
that repeat each other. For each of `STRENGTHS`, the head starts from the remaining rows and is
trained on them, always on the same batches. The strength with the least training loss on the set-
aside rows, the *judges*, is used to train the head on all rows. In this loss, each class seen
counts the same; classes with set-aside rows represent old classes without any. If no old row is
stored, rows drawn from the statistics of the old classes are the judges of old classes. No test row
is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import scipy.linalg
import torch
from jaxtyping import Float, Int

from clinit.headtrain.heads.array import FeatureRows, select, take, to_numpy
from clinit.headtrain.heads.groups import Groups, Labels, Mask, held_out_rows, one_of_each
from clinit.headtrain.heads.seeds import Draw, generator
from clinit.headtrain.heads.statistics.class_statistics import ClassStatistics, Weighting, count
from clinit.headtrain.protocol.stream.buffer import Pool, TaskRows, drawn_per_class
from clinit.headtrain.protocol.stream.scenario import Scenario
from clinit.headtrain.protocol.stream.task_plan import TaskPlan
from clinit.headtrain.protocol.train.heads import Bias, LabelledRows, Weight

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
        pairs = -(-drawn_per_class(classes, dim) // 2)
        noise = whitened(random.standard_normal((classes * pairs, dim)))
        offsets = (noise @ self.root).reshape(classes, pairs, dim)
        centres = self.means[:, None, :]
        rows = np.concatenate([centres + offsets, centres - offsets], axis=1)
        return rows.reshape(-1, dim).astype(np.float32), np.repeat(self.labels, 2 * pairs)


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
        groups: Groups | None = None,
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

    def __init__(self, scenario: Scenario, plan: TaskPlan, device: torch.device, seed: int) -> None:
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
            self._found = number, OldClasses.of(statistics) if statistics.totals.any() else None
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


@dataclass(frozen=True, slots=True)
class Anchor:
    """The penalty that holds one head, and its strength."""

    strength: float
    """s, >= 0."""
    old: OldClasses
    """Classes whose features it averages over."""


Anchors = Sequence[Anchor | None]
"""The penalty that holds each head near its state before the task; None: no penalty."""


class Hold:
    """Adds the gradient of an anchor to the gradients of heads that share it."""

    def __init__(
        self, anchor: Anchor, head: tuple[Weight, Bias], gradient: tuple[Weight, Bias]
    ) -> None:
        """Copy the present rows as W_0, b_0.

        Args:
            anchor: The penalty.
            head: Weight and bias of all heads, the rows of one head after another.
            gradient: Gradients of weight and bias, to which `pull` adds.
        """
        weight, bias = head
        self._strength, self._head, self._gradient = anchor.strength, head, gradient
        self._start = weight.clone(), bias.clone()
        self._change = weight.new_empty(len(bias), weight.shape[1] + 1)
        """D and, in the last column, d."""
        leading, rest = anchor.old.leading
        self._leading = torch.from_numpy(leading).to(weight)
        self._along = weight.new_empty(len(bias), leading.shape[1])
        self._strength_of_rest = anchor.strength * rest

    def pull(self) -> None:
        """Add the gradient of the penalty, without waiting for the device."""
        weight, bias = self._change[:, :-1], self._change[:, -1]
        of_weight, of_bias = self._gradient
        torch.sub(self._head[0], self._start[0], out=weight)
        torch.sub(self._head[1], self._start[1], out=bias)
        of_weight.add_(weight, alpha=self._strength_of_rest)
        of_bias.add_(bias, alpha=self._strength_of_rest)
        along = torch.mm(self._change, self._leading, out=self._along)
        of_weight.addmm_(along, self._leading[:-1].t(), alpha=self._strength)
        of_bias.addmv_(along, self._leading[-1], alpha=self._strength)


STRENGTHS = (0.0, 0.01, 0.1, 1.0, 10.0)
ASIDE = 0.2


def set_aside(data: TaskRows, past: Past, seed: int) -> Mask:
    """Mark the stored rows of a task that are set aside as judges."""
    num_drawn, is_old = int((data.rows < 0).sum()), np.arange(len(data.labels)) < data.num_old
    groups = past.groups(data)
    groups = np.arange(len(is_old)) if groups is None else groups
    classes, random = np.where(is_old, -1, data.labels), generator(seed, Draw.ANCHOR, data.number)
    aside = held_out_rows(classes[num_drawn:], groups[num_drawn:], ASIDE, random)
    return np.concatenate([np.zeros(num_drawn, dtype=bool), aside])


def judges(data: TaskRows, rows: LabelledRows, aside: Mask, past: Past, seed: int) -> LabelledRows:
    """Return the judges: old rows first.

    Args:
        data: The rows of a task.
        rows: Features and labels of the stored rows of the task.
        aside: Which rows of the task are set aside.
        past: Draws old rows if no old row is set aside.
        seed: Seed of the stream.
    """
    num_drawn = len(aside) - len(rows)
    stored = rows.take(torch.from_numpy(np.flatnonzero(aside[num_drawn:])))
    old = None if aside[: data.num_old].any() else past.before(data.number)
    if old is None:
        return stored
    (random,) = generator(seed, Draw.ANCHOR, data.number).spawn(1)
    drawn = LabelledRows.on(stored.labels.device, *old.draw(random))
    features = torch.cat([drawn.features.to(stored.features.device), stored.features.float()])
    return LabelledRows(features, torch.cat([drawn.labels, stored.labels]))


def class_weights(labels: Labels, start: int, stop: int) -> Float[np.ndarray, " rows"]:
    """Return weights of rows with which all classes seen count the same; the weights add up to 1.

    Classes in [0, start) that have rows share the weight of all classes in [0, start); likewise for
    [start, stop).
    """
    counts = np.bincount(labels, minlength=stop)
    is_old = np.arange(stop) < start
    present = [np.maximum(1, (counts > 0)[side].sum()) for side in (is_old, ~is_old)]
    per_class = np.where(is_old, start / present[0], (stop - start) / present[1]) / stop
    return np.asarray((per_class / np.maximum(counts, 1))[labels])
