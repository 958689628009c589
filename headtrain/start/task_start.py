"""How the heads of a bank start a task: with initialised new rows, or solved as a whole.

Heads that are solved as a whole from all rows of all classes seen so far, and not trained.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Int

from clinit.headtrain.array import (
    FeatureRows,
    beside,
    library,
    library_for,
    namespace,
    placed,
    torch_stream,
)
from clinit.headtrain.rows import NEVER, Rows
from clinit.headtrain.start.initialise import Initialisation, LambdaCurve, NewClasses, initialise
from clinit.headtrain.start.new_rows import discriminants
from clinit.headtrain.statistics.class_statistics import ClassStatistics, Weighting
from clinit.headtrain.statistics.lambda_curve import lambda_curve
from clinit.headtrain.statistics.solve import LambdaPath, least_squares_head
from clinit.headtrain.stream.scenario import Task
from clinit.headtrain.study import Start, Study
from clinit.stopwatch import Stopwatch


@runtime_checkable
class SolvedHead(Protocol):
    """A way to solve for a head."""

    def solve(self, statistics: ClassStatistics, lam: float) -> Rows:
        """Return the head over all classes of `statistics`; not every method reads `lam`."""
        ...


def rule_out_absent(head: Rows, statistics: ClassStatistics) -> Rows:
    """Give the rows of classes without data weight 0 and a bias that no feature overcomes."""
    return rule_out(head, statistics.totals > 0)


def rule_out(head: Rows, has_data: Bool[np.ndarray, " classes"]) -> Rows:
    """Do this to the rows of all classes but those that have data."""
    xp = namespace(head.weight)
    present = beside(head.weight, has_data)
    return Rows(
        weight=xp.where(present[:, None], head.weight, 0.0),
        bias=xp.where(present, head.bias, NEVER),
    )


@dataclass(frozen=True, slots=True)
class NearestClassMean:
    """The class whose mean is nearest to the feature.

        -1/2 |h - mu_c|^2 = mu_c.h - 1/2 |mu_c|^2 - 1/2 |h|^2,

    and the last term is the same for all classes: a linear head.

    Source: T. Mensink, J. Verbeek, F. Perronnin, G. Csurka, "Distance-based image
    classification: generalizing to new classes at near-zero cost", IEEE TPAMI 35(11), 2013.
    """

    def solve(self, statistics: ClassStatistics, lam: float) -> Rows:
        """Return (mu_c, -1/2 |mu_c|^2) for each class."""
        means = statistics.class_means
        squares = namespace(means).sum(means**2, axis=1)
        return rule_out_absent(Rows(means, -0.5 * squares), statistics)


@dataclass(frozen=True, slots=True)
class Ridge:
    """Least squares with one-hot targets: the head of Eq. 3 of the paper, all rows written."""

    def solve(self, statistics: ClassStatistics, lam: float) -> Rows:
        """Return W_LS; the row of a class without data is zero: it predicts "not this one"."""
        return least_squares_head(statistics, lam)


@dataclass(frozen=True, slots=True)
class Lda:
    """Linear discriminants with shrinkage, for equal priors: `clinit.headtrain.start.new_rows`."""

    def solve(self, statistics: ClassStatistics, lam: float) -> Rows:
        """Return the discriminant of each class."""
        return rule_out_absent(discriminants(statistics), statistics)


SOLVED: Mapping[str, SolvedHead] = {"ncm": NearestClassMean(), "ridge": Ridge(), "lda": Lda()}
"""By the name of their method."""


PHASES = ("features", "statistics", "lambda", "solve", "calibrate", "fit")
Spent = dict[str, float]
"""Seconds by what they were spent on: those of `PHASES` that there were."""


def warm_up(device: torch.device) -> None:
    """Start a made task, so that no run is charged for loading CuPy and compiling its kernels."""
    if library_for(device) == "numpy":
        return
    with torch_stream(device):
        start_made_task(partial(placed, device=device))


def start_made_task(place: Callable[[np.ndarray], Any]) -> list[Initialisation]:
    """Initialise a class of two beside a class of two, each in some ways; `place` makes arrays."""
    features = place(np.array([[0, 1], [0, 2], [3, 0], [4, 0]], dtype=np.float32))
    head = Rows(place(np.array([[0.0, 1.0], [0.5, 0.5]])), place(np.zeros(2)))
    data = NewClasses(features, np.array([0, 0, 1, 1]), head, 1, 2)
    return [initialise(Start(init=init), data) for init in ("least-square", "class-mean")]


class TaskStart:
    """What the heads share at the start of a task.

    Features, statistics and the curve of lambda are computed once, at their first use, but count
    in the time of each head that needs them: alone it would have had to compute them too.
    """

    def __init__(
        self,
        task: Task,
        num_base: int,
        features: Callable[[], FeatureRows],
        labels: Int[np.ndarray, " rows"],
        solved: SolvedHead | None,
        device: torch.device,
        chosen: Callable[[LambdaCurve], None],
        summed: Callable[[FeatureRows, Weighting], ClassStatistics] | None = None,
        *,
        groups: Callable[[], Int[np.ndarray, " rows"] | None] = lambda: None,
        heads_alike: bool = False,
    ) -> None:
        """Take what the start may look at.

        Args:
            task: Whose classes arrive.
            num_base: Rows that came with the head.
            features: Returns those of the old and new rows that may be looked at; it is called
                where rows are computed, and not for random rows.
            labels: Labels of these rows.
            solved: How the head is solved; None where rows are initialised.
            device: Where the work that is timed is done.
            chosen: Called with the curve by which lambda is chosen, where it is.
            summed: Returns the class statistics of these features; default: sums all rows.
            groups: Returns the groups of rows that repeat each other, None if none does.
            heads_alike: Whether all heads have the same rows yet, as they have before the first
                task: those that start in the same way then start with the same rows.
        """
        self._task = task
        self._num_base = num_base
        self._read = features
        self._labels = labels
        self._closed = solved
        self._device = device
        self._chosen = chosen
        self._summed = summed or self._sum
        self._find_groups = groups
        self._heads_alike = heads_alike
        self._starts: dict[tuple[Start, str, float], tuple[Initialisation, Spent]] = {}
        self._watch = Stopwatch(device)
        self._statistics: dict[Weighting, ClassStatistics] = {}
        self._curves: dict[Weighting, LambdaCurve] = {}
        self._paths: dict[Weighting, LambdaPath] = {}

    def start(self, study: Study, head: Rows) -> tuple[Initialisation, Spent]:
        """Return the rows that a head starts with, up to its last seen one; and its seconds.

        They are the task's new rows, or all rows of a head that is solved.
        """
        if self._closed is not None:
            return self._solved(study, self._closed)
        init = study.start
        if init.init == "random":
            return Initialisation(head.between(self._task.start, self._task.stop)), {}
        data = NewClasses(
            self.features,
            self._labels,
            head,
            self._task.start,
            self._task.stop,
            self._num_base,
            self._groups,
        )
        if not self._heads_alike:
            return self._initialised(study, data)
        # How far training goes matters to rows of single images alone.
        key = init, study.training.loss, 0.0 if data.has_pairs else _travel(study)
        if key not in self._starts:
            self._starts[key] = self._initialised(study, data)
        return self._starts[key]

    def _initialised(self, study: Study, data: NewClasses) -> tuple[Initialisation, Spent]:
        init = study.start
        statistics, needed = None, ["features"]
        if init.reads_statistics:
            statistics = self.statistics(init.weighting)
            needed.append(f"statistics {init.weighting}")
        if init.chooses_lambda and init.lam != "held-out":
            self._path(init.weighting)
            needed.append(f"lambda {init.weighting}")
        watch = Stopwatch(self._device)
        start = initialise(
            init,
            data,
            loss=study.training.loss,
            travel=_travel(study),
            statistics=statistics,
            path=lambda: self._path(init.weighting),
            watch=watch,
        )
        if start.curve is not None:
            self._chosen(start.curve)
        return start, self._with_shared(needed, watch)

    def _path(self, weighting: Weighting) -> LambdaPath:
        if weighting not in self._paths:
            statistics = self.statistics(weighting)
            with self._watch.phase(f"lambda {weighting}"):
                self._paths[weighting] = LambdaPath.of(statistics)
        return self._paths[weighting]

    def statistics(self, weighting: Weighting = "class") -> ClassStatistics:
        """Return the class statistics of the rows that the start looks at."""
        if weighting not in self._statistics:
            features = self.features
            with self._watch.phase(f"statistics {weighting}"):
                self._statistics[weighting] = self._summed(features, weighting)
        return self._statistics[weighting]

    def _sum(self, features: FeatureRows, weighting: Weighting) -> ClassStatistics:
        return ClassStatistics.of(
            features,
            self._labels,
            num_classes=self._task.stop,
            weighting=weighting,
            groups=self._groups,
        )

    def _curve(self, weighting: Weighting) -> LambdaCurve:
        if weighting not in self._curves:
            features = self.features
            with self._watch.phase(f"lambda {weighting}"):
                self._curves[weighting] = lambda_curve(
                    features,
                    self._labels,
                    self._task.stop,
                    weighting=weighting,
                    groups=self._groups,
                )
            self._chosen(self._curves[weighting])
        return self._curves[weighting]

    @cached_property
    def _groups(self) -> Int[np.ndarray, " rows"] | None:
        with self._watch.phase("features"):
            return self._find_groups()

    @cached_property
    def features(self) -> FeatureRows:
        """The features of the rows that the start looks at."""
        with self._watch.phase("features"):
            return self._read()

    def _solved(self, study: Study, method: SolvedHead) -> tuple[Initialisation, Spent]:
        idle = study.idle("method")
        weighting: Weighting = "class" if "weighting" in idle else study.start.weighting
        statistics = self.statistics(weighting)
        needed = ["features", f"statistics {weighting}"]
        curve, lam = None, None
        if "lam" not in idle:
            if isinstance(study.start.lam, str):
                curve = self._curve(weighting)
                needed.append(f"lambda {weighting}")
            lam = curve.best if curve is not None else study.start.ridge_parameter
        watch = Stopwatch(self._device)
        with watch.phase("solve"):
            rows = method.solve(statistics, lam or 0.0)
        start = Initialisation(rows, lam=lam, curve=curve, library=library(rows.weight))
        return start, self._with_shared(needed, watch)

    def _with_shared(self, needed: list[str], own: Stopwatch) -> Spent:
        shared = {name.split()[0]: self._watch.seconds[name] for name in needed}
        return {
            phase: shared.get(phase, 0.0) + own.seconds.get(phase, 0.0)
            for phase in PHASES
            if phase in shared or phase in own.seconds
        }


def _travel(study: Study) -> float:
    """Return how far training can move a weight: AdamW moves it by about the learning rate."""
    updates = study.stream.iterations
    return updates * study.training.rate if updates else 0.0
