"""One run of a sweep: a head's settings and those of the stream it is trained on."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

from clinit.errors import ExperimentError
from clinit.headtrain.config import ExperimentConfig, HeadConfig
from clinit.headtrain.init.config import READ_WEIGHTING
from clinit.headtrain.init.solved import SOLVED
from clinit.headtrain.sweep.grid import Grid, Interval

PLACES = ("device",)
"""Fields that say where a run is computed: another one does not make it another run."""


@dataclass(frozen=True, slots=True)
class Run:
    """Settings of one run; those without an effect have their default."""

    experiment: ExperimentConfig
    head: HeadConfig

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Run:
        """Return the run with these settings, all others at their default.

        Raises:
            ExperimentError: If a value is not one that its field takes.
        """
        try:
            experiment, head = _build(settings)
            idle = _without_effect(experiment, head)
            if idle & settings.keys():
                experiment, head = _build({k: v for k, v in settings.items() if k not in idle})
        except ValueError as error:
            raise ExperimentError(
                str(error), remedy="See `clinit train-head --help` for what each option takes."
            ) from error
        return cls(experiment, head)

    @property
    def config(self) -> dict[str, Any]:
        """All settings by name, as a record holds them."""
        return {**asdict(self.head), **asdict(self.experiment)}

    @property
    def identity(self) -> str:
        """Text that is the same for the same run, wherever it is computed."""
        return _text(self.config)

    @property
    def idle(self) -> set[str]:
        """Settings that change nothing in this run."""
        return _without_effect(self.experiment, self.head)


def identity(config: Mapping[str, Any]) -> str:
    """Return the identity of a run by its recorded settings; what is missing has its default."""
    settings = {k: tuple(v) if isinstance(v, list) else v for k, v in config.items()}
    try:
        return _text({**settings, **Run.of(settings).config})
    except ExperimentError:  # recorded by another version: none of the runs of this one
        return _text(settings)


def _text(config: Mapping[str, Any]) -> str:
    kept = {name: value for name, value in config.items() if name not in PLACES}
    return json.dumps(kept, sort_keys=True, default=str)


def runs_of(grid: Grid) -> Iterator[Run]:
    """Yield the run of every combination of values, the last field varying fastest.

    Raises:
        ExperimentError: If a field takes a range without a count, or a value is not one that
            its field takes.
    """
    choices = []
    for name, choice in grid.items():
        if isinstance(choice, Interval):
            raise ExperimentError(
                f"{name}={choice} does not say how many values",
                remedy=f"Write {name}={choice}5 for five values, or search with --search optuna.",
            )
        choices.append(choice)
    for values in product(*choices):
        yield Run.of(dict(zip(grid, values, strict=True)))


def distinct(runs: Iterable[Run]) -> list[Run]:
    """Return the runs without those that are the same as an earlier one."""
    return list({run.identity: run for run in reversed(list(runs))}.values())[::-1]


def _build(settings: Mapping[str, Any]) -> tuple[ExperimentConfig, HeadConfig]:
    return _make(ExperimentConfig, settings), _make(HeadConfig, settings)


def _make(owner: Any, settings: Mapping[str, Any]) -> Any:
    names = {field.name for field in dataclasses.fields(owner)}
    return owner(**{name: value for name, value in settings.items() if name in names})


def _without_effect(experiment: ExperimentConfig, head: HeadConfig) -> set[str]:
    """Return the fields that change nothing in this run."""
    idle = set()
    if experiment.is_closed:
        reads = SOLVED[experiment.method].reads
        idle |= {field.name for field in dataclasses.fields(head)} - set(reads)
    elif head.init != "least-square":
        idle.add("lam")
    if head.init != "class-mean":
        idle.add("class_mean")
    if not experiment.is_closed and head.init not in READ_WEIGHTING:
        idle.add("weighting")
    if head.init == "random":
        idle |= {"scale", "bias", "init_rows"}
    if experiment.iterations == 0:
        idle |= {"lr", "weight_decay", "precision"}
    return idle
