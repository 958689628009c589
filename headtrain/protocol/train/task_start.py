"""Start of a task for heads of a bank: initialise the new rows of a head, or solve all its rows.

A solved head is computed from the data of all classes seen so far, and is not trained.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
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
from clinit.headtrain.heads.start.calibrate import together
from clinit.headtrain.heads.start.initialise import initialise, initialising
from clinit.headtrain.heads.start.new_rows import Drawn, NewClasses
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
    drawn: Drawn | None = None
    """How rows of old classes came about that were drawn, if any."""

    def __post_init__(self) -> None:
        """Begin without shared results."""
        self._watch = Stopwatch(self.device)
        self._shared: dict[str, Any] = {}
        self._needed: list[str] = []
        """The shared results that the present start needs."""

    def start(
        self, study: Study, head: Rows, near: float | None = None
    ) -> tuple[Initialisation, Spent]:
        """Return the new rows of one head, or all rows of a solved head, and seconds per phase."""
        return self.start_all([study], lambda _: head, [near])[0]

    def start_all(
        self, studies: Sequence[Study], head: Callable[[int], Rows], nears: Sequence[float | None]
    ) -> list[tuple[Initialisation, Spent]]:
        """Do the same for all heads of a bank; equal starts go on side by side.

        Each of them is charged for an equal part of the time. A search for lambda starts at the
        lambda of the previous task of the head (`nears`).
        """
        found: dict[int, tuple[Initialisation, Spent]] = {}
        equal: dict[tuple[Start, str], list[int]] = defaultdict(list)
        for index, study in enumerate(studies):
            start = study.start if self.task.start or self.solve is not None else FIRST
            equal[start, study.training.loss].append(index)
        for key, places in equal.items():
            self._needed = ["features"]
            if self.solve is not None:
                found |= dict.fromkeys(places, self._solved(studies[places[0]], self.solve))
            elif key[0].init == "random":
                new = self.task.start, self.task.stop
                found |= {i: (Initialisation(head(i).between(*new)), {}) for i in places}
            elif self.starts is None:
                heads = [(head(i), nears[i]) for i in places]
                found |= zip(places, self._initialised(*key, heads), strict=True)
            else:
                known = self.starts.get(key)
                one, seconds = known or self._initialised(*key, [(head(places[0]), None)])[0]
                self.starts[key] = replace(one, left_out=None), seconds  # it keeps the features
                found |= dict.fromkeys(places, (one, seconds))
        return [found[index] for index in range(len(studies))]

    @property
    def features(self) -> FeatureRows:
        """The features of `seen`."""
        return self._read[0]

    @cached_property
    def _read(self) -> tuple[FeatureRows, Int[np.ndarray, " rows"] | None]:
        with self._watch.phase("features"):
            return self.read(), self.groups()

    def _initialised(
        self, init: Start, loss: str, heads: Sequence[tuple[Rows, float | None]]
    ) -> list[tuple[Initialisation, Spent]]:
        (features, groups), statistics, path = self._read, None, None
        new = self.task.start, self.task.stop, self.num_base, groups, self.drawn
        given = [(NewClasses(features, self.seen.labels, head, *new), near) for head, near in heads]
        if init.reads_statistics and self.drawn is not None:
            of_one = given[0][0].statistics
            statistics = self._once(f"statistics {init.weighting}", of_one, init.weighting)
        elif init.reads_statistics:
            statistics = self.statistics(init.weighting)
        if init.chooses_lambda and given[0][0].guessed is None:
            path = self._once(f"lambda {init.weighting}", LambdaPath.of, statistics)
        watch, whole = Stopwatch(self.device), Stopwatch()
        told = dict[str, Any](loss=loss, statistics=statistics, path=path, watch=watch, known={})
        starts = together([initialising(init, data, near=near, **told) for data, near in given])
        # The phases of several heads overlap.
        share = whole.total / (sum(watch.seconds.values()) * len(heads))
        seconds = self._with_shared(watch, share)
        kind = None if self.task.start else f"{init.init}, {init.scale}"
        repeats = count_repeats(self.seen.labels, groups)
        return [(replace(start, init=kind, repeats=repeats), seconds) for start in starts]

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
        if not (np.bincount(one_of_each(labels, groups)) > 1).any():
            raise StatisticsError(
                "lambda cannot be chosen: no class has two rows, one to fit and one to leave out",
                remedy="Give a number (the paper: 0.05) instead of `auto`.",
            )
        return leave_one_out_curve(features, labels, self.statistics(weighting), groups=groups)

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

    def _with_shared(self, own: Stopwatch, share: float = 1.0) -> Spent:
        shared = {name.split()[0]: self._watch.seconds[name] for name in self._needed}
        return {
            phase: shared.get(phase, 0.0) + share * own.seconds.get(phase, 0.0)
            for phase in PHASES
            if phase in shared or phase in own.seconds
        }
