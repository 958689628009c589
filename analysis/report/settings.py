"""Shared and differing settings of runs, and the names of runs in a table."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from clinit.analysis.report.measures import CONTENT
from clinit.analysis.report.run import INIT_SETTINGS, RunSummary
from clinit.analysis.report.table import NOTHING, Column

_WORDS: Mapping[str, Mapping[str, str]] = CONTENT["setting"]
"""Heading, words and meaning of settings, if they differ from the name."""


@dataclass(frozen=True, slots=True, eq=False)
class Names:
    """Differing and shared settings of runs, computed once for tables, titles and figures."""

    runs: Sequence[RunSummary]
    of_training: tuple[str, ...]
    """Differing settings of data, stream and training; such runs cannot be compared."""
    settings: tuple[str, ...]
    """The columns: `init`, `scale` and all other differing settings; `init` if nothing differs."""
    without: Collection[str]
    """Settings that neither names nor title contain."""

    @classmethod
    def of(cls, runs: Sequence[RunSummary], *, without: Collection[str] = ()) -> Names:
        """Return the names of `runs`.

        If some runs do not read a setting, only the values of the other runs count. Settings in
        `without` count as equal.
        """
        known: dict[str, set[str]] = {}
        for name, text in (pair for run in runs for pair in run.texts.items()):
            known.setdefault(name, set()).update([text] if text is not None else [])
        differing = [name for name in known if len(known[name]) > 1 and name not in without]
        own = [name for name in ("init", "scale") if name in differing]
        training = [name for name in differing if name not in INIT_SETTINGS]
        of_init = [name for name in differing if name not in (*own, *training)]
        settings = [*own, *training, *of_init] or ["init"]
        return cls(runs, tuple(training), tuple(settings), without)

    @property
    def title(self) -> str:
        """The settings that all runs share, in words."""
        return common(self.runs, (*self.settings, *self.without))

    @property
    def columns(self) -> list[Column]:
        """A column for each setting."""
        return [
            Column(_of(name, "heading", name), "run", meaning=_of(name, "meaning", ""))
            for name in self.settings
        ]

    def cells(self, run: RunSummary) -> list[str]:
        """Return the cells of a run in these columns."""
        return [shown(run, name) for name in self.settings]

    def label(self, run: RunSummary) -> str:
        """Return a short, distinct name: the initialisation and the differing settings."""
        texts = {name: shown(run, name) for name in self.settings if name != "init"}
        known = [(name, text) for name, text in texts.items() if text != NOTHING]
        parts = [text if name == "scale" else said(name, text) for name, text in known]
        return run.init + (f" ({', '.join(parts)})" if parts else "")


def labels(runs: Sequence[RunSummary], *, without: Collection[str] = ()) -> list[str]:
    """Return a short, distinct name for each run, without the settings in `without`."""
    names = Names.of(runs, without=without)
    return [names.label(run) for run in runs]


def shown(run: RunSummary, name: str) -> str:
    """Return one of the `texts` of a run as printed."""
    return run.texts.get(name) or NOTHING


def phrase(run: RunSummary, name: str) -> str:
    """Return a setting with its name: `seed 0`, `head width grow`."""
    return said(name, shown(run, name))


def said(name: str, text: str) -> str:
    """Return a setting and its value in words."""
    words = _of(name, "words", name.replace("_", " ") + " {}")
    if text == "1" and words.startswith("{} "):
        words = re.sub(r"s\b", "", words, count=1)
    return words.format(text)


def _of(name: str, what: str, otherwise: str) -> str:
    return _WORDS.get(name, {}).get(what, otherwise)


_COMMON = (
    *("measured_on", "backbone", "top_blocks", "rank", "method", "loss", "step", "head_width"),
    *("tasks", "stop_after", "iterations", "buffer", "buffer_per_class", "lr", "seed"),
    *("init", "scale"),
)
"""Settings in the order in which they are printed."""


def common(runs: Sequence[RunSummary], differing: Collection[str]) -> str:
    """Return the shared settings of runs in words: data sets, tasks, iterations, loss, seed, ...

    A setting that only some runs read follows in parentheses.

    Args:
        runs: The runs of a table.
        differing: Properties that the table shows for each run: settings, `init` and `scale`.
    """
    known = [each for each in ("base", "new") if each not in differing and runs[0].texts[each]]
    of_all = [" → ".join(shown(runs[0], name) for name in known)]
    of_some: list[str] = []
    for name in (name for name in _COMMON if name not in differing):
        having = [text for run in runs if (text := shown(run, name)) != NOTHING]
        if having and (name, having[0]) not in (("top_blocks", "0"), ("step", "loss")):
            (of_all if len(having) == len(runs) else of_some).append(said(name, having[0]))
    some = f"({', '.join(of_some)})" if of_some else ""
    return " ".join(filter(None, [", ".join(filter(None, of_all)), some]))


ByData = Mapping[str, Sequence[RunSummary]]


def by_data(runs: Sequence[RunSummary]) -> ByData:
    """Return the runs of each data set in their order, runs measured on test images first.

    Runs have the same data if base and new classes, features and measured images are equal,
    whatever the paths of their caches.

    Returns:
        The runs by heading, which describes their data. A single data set has no heading.
    """
    parts: dict[str, list[RunSummary]] = {}
    for run in runs:
        parts.setdefault(run.data, []).append(run)
    ordered = sorted(parts.values(), key=lambda part: part[0].is_held_out)
    if len(ordered) < 2:
        return {"": tuple(runs)}
    return {
        f"Data {n} of {len(ordered)}: {_data_words(part[0])}": tuple(part)
        for n, part in enumerate(ordered, start=1)
    }


def _data_words(run: RunSummary) -> str:
    names = [Path(side["path"]).name for side in run.sides.values() if side["path"]]
    return ", on ".join(filter(None, [" → ".join(names), run.measured_on]))
