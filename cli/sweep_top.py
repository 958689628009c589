"""`clinit sweep --top`: a grid of runs with top blocks, one run after another."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clinit.cli.claim import claimed_folder
from clinit.cli.console import say
from clinit.cli.sweep_data import show_ranking, starting_heads
from clinit.cli.top_inputs import Images, open_sides, read_inputs
from clinit.cli.train_top import train_one
from clinit.extract.number_of import number_of

if TYPE_CHECKING:
    from clinit.extract.head import Head
    from clinit.headtrain.study import Study
    from clinit.headtrain.sweep.folder import SweepFolder
    from clinit.headtrain.top.inputs import Side


@dataclass(frozen=True, slots=True, eq=False)
class _Group:
    """Runs of one stream and one top, from one head: they share their activations."""

    runs: tuple[Study, ...]
    head: Head
    facts: dict[str, Any]


def sweep_top(
    runs: list[Study],
    images: Images,
    heads: list[str],
    out: Path,
    *,
    checkpoint_every: int,
    dry_run: bool,
) -> None:
    """Train the runs that the folder does not hold; print all of them, ranked."""
    from clinit.headtrain.record.format import check_free
    from clinit.headtrain.study import by_stream
    from clinit.headtrain.sweep.folder import SweepData, open_folder
    from clinit.headtrain.sweep.plan import run_names

    with claimed_folder(out):
        base, new = open_sides(images)
        chosen = starting_heads(base.source, heads)
        start, facts = chosen.pop("")
        data = SweepData(
            base.source,
            new.source,
            start,
            {loss: head for loss, (head, _) in chosen.items()},
            {"": facts, **{loss: about for loss, (_, about) in chosen.items()}},
        )
        folder = open_folder(out, data, {run.training.loss for run in runs})
        names = dict(zip(runs, run_names(runs, folder.configs), strict=True))
        left = [run for run in runs if folder.record_of(run) is None]
        check_free(out / names[run] for run in left)
        for run in runs:
            if run not in left:  # a run that was killed after its record was written
                _checkpoint(folder, run).unlink(missing_ok=True)
        say(f"{number_of(len(runs), 'run')}, {len(runs) - len(left):,} recorded already")
        if dry_run:
            for run in left:
                say(f"  {names[run]}")
            return
        for members in by_stream(left, {loss: loss for loss in data.heads}):
            loss = members[0].training.loss
            group = _Group(tuple(members), data.head_for(loss), dict(data.facts_for(loss)))
            _train(group, images, (base, new), folder, names, checkpoint_every)
        records = [path for run in runs if (path := folder.record_of(run)) is not None]
    show_ranking(records)
    say(f"{number_of(len(runs), 'run record')} at {out}; each run: clinit report --by-seed {out}")


def _checkpoint(folder: SweepFolder, run: Study) -> Path:
    """Return the checkpoint of a run: its name does not change where the grid grows."""
    from clinit.headtrain.sweep.folder import run_digest

    return folder.path / f"{run_digest(run)}.checkpoint"


def _train(
    group: _Group,
    images: Images,
    sides: tuple[Side, Side],
    folder: SweepFolder,
    names: dict[Study, str],
    checkpoint_every: int,
) -> None:
    inputs = read_inputs(images, *sides, group.head, group.facts, list(group.runs))
    for run in group.runs:
        place = folder.path / names[run]
        train_one(
            inputs,
            run,
            place,
            group.facts,
            checkpoint_every=checkpoint_every,
            verbose=False,
            checkpoint=_checkpoint(folder, run),
        )
        folder.add(run, place)
        inputs = inputs.reused()
