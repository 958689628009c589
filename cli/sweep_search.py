"""`clinit sweep --search`: settings chosen on held-out training rows, then tested once."""

from __future__ import annotations

import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from clinit.cli.completion import DIRECTIONS
from clinit.cli.console import say
from clinit.cli.run_data import show_ranking
from clinit.cli.training_progress import sweep_progress
from clinit.words import number_of

if TYPE_CHECKING:
    from clinit.headtrain.runs import RunData
    from clinit.headtrain.study import Study
    from clinit.headtrain.sweep.grid import Choice
    from clinit.headtrain.sweep.search import Found


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """Options of the search as typed; None for those that were not given."""

    trials: int | None
    objective: str | None
    direction: str | None
    held_out: float | None
    search_seed: int | None

    def reject(self) -> None:
        """Refuse all options that are given, where there is no search."""
        for name in ("trials", "objective", "direction", "held_out", "search_seed"):
            if getattr(self, name) is not None:
                option = name.replace("_", "-")
                raise typer.BadParameter(f"--{option} is for a search: add --search optuna")

    def checked_objective(self) -> str:
        """Return the objective.

        Raises:
            BadParameter: If there is none of that name.
        """
        from clinit.words import nearest

        name = self.objective or "acc_all"
        if name not in DIRECTIONS:
            raise typer.BadParameter(f"no objective {name!r}. {nearest(name, [*DIRECTIONS])}")
        return name


def run_search(
    grid: dict[str, Choice],
    data: RunData,
    out: Path,
    options: SearchOptions,
    bank_size: int | None,
) -> None:
    """Search on held-out rows; train the chosen settings on all rows and print both values."""
    from clinit.headtrain.sweep.folder import hold_folder
    from clinit.headtrain.sweep.plan import bank_limit, run_of, train_here
    from clinit.headtrain.sweep.search import STUDY, SearchConfig, Space, hold_out, search

    objective = options.checked_objective()
    config = SearchConfig(
        trials=options.trials or 50,
        objective=objective,
        maximise=(options.direction or DIRECTIONS[objective]) == "maximize",
        seed=options.search_seed or 0,
    )
    space = Space.of(grid)
    fraction = options.held_out or 0.1
    held = hold_out(data, fraction, seed=config.seed)
    dim, classes = data.base.train.dim, data.num_classes
    first = run_of({"device": space.fixed.get("device") or "auto"})
    limit = bank_limit(first, num_classes=classes, dim=dim, asked=bank_size)
    say(
        f"{number_of(config.trials, 'trial')} of {number_of(len(space.seeds), 'seed')},"
        f" {config.batch(limit):,} at a time, judged by {objective} on"
        f" {len(held.base.val.labels) + len(held.new.val.labels):,} held-out training rows"
        f" ({fraction:g})"
    )
    say(f"Watch it: optuna-dashboard sqlite:///{out / STUDY}")
    with (
        hold_folder(out / "trials", held, space.losses) as folder,
        sweep_progress(
            total=config.trials * len(space.seeds), done=len(folder.recorded)
        ) as observer,
    ):
        found = search(
            space,
            config,
            folder,
            held,
            train_here(held, observer, command=["clinit", *sys.argv[1:]]),
            lambda path: _measure(path, objective),
            study_path=out / STUDY,
            batch=config.batch(limit),
            bank_size=bank_size,
            observer=observer,
        )
    _show(found, objective, _test(list(found.runs), data, out, bank_size, objective))


def _test(
    runs: list[Study], data: RunData, out: Path, bank_size: int | None, objective: str
) -> list[float | None]:
    """Train the chosen settings on all training rows; return the values on the test rows."""
    from clinit.headtrain.sweep.folder import hold_folder
    from clinit.headtrain.sweep.plan import plan_sweep, run_sweep, train_here

    with hold_folder(out / "chosen", data, {run.training.loss for run in runs}) as folder:
        plan = plan_sweep(runs, folder, data, bank_size=bank_size)
        with sweep_progress(len(runs), len(plan.done)) as observer:
            train = train_here(data, observer, command=["clinit", *sys.argv[1:]])
            run_sweep(plan, folder, train, observer)
        paths = [path for run in runs if (path := folder.record_of(run)) is not None]
    show_ranking(paths)
    return [_measure(path, objective) for path in paths]


def _measure(path: Path, objective: str) -> float | None:
    from clinit.analysis.report.run import RunSummary
    from clinit.headtrain.record.format import read_record

    value: float | None = RunSummary.of(read_record(path)).row()[objective]
    return value


def _show(found: Found, objective: str, tested: list[float | None]) -> None:
    words = ", ".join(
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in found.params.items()
    )
    known = [value for value in tested if value is not None]
    test = f"{statistics.fmean(known):.4g}" if known else "unknown"
    say(f"Chosen by held-out rows, trial {found.number} of {found.num_trials:,}: {words}")
    say(
        f"{objective}: {found.value:.4g} on held-out training rows (the best of the search, so"
        f" somewhat flattered), {test} on the test rows after training on all training rows"
    )
