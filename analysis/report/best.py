"""The choice of settings by accuracy, for tables of each method at its best."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from statistics import fmean

from clinit.analysis.report.measures import words_of
from clinit.analysis.report.run import RunSummary
from clinit.analysis.report.settings import Names, said
from clinit.errors import RecordError
from clinit.words import listed

Values = tuple[str | None, ...]


def chosen_runs(
    runs: Sequence[RunSummary], fields: str | Sequence[str], by: str | Sequence[str]
) -> tuple[tuple[RunSummary, ...], str]:
    """Return the runs with the best values of `fields` for each value of `by`, and a note.

    Raises:
        RecordError: If no run reads a setting, or no run on test images has the chosen values.
    """
    names, groups = words_of(fields), words_of(by)
    known = Names.of(runs, without=("seed",)).settings  # a choice among seeds would be luck
    if unknown := {*names} - {*known} | {*groups} - {name for run in runs for name in run.texts}:
        raise RecordError(
            f"{min(unknown)!r} is no setting to choose",
            remedy=f"Settings in which the runs differ: {', '.join(known)}.",
        )

    def values(run: RunSummary, of: Sequence[str]) -> Values:
        return tuple(run.texts.get(name) for name in of)

    deciding = [run for run in runs if run.is_held_out]
    scores: dict[Values, dict[Values, list[float]]] = {}
    for run in deciding or runs:
        if (score := run.row()["acc_all"]) is not None:
            own = scores.setdefault(values(run, groups), {})
            own.setdefault(values(run, names), []).append(score)
    best = {key: max(own, key=lambda each: fmean(own[each])) for key, own in scores.items()}
    told = "; ".join(
        f"{_words(groups, key)}: {_words(names, value)}" for key, value in best.items()
    )
    words = f"For each {listed(groups)}, {listed(names)} with the best A_all"
    note = f"{words} on {(deciding or runs)[0].measured_on} ({told})."
    if not deciding:
        note += (
            " The same images measure the accuracies of this table, which are therefore too high:"
            " choose on held-out training images (`clinit sweep --held-out 0.1`)."
        )
    tested = [run for run in runs if not run.is_held_out]
    kept = [run for run in tested if values(run, names) == best.get(values(run, groups))]
    missing = best.keys() - {values(run, groups) for run in kept}
    if missing:
        raise RecordError(
            f"no run on test images has the settings that held-out images chose: {told}",
            remedy="Train them with `clinit train-head`, and give their records too.",
        )
    return tuple(dataclasses.replace(run, remarks=(note,)) for run in kept), note


def _words(names: Sequence[str], values: Values) -> str:
    pairs = zip(names, values, strict=True)
    return ", ".join(said(name, value) for name, value in pairs if value is not None)
