"""Start of a task for heads of a bank: initialise the new rows of a head, or solve all its rows.

A solved head is computed from the data of all classes seen so far, and is not trained.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Int

from clinit.errors import StatisticsError
from clinit.headtrain.heads.array import FeatureRows, library, library_for, placed, torch_stream
from clinit.headtrain.heads.closed.methods import Solve
from clinit.headtrain.heads.groups import count_repeats, one_of_each
from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.start.initialise import initialise
from clinit.headtrain.heads.start.new_rows import NewClasses
from clinit.headtrain.heads.start.scale import Initialisation
from clinit.headtrain.heads.start.settings import Start
from clinit.headtrain.heads.statistics.class_statistics import ClassStatistics, Weighting
from clinit.headtrain.heads.statistics.solve import LambdaCurve, LambdaPath, leave_one_out_curve
from clinit.headtrain.protocol.stream.buffer import TaskRows
from clinit.headtrain.protocol.stream.scenario import Task
from clinit.headtrain.protocol.study.study import Study
from clinit.headtrain.protocol.train.past import RunningStatistics
from clinit.machine import Stopwatch

FIRST = Start(init="least-square", scale="calibrated", lam="auto", calibration="leave-one-out")
"""Start of the first task of a stream without base classes, for every `--init`: starts are compared
from the second task on."""
PHASES = ("features", "statistics", "lambda", "solve", "calibrate", "fit")
Shared = TypeVar("Shared")
Spent = dict[str, float]
"""Seconds per phase, for the `PHASES` that ran."""
Starts = dict[tuple[Start, str], tuple[Initialisation, Spent]]
"""Starts of equal heads on the same rows, by settings and loss."""


def warm_up(device: torch.device) -> None:
    """Start an invented task, so that no run's time includes loading CuPy and its kernels."""
    if library_for(device) == "numpy":
        return
    with torch_stream(device):
        features = np.array([[0, 1], [0, 2], [3, 0], [4, 0]], dtype=np.float32)
        weight, bias = (placed(np.ones(shape), device) for shape in ((2, 2), 2))
        labels, head = np.array([0, 0, 1, 1]), Rows(weight, bias)
        for init in ("least-square", "class-mean"):
            initialise(Start(init=init), NewClasses(placed(features, device), labels, head, 1, 2))


@dataclass(eq=False)
class TaskStart:
    """Work that heads share at the start of a task.

    Features, statistics and the curve of lambda are computed once, at their first use. Their time
    counts for every head that needs them, because a single run would have to compute them too.
    """

    task: Task
    """The task whose classes arrive."""
    num_base: int
    """Number of rows of the base head or, without base classes, of the first task."""
    seen: TaskRows
    """Old and new data rows that the start may use."""
    read: Callable[[], FeatureRows]
    """Returns the features of `seen`; not called for random rows."""
    groups: Callable[[], Int[np.ndarray, " rows"] | None]
    """Returns the group of each row of `seen`; None if no rows repeat each other."""
    solve: Solve | None
    """Solves the whole head; None if new rows are initialised."""
    device: torch.device
    """Device of the timed work."""
    summed: RunningStatistics = field(default_factory=RunningStatistics)
    """Statistics of the rows summed so far."""
    starts: Starts | None = None
    """Starts of the same heads on `seen`, by this bank or an earlier one; None
    where heads differ, as they do after the first task."""

    def __post_init__(self) -> None:
        """Begin without shared results."""
        self._watch = Stopwatch(self.device)
        self._shared: dict[str, Any] = {}
        self._needed: list[str] = []
        """The shared results that the present start needs."""

    def start(
        self, study: Study, head: Rows, near: float | None = None
    ) -> tuple[Initialisation, Spent]:
        """Return the new rows of a head, or all rows of a solved head, and seconds per phase.

        A search for lambda starts at `near`, the lambda of the previous task of this head.
        """
        self._needed = ["features"]
        if self.solve is not None:
            return self._solved(study, self.solve)
        if not self.task.start:
            study = replace(study, start=FIRST)
        init, new = study.start, (self.task.start, self.task.stop)
        if init.init == "random":
            return Initialisation(head.between(*new)), {}
        features, groups = self._read
        data = NewClasses(features, self.seen.labels, head, *new, self.num_base, groups)
        if self.starts is None:
            return self._initialised(study, data, near)
        key = init, study.training.loss
        if key in self.starts:
            return self.starts[key]
        start, seconds = self._initialised(study, data, near)
        self.starts[key] = replace(start, left_out=None), seconds  # `left_out` keeps the features
        return start, seconds

    @property
    def features(self) -> FeatureRows:
        """The features of `seen`."""
        return self._read[0]

    @cached_property
    def _read(self) -> tuple[FeatureRows, Int[np.ndarray, " rows"] | None]:
        with self._watch.phase("features"):
            return self.read(), self.groups()

    def _initialised(
        self, study: Study, data: NewClasses, near: float | None
    ) -> tuple[Initialisation, Spent]:
        init, statistics, path = study.start, None, None
        if init.reads_statistics:
            statistics = self.statistics(init.weighting)
        if init.chooses_lambda:
            path = self._once(f"lambda {init.weighting}", LambdaPath.of, statistics)
        watch, loss = Stopwatch(self.device), study.training.loss
        start = initialise(
            init, data, loss=loss, statistics=statistics, path=path, near=near, watch=watch
        )
        if not self.task.start:
            start = replace(start, init=f"{init.init}, {init.scale}")
        start = replace(start, repeats=count_repeats(data.labels, data.groups))
        return start, self._with_shared(watch)

    def _once(self, phase: str, compute: Callable[..., Shared], *given: Any) -> Shared:
        """Return a result that heads share; at first use, compute and time it under `phase`."""
        self._needed.append(phase)
        if phase not in self._shared:
            with self._watch.phase(phase):
                self._shared[phase] = compute(*given)
        shared: Shared = self._shared[phase]
        return shared

    def statistics(self, weighting: Weighting) -> ClassStatistics:
        """Return the class statistics of `seen`."""
        features, groups = self._read
        given = self.seen, features, self.task.stop, weighting, groups
        return self._once(f"statistics {weighting}", self.summed.of, *given)

    def _curve(self, weighting: Weighting) -> LambdaCurve:
        features, groups = self._read
        labels = self.seen.labels
        distinct = labels if groups is None else labels[one_of_each(labels, groups)]
        if not (np.bincount(distinct) > 1).any():
            raise StatisticsError(
                "lambda cannot be chosen: no class has two rows, one to fit and one to leave out",
                remedy="Give a number (the paper: 0.05) instead of `auto`.",
            )
        statistics = self.statistics(weighting)
        return leave_one_out_curve(features, labels, statistics, groups=groups)

    def _solved(self, study: Study, solve: Solve) -> tuple[Initialisation, Spent]:
        idle = study.idle("method")
        weighting: Weighting = "class" if "weighting" in idle else study.start.weighting
        statistics = self.statistics(weighting)
        curve, lam = None, None
        if "lam" not in idle and isinstance(study.start.lam, str):
            curve = self._once(f"lambda {weighting}", self._curve, weighting)
            lam = curve.best
        elif "lam" not in idle:
            lam = study.start.ridge_parameter
        watch = Stopwatch(self.device)
        with watch.phase("solve"):
            rows = solve(statistics, lam or 0.0)
        start = Initialisation(rows, lam=lam, curve=curve, library=library(rows.weight))
        return start, self._with_shared(watch)

    def _with_shared(self, own: Stopwatch) -> Spent:
        shared = {name.split()[0]: self._watch.seconds[name] for name in self._needed}
        return {
            phase: shared.get(phase, 0.0) + own.seconds.get(phase, 0.0)
            for phase in PHASES
            if phase in shared or phase in own.seconds
        }
