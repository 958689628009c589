"""How the heads of a bank start a task: with initialised new rows, or solved as a whole."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import numpy as np
from jaxtyping import Float, Int

from clinit.headtrain.config import HeadConfig
from clinit.headtrain.init import Initialisation, LambdaCurve, NewClasses, Rows, initialise
from clinit.headtrain.init.config import READ_NO_STATISTICS
from clinit.headtrain.lambda_curve import lambda_curve
from clinit.headtrain.methods import ClosedMethod, Method
from clinit.headtrain.statistics import ClassStatistics
from clinit.headtrain.stream import Task

Value = TypeVar("Value")


class Once(Generic[Value]):
    """A value computed at its first use, and the seconds that it took."""

    def __init__(self, compute: Callable[[], Value]) -> None:
        self._compute = compute
        self._values: list[Value] = []
        self.seconds = 0.0

    def __call__(self) -> Value:
        """Return the value."""
        if not self._values:
            started = time.perf_counter()
            self._values.append(self._compute())
            self.seconds = time.perf_counter() - started
        return self._values[0]


class TaskStart:
    """What the heads share at the start of a task.

    Statistics and the curve of lambda are computed once, but count in the time of each head
    that needs them: alone it would have had to compute them too.
    """

    def __init__(
        self,
        task: Task,
        features: Float[np.ndarray, "rows dim"],
        labels: Int[np.ndarray, " rows"],
        method: Method,
        chosen: Callable[[LambdaCurve], None],
    ) -> None:
        """`chosen` is told the curve by which lambda is chosen, where it is."""
        self._task = task
        self._features = features
        self._labels = labels
        self._closed = method if isinstance(method, ClosedMethod) else None
        self._chosen = chosen
        self.statistics = Once(self._statistics)
        self.curve = Once(self._curve)

    def start(self, config: HeadConfig, head: Rows) -> tuple[Initialisation, float]:
        """Return the rows that a head starts with, up to its last seen one; and its seconds.

        They are the task's new rows, or all rows of a head that is solved.
        """
        needed = self._needed(config)
        for each in needed:
            each()
        started = time.perf_counter()
        if self._closed is not None:
            start = self._solved(config, self._closed)
        else:
            start = initialise(
                config.start(),
                NewClasses(self._features, self._labels, head, self._task.start, self._task.stop),
                statistics=self.statistics() if self.statistics in needed else None,
                curve=self.curve() if self.curve in needed else None,
            )
        seconds = time.perf_counter() - started
        return start, seconds + sum(each.seconds for each in needed)

    def _needed(self, config: HeadConfig) -> list[Once[Any]]:
        reads_lam = "lam" in self._closed.reads if self._closed else config.init == "least-square"
        chooses = reads_lam and config.lam == "auto"
        if self._closed is None and config.init in READ_NO_STATISTICS:
            return []
        if config.init == "class-mean" and config.class_mean == "unit" and self._closed is None:
            return []
        return [self.statistics, self.curve] if chooses else [self.statistics]

    def _solved(self, config: HeadConfig, method: ClosedMethod) -> Initialisation:
        if "lam" not in method.reads:
            return Initialisation(method.solve(self.statistics(), 0.0))
        curve = self.curve() if config.lam == "auto" else None
        lam = curve.best if curve is not None else float(config.lam)
        return Initialisation(method.solve(self.statistics(), lam), lam=lam, curve=curve)

    def _statistics(self) -> ClassStatistics:
        return ClassStatistics.of(self._features, self._labels, num_classes=self._task.stop)

    def _curve(self) -> LambdaCurve:
        judged = slice(0 if self._closed else self._task.start, self._task.stop)
        curve = lambda_curve(self._features, self._labels, self._task.stop, classes=judged)
        self._chosen(curve)
        return curve
