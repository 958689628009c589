"""What a start is worth, in one sentence: random rows beside others, before any update and after.

Numbers are means over tasks, and over seeds where there are several.
"""

from __future__ import annotations

from collections.abc import Sequence

from clinit.analysis.report.run import RunSummary
from clinit.analysis.report.same_data import by_data, headings
from clinit.analysis.report.seeds import SeedGroup, seed_groups
from clinit.analysis.report.settings import differences, labels, phrase
from clinit.words import number_of

MOST_STARTS = 3
"""Starts beside random that a sentence names, the best A_all first."""


def conclusions(runs: Sequence[RunSummary]) -> list[str]:
    """Return a sentence for each data on which random rows and other ones were tried."""
    parts = by_data(runs)
    said = [conclusion(part) for part in parts]
    return [
        f"{heading}: {words}" if heading else words
        for heading, words in zip(headings(parts), said, strict=True)
        if words
    ]


def conclusion(runs: Sequence[RunSummary]) -> str:
    """Return the sentence for runs on the same data; empty without random rows and other ones.

    Where training differs, as by the number of shots, it is about the comparison that has the
    best A_all.
    """
    rivals: dict[str, list[SeedGroup]] = {}
    for group in seed_groups(runs):
        if group.values["acc_new_start"] is not None:
            rivals.setdefault(group.comparable, []).append(group)
    for groups in rivals.values():
        random = next((group for group in groups if group.runs[0].init == "random"), None)
        others = [group for group in groups if group.runs[0].init != "random"]
        if random is not None and others:
            sentence = _sentence([random, *others[:MOST_STARTS]])
            where = _where(runs, random)
            return f"{where}: {sentence}" if where else sentence[0].upper() + sentence[1:]
    return ""


def _where(runs: Sequence[RunSummary], group: SeedGroup) -> str:
    """Return the settings of training that tell a comparison apart from others."""
    names = differences(runs, without=("seed",)).of_training
    return ", ".join(phrase(group.runs[0], name) for name in names)


def _sentence(groups: Sequence[SeedGroup]) -> str:
    random, *others = labels([group.runs[0] for group in groups], without=("seed",))
    start, *starts = (_mean(group, "acc_new_start") for group in groups)
    found = [f"{name} rows {share} %" for name, share in zip(others, starts, strict=True)]
    words = (
        f"before the first step of a task, {random} rows recognise {start} % of its new classes, "
        + listed(found)
    )
    points = groups[0].runs[0].points
    if points["iteration"].max():
        words += f"; over all its evaluations {listed([_mean(g, 'acc_new') for g in groups])} %"
    over = [number_of(points["task"].n_unique(), "task")]
    if (seeds := max(len(group.runs) for group in groups)) > 1:
        over.append(number_of(seeds, "seed"))
    return f"{words} (mean over {' and '.join(over)})."


def _mean(group: SeedGroup, name: str) -> str:
    found = group.values[name]
    assert found is not None
    return f"{found.mean:.1f}"


def listed(words: Sequence[str]) -> str:
    """Return words as a list in a sentence: `a, b and c`."""
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))
