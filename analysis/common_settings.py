"""The title of a table: what its runs share, and what all runs of some methods share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from clinit.analysis.run_summary import RunSummary
from clinit.analysis.settings import NOTHING, said, scale_of, shown, values

_COMMON = (
    *("measured_on", "backbone", "top_blocks", "rank", "method", "loss", "head_width"),
    *("tasks", "stop_after", "iterations", "buffer", "buffer_per_class", "lr", "seed"),
)
"""In the order in which they are said."""


def common(runs: Sequence[RunSummary], differing: Sequence[str]) -> str:
    """Return in words what runs share: data sets, tasks, iterations, loss, seed, ...

    What means nothing to the runs of some methods stands behind the names of the others:
    `2 tasks; rehearsal: buffer 100, lr 0.001`.

    Args:
        runs: Those of a table.
        differing: What is said of each run: settings, `init` and `scale`.
    """
    data = [
        text
        for side in ("base", "new")
        if side not in differing and (text := shown(runs[0], side)) != NOTHING
    ]
    of_all = [" → ".join(data)] if data else []
    of_methods: dict[str, list[str]] = {}
    for words, having in (*_settings(runs, differing), *_starts(runs, differing)):
        if len(having) == len(runs):
            of_all.append(words)
        else:
            methods = dict.fromkeys(run.config.get("method", "rehearsal") for run in having)
            of_methods.setdefault(", ".join(methods), []).append(words)
    some = [f"{methods}: {', '.join(words)}" for methods, words in of_methods.items()]
    return "; ".join(filter(None, [", ".join(of_all), *some]))


def _settings(
    runs: Sequence[RunSummary], differing: Sequence[str]
) -> Iterator[tuple[str, list[RunSummary]]]:
    """Yield each setting in words, with the runs that it means something to."""
    every = [values(run) for run in runs]
    for name in (name for name in _COMMON if name not in differing):
        having = [run for run, each in zip(runs, every, strict=True) if each.get(name) is not None]
        text = shown(having[0], name) if having else NOTHING
        if text != NOTHING and (name, text) != ("top_blocks", "0"):
            yield said(name, text), having


def _starts(
    runs: Sequence[RunSummary], differing: Sequence[str]
) -> Iterator[tuple[str, list[RunSummary]]]:
    """Yield initialisation and scale, with the runs whose new rows are initialised."""
    if "init" not in differing:
        yield runs[0].init, list(runs)
    scales = {scale for run in runs if (scale := scale_of(run)) is not None}
    if "scale" not in differing and scales:
        yield f"scale {scales.pop()}", [run for run in runs if not run.is_solved]
