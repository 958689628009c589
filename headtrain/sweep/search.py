"""Search settings with Optuna, which proposes as many trials at a time as a bank holds.

The study is a SQLite file, which `optuna-dashboard` reads. A trial is a run for each seed of
the grid, its value their mean: seeds are not searched. A search that was killed goes on with
the trials that it had asked for; the sampler is seeded anew for each trial by its number, so
that it proposes what it would have proposed without the interruption. A trial is written as a
whole: it is asked for in memory, given the trials of the file.

SQLite keeps no digests, but the file holds nothing that cannot be checked: a trial carries the
digest of its settings, and its value is that of its records.

Source: T. Akiba, S. Sano, T. Yanase, T. Ohta, M. Koyama, "Optuna: a next-generation
hyperparameter optimization framework", KDD 2019.
"""

from __future__ import annotations

import json
import math
import sqlite3
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clinit.errors import ClinitError, ExperimentError, RecordError
from clinit.files.documents import content_sha256
from clinit.headtrain.groups import groups_of, held_out_rows
from clinit.headtrain.record.info import held_out_manifest
from clinit.headtrain.runs import RunData
from clinit.headtrain.stream.seeds import Draw, generator
from clinit.headtrain.stream.source import Source
from clinit.headtrain.study import Study, Training
from clinit.headtrain.sweep.folder import SweepFolder
from clinit.headtrain.sweep.grid import Grid, Interval, Together, Value, field_named
from clinit.headtrain.sweep.plan import (
    SweepObserver,
    Train,
    distinct,
    plan_sweep,
    run_of,
    run_sweep,
)

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial


STUDY = "study.db"
NAME = "clinit"
ROUNDS = 5
"""Least number of times that a search asks, however many trials a bank could hold."""
_DIGITS = 6
_DIGEST = "sha256"
"""Attribute of a trial: the digest of its settings."""

Measure = Callable[[Path], float | None]
"""Reads the objective out of a record; None where the record has no such value."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchConfig:
    """Settings of a search."""

    trials: int
    """Number of trials, those of earlier calls included; >= 1."""
    objective: str = "acc_all"
    """Name of the objective, stored in the study."""
    maximise: bool = True
    """Whether a larger value is better."""
    seed: int = 0
    """Seed of the sampler."""

    def batch(self, bank_size: int) -> int:
        """Return how many trials to ask for at a time."""
        return max(1, min(bank_size, self.trials // ROUNDS))


@dataclass(frozen=True, slots=True, eq=False)
class Space:
    """What a search varies, what it keeps fixed, and the seeds that each trial is repeated for."""

    varied: Mapping[str, Interval | tuple[Value, ...]]
    fixed: Mapping[str, Value]
    seeds: tuple[Value, ...]

    @property
    def losses(self) -> set[str]:
        """The losses of all runs that the search may propose."""
        choice = self.varied.get("loss", (self.fixed.get("loss", Training().loss),))
        return set(map(str, choice)) if isinstance(choice, tuple) else set()

    @classmethod
    def of(cls, grid: Grid) -> Space:
        """Return the space of a grid.

        Raises:
            ExperimentError: If nothing varies.
        """
        rest: dict[str, Interval | tuple[Value, ...]] = {}
        for name, choice in grid.items():
            if isinstance(choice, Together):
                raise ExperimentError(
                    f"a search varies fields one by one, but {name} are to vary together",
                    remedy="Give each of them values of its own.",
                )
            if name != "seed":
                rest[name] = choice
        fixed = {
            name: choice[0]
            for name, choice in rest.items()
            if isinstance(choice, tuple) and len(choice) == 1
        }
        varied = {name: choice for name, choice in rest.items() if name not in fixed}
        seeds = grid.get("seed", (0,))
        if not varied or not isinstance(seeds, tuple):
            raise ExperimentError(
                "there is nothing to search: no field but the seed has several values",
                remedy="Give a range or a list: lr=1e-4..1e-1:log scale=norm,calibrated.",
            )
        return cls(varied, fixed, seeds)

    def runs(self, params: Mapping[str, Value]) -> list[Study]:
        """Return the runs of a trial, one per seed."""
        settings = {name: _rounded(value) for name, value in params.items()}
        return [run_of({**self.fixed, **settings, "seed": seed}) for seed in self.seeds]

    def distributions(self) -> dict[str, BaseDistribution]:
        """Return the distributions that Optuna draws from: intervals and lists of choices."""
        from optuna.distributions import (
            CategoricalDistribution,
            FloatDistribution,
            IntDistribution,
        )

        found: dict[str, BaseDistribution] = {}
        for name, choice in self.varied.items():
            if not isinstance(choice, Interval):
                found[name] = CategoricalDistribution(choice)
            elif field_named(name).is_integer:
                found[name] = IntDistribution(int(choice.low), int(choice.high), log=choice.log)
            else:
                found[name] = FloatDistribution(choice.low, choice.high, log=choice.log)
        return found

    def content(self) -> dict[str, Any]:
        """Return plain values by which two spaces can be compared."""
        varied = {
            name: str(choice) if isinstance(choice, Interval) else list(choice)
            for name, choice in self.varied.items()
        }
        return {"varied": varied, "fixed": dict(self.fixed), "seeds": list(self.seeds)}


@dataclass(frozen=True, slots=True)
class Found:
    """The best trial."""

    number: int
    params: Mapping[str, Value]
    value: float
    """Objective on the held-out rows, mean over seeds."""
    runs: tuple[Study, ...]
    num_trials: int


def search(
    space: Space,
    config: SearchConfig,
    folder: SweepFolder,
    data: RunData,
    train: Train,
    measure: Measure,
    *,
    study_path: Path,
    batch: int,
    bank_size: int | None = None,
    observer: SweepObserver,
) -> Found:
    """Try settings until there are `config.trials` trials; return the best.

    Args:
        space: What to vary.
        config: Number of trials, objective, seed.
        folder: Where the runs of trials are recorded; what is recorded is not trained again.
        data: The data of the runs; its test rows must be held-out training rows.
        train: Trains banks.
        measure: Reads the objective of a record.
        study_path: The SQLite file, which is made if it is not there.
        batch: Trials that are asked for at a time; a search that goes on keeps its own.
        bank_size: Most runs of a bank; default: what fits into memory.
        observer: Called when runs are recorded.

    Raises:
        ExperimentError: If Optuna is not installed, the study was begun with another space or
            objective, or no trial has a value.
        RecordError: If a record or the study cannot be written.
    """
    with _storage(study_path):
        study = _open_study(study_path, space, config)
        size = _batch_size(study, config, batch)
        trials = study.get_trials()
    _check_trials(trials, space, folder, measure, study_path)
    while True:
        waiting = _next_batch(study, study_path, space, config, size)
        if not waiting:
            break
        runs = distinct(run for trial in waiting for run in space.runs(trial.params))
        plan = plan_sweep(runs, folder, data, bank_size=bank_size)
        run_sweep(plan, folder, train, observer)
        for trial in waiting:
            value = _value(_records(folder, space, trial), measure)
            with _storage(study_path):
                _tell(study, trial, value)
    with _storage(study_path):
        return _best(study, space)


def _batch_size(study: optuna.Study, config: SearchConfig, batch: int) -> int:
    """Return how many trials to ask for at a time; a search that goes on keeps its own."""
    begun: dict[str, int] = study.user_attrs.get("batch", {})
    size = begun.get(str(config.trials))
    if size is None:
        study.set_user_attr("batch", {**begun, str(config.trials): batch})
        return batch
    if not isinstance(size, int) or size < 1:
        raise ValueError(f"a batch of {size!r} trials")
    return size


def _next_batch(
    study: optuna.Study, path: Path, space: Space, config: SearchConfig, size: int
) -> list[FrozenTrial]:
    """Return the trials that wait for a value, filled up to a whole batch."""
    import optuna
    from optuna.samplers import TPESampler
    from optuna.trial import TrialState, create_trial

    distributions = space.distributions()
    with _storage(path):
        for trial in study.get_trials(states=(TrialState.RUNNING,)):
            if trial.params.keys() != distributions.keys():  # a killed search: earlier version
                study.tell(trial.number, state=TrialState.FAIL)
        known = study.get_trials(deepcopy=False)
    some_wait = any(trial.state is TrialState.RUNNING for trial in known)
    whole_batches = len(known) // size
    # A search that was killed at the end of a batch trains that one before it asks for the next.
    batch_is_whole = len(known) % size == 0 and some_wait
    end = size * (whole_batches if batch_is_whole else whole_batches + 1)
    numbers = range(len(known), min(end, config.trials))
    if numbers:
        memory = optuna.create_study(direction=study.direction)
        with _storage(path):  # compares their values with their distributions
            memory.add_trials(known)
    for number in numbers:
        memory.sampler = TPESampler(seed=config.seed * 1_000_003 + number, constant_liar=True)
        asked = memory.ask(distributions)
        trial = create_trial(
            state=TrialState.RUNNING,
            params=asked.params,
            distributions=asked.distributions,
            user_attrs={_DIGEST: content_sha256(asked.params)},
        )
        with _storage(path):
            study.add_trial(trial)
    with _storage(path):
        return study.get_trials(states=(TrialState.RUNNING,))


def _check_trials(
    trials: Sequence[FrozenTrial],
    space: Space,
    folder: SweepFolder,
    measure: Measure,
    path: Path,
) -> None:
    """Compare what a study says with the digests of its settings and with the records.

    Raises:
        RecordError: If a trial is not as it was asked for, or its value is not that of its
            records.
    """
    from optuna.trial import TrialState

    for trial in trials:
        if trial.params.keys() != space.varied.keys():
            continue  # written by an earlier version that was killed while asking
        digest = trial.user_attrs.get(_DIGEST)  # an earlier version wrote none
        if digest is not None and digest != content_sha256(trial.params):
            raise _damaged(path, f"the settings of trial {trial.number} have changed")
        if not trial.state.is_finished():
            continue
        runs = space.runs(trial.params)
        if all(folder.record_of(run) is not None for run in runs):
            value = _value(_records(folder, space, trial), measure)
            state = TrialState.FAIL if value is None else TrialState.COMPLETE
            if (trial.state, trial.value) != (state, value):
                found = f"{trial.value} ({trial.state.name.lower()})"
                raise _damaged(
                    path, f"trial {trial.number} has the value {found}, its runs have {value}"
                )


def _value(records: Sequence[Path], measure: Measure) -> float | None:
    """Return the mean over seeds; None where a run has diverged or has no such value."""
    values = [measure(path) for path in records]
    known = [value for value in values if value is not None and math.isfinite(value)]
    return statistics.fmean(known) if len(known) == len(values) else None


def _tell(study: optuna.Study, trial: FrozenTrial, value: float | None) -> None:
    from optuna.trial import TrialState

    if value is None:
        study.tell(trial.number, state=TrialState.FAIL)
    else:
        study.tell(trial.number, value)


def _best(study: optuna.Study, space: Space) -> Found:
    from optuna.trial import TrialState

    if not (complete := study.get_trials(states=(TrialState.COMPLETE,))):
        raise ExperimentError(
            "no trial of the search has a value: the objective is unknown for all of them",
            remedy="Choose another --objective, or a narrower range of the learning rate.",
        )
    best = study.best_trial
    assert best.value is not None
    runs = tuple(space.runs(best.params))
    return Found(best.number, best.params, best.value, runs, len(complete))


def _open_study(path: Path, space: Space, config: SearchConfig) -> optuna.Study:
    try:
        import optuna
    except ImportError as error:
        raise ExperimentError(
            "--search optuna needs Optuna, which is not installed",
            remedy='Install it: pip install "clinit[search]".',
        ) from error
    if path.is_symlink():  # SQLite would write to its target, or make it
        raise RecordError(f"the study {path} is a link, expected a file", remedy=_REMEDY)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        storage=f"sqlite:///{path}",
        study_name=NAME,
        direction="maximize" if config.maximise else "minimize",
        load_if_exists=True,
    )
    wanted = {**space.content(), "objective": config.objective, "maximise": config.maximise}
    wanted = json.loads(json.dumps({**wanted, "seed": config.seed}))
    begun = study.user_attrs.get("search")
    if begun is None:
        study.set_user_attr("search", wanted)
    elif begun != wanted:
        differing = [name for name in wanted if begun.get(name) != wanted[name]]
        raise ExperimentError(
            f"the study {path} was begun with other settings ({', '.join(differing)})",
            remedy="Give the same grid and objective to continue it, or another --out.",
        )
    if (study.direction.name == "MAXIMIZE") != config.maximise:
        raise _damaged(path, f"its direction is {study.direction.name.lower()}")
    return study


@contextmanager
def _storage(path: Path) -> Iterator[None]:
    """Turn what SQLite and Optuna say of a damaged file or a full disk into one error.

    Optuna raises RuntimeError for tables of another version, ValueError and KeyError for contents.
    """
    try:
        yield
    except ClinitError:
        raise
    except Exception as error:
        from optuna.exceptions import OptunaError
        from sqlalchemy.exc import SQLAlchemyError

        told = (SQLAlchemyError, OptunaError, OSError, RuntimeError, ValueError, KeyError)
        if not isinstance(error, (sqlite3.Error, *told)):
            raise
        cause = getattr(error, "orig", None) or error  # SQLAlchemy adds the whole statement
        why = (str(cause).splitlines() or [type(cause).__name__])[0]
        raise RecordError(
            f"cannot read or write the study {path}: {why}", remedy=_REMEDY
        ) from error


def _damaged(path: Path, why: str) -> RecordError:
    return RecordError(f"the study {path} is damaged: {why}", remedy=_REMEDY)


_REMEDY = (
    "Free space, or remove the file if it is damaged, then run the same command again: recorded"
    " runs are kept."
)


def _records(folder: SweepFolder, space: Space, trial: FrozenTrial) -> list[Path]:
    """Return the records of a trial, all of which are there."""
    paths = [folder.record_of(run) for run in space.runs(trial.params)]
    found = [path for path in paths if path is not None]
    assert len(found) == len(paths)
    return found


def _rounded(value: Value) -> Value:
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value


def hold_out(data: RunData, fraction: float, *, seed: int) -> RunData:
    """Return the data with a part of the training rows in place of the test rows.

    Raises:
        ValueError: If `fraction` is not between 0 and 1.
    """
    if not 0 < fraction < 1:
        raise ValueError(f"the held-out fraction must lie between 0 and 1, got {fraction}")
    sides = [
        _hold_out(side, fraction, seed, index) for index, side in enumerate((data.base, data.new))
    ]
    return replace(data, base=sides[0], new=sides[1])


def _hold_out(side: Source, fraction: float, seed: int, index: int) -> Source:
    random = generator(seed, Draw.HELD_OUT, index)
    held = held_out_rows(side.train.labels, groups_of(side.train), fraction, random)
    return replace(
        side,
        train=side.train.part(~held),
        val=side.train.part(held),
        val_manifest=held_out_manifest(fraction, seed),
    )
