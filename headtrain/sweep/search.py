"""Search settings with Optuna, which proposes as many trials at a time as a bank holds.

The study is a SQLite file, which `optuna-dashboard` reads. A trial is a run for each seed of
the grid, its value their mean: seeds are not searched. Trials are judged on training rows that
are held out, class by class, never on the test rows. A search that was killed first finishes the
trials that it had asked for; runs that are recorded are not trained again.

Source: T. Akiba, S. Sano, T. Yanase, T. Ohta, M. Koyama, "Optuna: a next-generation
hyperparameter optimization framework", KDD 2019.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clinit.errors import ExperimentError, RecordError
from clinit.headtrain.groups import groups_of, held_out_rows
from clinit.headtrain.record.info import held_out_manifest
from clinit.headtrain.runs import RunData
from clinit.headtrain.stream.seeds import Draw, generator
from clinit.headtrain.study.parts import Training
from clinit.headtrain.study.study import Study
from clinit.headtrain.sweep.folder import SweepFolder
from clinit.headtrain.sweep.grid import (
    Grid,
    Interval,
    Together,
    Value,
    distinct,
    field_named,
    run_of,
)
from clinit.headtrain.sweep.plan import SweepObserver as Observer
from clinit.headtrain.sweep.plan import Train, bank_limit, plan_sweep, run_sweep
from clinit.headtrain.sweep.settings import SearchConfig

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution

STUDY = "study.db"
ROUNDS = 5
"""Least number of times that a search asks, however many trials a bank could hold."""
_DIGITS = 6

Measure = Callable[[Path], float | None]
"""Reads the objective out of a record; None if the record has no such value."""


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
            ExperimentError: If nothing varies, or fields vary together.
        """
        varied: dict[str, Interval | tuple[Value, ...]] = {}
        for name, choice in grid.items():
            if isinstance(choice, Together):
                raise ExperimentError(
                    f"a search varies fields one by one, but {name} are to vary together",
                    remedy="Give each of them values of its own.",
                )
            varied[name] = choice
        seeds = varied.pop("seed", (0,))
        lists = {name: choice for name, choice in varied.items() if isinstance(choice, tuple)}
        fixed = {name: choice[0] for name, choice in lists.items() if len(choice) == 1}
        varied = {name: choice for name, choice in varied.items() if name not in fixed}
        if not varied or not isinstance(seeds, tuple):
            raise ExperimentError(
                "there is nothing to search: no field but the seed has several values",
                remedy="Give a range or a list: lr=1e-4..1e-1:log scale=norm,calibrated.",
            )
        return cls(varied, fixed, seeds)

    def runs(self, params: Mapping[str, Value]) -> list[Study]:
        """Return the runs of a trial, one per seed."""
        settings = {
            name: float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value
            for name, value in params.items()
        }
        return [run_of({**self.fixed, **settings, "seed": seed}) for seed in self.seeds]

    def distributions(self) -> dict[str, BaseDistribution]:
        """Return the distributions that Optuna draws from: intervals and lists of choices."""
        from optuna import distributions

        found: dict[str, BaseDistribution] = {}
        for name, choice in self.varied.items():
            if not isinstance(choice, Interval):
                found[name] = distributions.CategoricalDistribution(choice)
            elif field_named(name).is_integer:
                low, high = int(choice.low), int(choice.high)
                found[name] = distributions.IntDistribution(low, high, log=choice.log)
            else:
                found[name] = distributions.FloatDistribution(
                    choice.low, choice.high, log=choice.log
                )
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
    bank_size: int | None = None,
    observer: Observer,
) -> Found:
    """Try settings until there are `config.trials` trials; return the best.

    Args:
        space: What to vary.
        config: Number of trials, and the objective.
        folder: Where the runs of trials are recorded; what is recorded is not trained again.
        data: The data of the runs; its test rows must be held-out training rows.
        train: Trains banks.
        measure: Reads the objective of a record.
        study_path: The SQLite file, which is made if it does not exist.
        bank_size: Most runs of a bank; default: what fits into memory.
        observer: Called when runs are recorded.

    Raises:
        ExperimentError: If Optuna is not installed, the study was begun with another space or
            objective, or no trial has a value.
        RecordError: If a record or the study cannot be read or written.
    """
    first = run_of({"device": space.fixed.get("device") or "auto"})
    classes, dim = data.num_classes, data.base.train.dim
    limit = bank_limit(first, num_classes=classes, dim=dim, asked=bank_size)
    batch = max(1, min(limit, config.trials // ROUNDS))
    with _storage(study_path):
        study = _open_study(study_path, space, config)
        from optuna.trial import TrialState

        distributions = space.distributions()
        waiting = _interrupted(study, distributions)
        while waiting or len(study.trials) < config.trials:
            for _ in range(min(batch, config.trials - len(study.trials))):
                trial = study.ask(distributions)
                waiting[trial.number] = trial.params
            runs = distinct(run for params in waiting.values() for run in space.runs(params))
            run_sweep(plan_sweep(runs, folder, data, bank_size=bank_size), folder, train, observer)
            for number, params in waiting.items():
                value = _value(folder, space.runs(params), measure)
                study.tell(number, value, state=None if value is not None else TrialState.FAIL)
            waiting = {}
        complete = study.get_trials(states=(TrialState.COMPLETE,))
        if not complete:
            raise ExperimentError(
                "no trial of the search has a value: the objective is unknown for all of them",
                remedy="Choose another --objective, or a narrower range of the learning rate.",
            )
        best = study.best_trial
        assert best.value is not None
        runs = space.runs(best.params)
        return Found(best.number, best.params, best.value, tuple(runs), len(complete))


def _interrupted(
    study: optuna.Study, distributions: Mapping[str, BaseDistribution]
) -> dict[int, dict[str, Any]]:
    """Return the trials that a killed search had asked for; those that it had begun to fail."""
    from optuna.trial import TrialState

    waiting = {each.number: each.params for each in study.trials if not each.state.is_finished()}
    whole = {n: params for n, params in waiting.items() if params.keys() == distributions.keys()}
    for number in waiting.keys() - whole.keys():
        study.tell(number, state=TrialState.FAIL)
    return whole


def _value(folder: SweepFolder, runs: list[Study], measure: Measure) -> float | None:
    """Return the mean over seeds; None if a run has diverged or has no such value."""
    values = [measure(path) for run in runs if (path := folder.record_of(run)) is not None]
    known = [value for value in values if value is not None and math.isfinite(value)]
    return statistics.fmean(known) if len(known) == len(runs) else None


def _open_study(path: Path, space: Space, config: SearchConfig) -> optuna.Study:
    try:
        import optuna
    except ImportError as error:
        raise ExperimentError(
            "--search optuna needs Optuna, which is not installed",
            remedy='Install it: pip install "clinit[search]".',
        ) from error
    if path.is_symlink():  # SQLite would write to its target, or make it
        raise RecordError(f"the study {path} is a link, expected a file", remedy="Remove it.")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        storage=f"sqlite:///{path}",
        study_name="clinit",
        direction="maximize" if config.maximises else "minimize",
        load_if_exists=True,
    )
    # A search that is resumed must not draw again what it drew first.
    study.sampler = optuna.samplers.TPESampler(seed=len(study.trials), constant_liar=True)
    wanted = {**space.content(), "objective": config.objective, "maximise": config.maximises}
    wanted = json.loads(json.dumps({**wanted, "seed": 0}))  # as of searches that had a choice
    begun = study.user_attrs.get("search")
    if begun is None:
        study.set_user_attr("search", wanted)
    elif begun != wanted:
        differing = [name for name in wanted if begun.get(name) != wanted[name]]
        raise ExperimentError(
            f"the study {path} was begun with other settings ({', '.join(differing)})",
            remedy="Give the same grid and objective to continue it, or another --out.",
        )
    return study


@contextmanager
def _storage(path: Path) -> Iterator[None]:
    """Turn what SQLite and Optuna raise for a damaged file or a full disk into one error."""
    try:
        yield
    except Exception as error:
        if not type(error).__module__.startswith(("optuna", "sqlalchemy", "sqlite3")):
            raise
        cause = getattr(error, "orig", None) or error  # SQLAlchemy adds the whole statement
        raise RecordError(
            f"cannot read or write the study {path}: {str(cause).partition(chr(10))[0]}",
            remedy="Free space, or remove the file if it is damaged, then run the same command"
            " again: recorded runs are kept.",
        ) from error


def hold_out(data: RunData, fraction: float, *, seed: int) -> RunData:
    """Return the data with a fraction in (0, 1) of the training rows in place of the test rows."""
    assert 0 < fraction < 1
    sides = []
    for index, side in enumerate((data.base, data.new)):
        if not side.class_names:
            sides.append(side)
            continue
        random = generator(seed, Draw.HELD_OUT, index)
        held = held_out_rows(side.train.labels, groups_of(side.train), fraction, random)
        train, val = side.train.part(~held), side.train.part(held)
        manifest = held_out_manifest(fraction, seed)
        sides.append(replace(side, train=train, val=val, val_manifest=manifest))
    return replace(data, base=sides[0], new=sides[1])
