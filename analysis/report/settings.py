"""Shared and differing settings of runs, and the names of runs in a table."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from clinit.analysis.metrics.efficiency import INIT_SETTINGS
from clinit.analysis.report.run import RunSummary
from clinit.analysis.report.table import NOTHING, Column

SHORT = {
    "batch_size": "batch",
    "bias": "bias",
    "class_mean": "mean",
    "eval_every": "every",
    "head_width": "width",
    "init_rows": "rows",
    "iterations": "iters",
    "lam": "λ",
    "top_blocks": "top",
    "weighting": "ave",
    "weight_decay": "decay",
}
"""Column headings for settings with long names."""

_WORDS = {
    "backbone": "{}",
    "loss": "loss {}",
    "measured_on": "on {}",
    "top_blocks": "{} top blocks",
    "head": "base head {}",
    "head_width": "head {}",
    "tasks": "{} tasks",
    "stop_after": "the first {} learnt",
    "iterations": "{} iterations per task",
    "buffer": "buffer {}",
    "buffer_per_class": "buffer {} per class",
    "lr": "lr {}",
    "lam": "λ {}",
    "shots": "{} shots",
}
_OWN = ("init", "scale", "run")
"""Properties that distinguish runs in addition to settings, with their meanings."""
_MEANINGS = {
    "init": "How the rows of new classes start; the method, if a head is solved as a whole.",
    "scale": "How long the new rows are made.",
    "run": "The number of the run: nothing else distinguishes it from another.",
    "lam": "λ, the ridge of the least squares.",
}


@dataclass(frozen=True, slots=True, eq=False)
class Names:
    """Differing and shared settings of runs, computed once for tables, titles and figures."""

    runs: Sequence[RunSummary]
    of_init: tuple[str, ...]
    """Differing settings of the initialisation; such runs can be compared."""
    of_training: tuple[str, ...]
    """Differing settings of data, stream and training; such runs cannot be compared."""
    without: Collection[str]
    """Settings that neither names nor title contain."""

    @classmethod
    def of(cls, runs: Sequence[RunSummary], *, without: Collection[str] = ()) -> Names:
        """Return the names of `runs`; they include `run` if no setting distinguishes two runs.

        If some runs do not read a setting, only the values of the other runs count. Settings in
        `without` count as equal.
        """
        known: dict[str, set[str]] = {}
        for name, text in (pair for run in runs for pair in run.texts.items()):
            known.setdefault(name, set()).update([text] if text is not None else [])
        left_out = (*_OWN, *without)
        differing = [name for name in known if len(known[name]) > 1 and name not in left_out]
        of_init = [name for name in differing if name in INIT_SETTINGS]
        of_training = [name for name in differing if name not in of_init]
        if len({identity(run.texts, differing) for run in runs}) < len(runs):
            of_init.append("run")
        return cls(runs, tuple(of_init), tuple(of_training), without)

    @property
    def differing(self) -> tuple[str, ...]:
        """The differing settings without initialisation and scale."""
        return self.of_training + self.of_init

    @property
    def scales(self) -> list[str]:
        """The different scales of new rows."""
        return _scales(self.runs)

    @property
    def settings(self) -> tuple[str, ...]:
        """The columns: `init`, `scale` and differing settings; `init` if nothing differs."""
        own = ["scale"] if len(self.scales) > 1 else []
        if len({run.init for run in self.runs}) > 1 or not (own or self.differing):
            own.insert(0, "init")
        return (*own, *self.differing)

    @property
    def title(self) -> str:
        """The settings that all runs share, in words."""
        return common(self.runs, (*self.settings, *self.without))

    @property
    def columns(self) -> list[Column]:
        """A column for each setting."""
        return [
            Column(SHORT.get(name, name), "run", meaning=_MEANINGS.get(name, ""))
            for name in self.settings
        ]

    def cells(self, run: RunSummary) -> list[str]:
        """Return the cells of a run in these columns."""
        return [shown(run, name) for name in self.settings]

    def label(self, run: RunSummary) -> str:
        """Return a short, distinct name: the initialisation and the differing settings."""
        names = (*(["scale"] if len(self.scales) > 1 else []), *self.differing)
        texts = {name: shown(run, name) for name in names}
        known = [(name, text) for name, text in texts.items() if text != NOTHING]
        parts = [text if name == "scale" else said(name, text) for name, text in known]
        return run.init + (f" ({', '.join(parts)})" if parts else "")


def labels(runs: Sequence[RunSummary], *, without: Collection[str] = ()) -> list[str]:
    """Return a short, distinct name for each run, without the settings in `without`."""
    names = Names.of(runs, without=without)
    return [names.label(run) for run in runs]


def identity(found: Mapping[str, str | None], names: Sequence[str]) -> tuple[str, ...]:
    """Return initialisation, scale and the settings in `names` from the texts of a run."""
    return tuple(found.get(name) or NOTHING for name in ("init", "scale", *names))


def shown(run: RunSummary, name: str) -> str:
    """Return one of the `texts` of a run as printed."""
    return run.texts.get(name) or NOTHING


def phrase(run: RunSummary, name: str) -> str:
    """Return a setting with its name: `seed 0`, `head grow`."""
    return said(name, shown(run, name))


def said(name: str, text: str) -> str:
    """Return a setting and its value in words."""
    words = _WORDS.get(name, name.replace("_", " ") + " {}")
    if text == "1" and words.startswith("{} "):
        words = re.sub(r"s\b", "", words, count=1)
    return words.format(text)


def _scales(runs: Sequence[RunSummary]) -> list[str]:
    return list(dict.fromkeys(scale for run in runs if (scale := run.texts["scale"])))


_COMMON = (
    *("measured_on", "backbone", "top_blocks", "rank", "method", "loss", "head_width"),
    *("tasks", "stop_after", "iterations", "buffer", "buffer_per_class", "lr", "seed"),
)
"""Settings in the order in which they are printed."""


def common(runs: Sequence[RunSummary], differing: Sequence[str]) -> str:
    """Return the shared settings of runs in words: data sets, tasks, iterations, loss, seed, ...

    If only some methods read a setting, it follows the names of these methods:
    `2 tasks; rehearsal: buffer 100, lr 0.001`.

    Args:
        runs: The runs of a table.
        differing: Properties that the table shows for each run: settings, `init` and `scale`.
    """
    known = [each for each in ("base", "new") if each not in differing and runs[0].texts[each]]
    of_all = [" → ".join(shown(runs[0], name) for name in known)]
    shared: list[tuple[str, Sequence[RunSummary]]] = []
    for name in (name for name in _COMMON if name not in differing):
        having: Sequence[RunSummary] = [run for run in runs if run.texts.get(name) is not None]
        text = shown(having[0], name) if having else NOTHING
        if text != NOTHING and (name, text) != ("top_blocks", "0"):
            shared.append((said(name, text), having))
    if "init" not in differing:
        shared.append((runs[0].init, runs))
    if "scale" not in differing and (scales := _scales(runs)):
        shared.append((f"scale {scales[0]}", [run for run in runs if not run.is_solved]))
    of_methods: dict[str, list[str]] = {}
    for words, having in shared:
        if len(having) == len(runs):
            of_all.append(words)
        else:
            methods = dict.fromkeys(run.config.get("method", "rehearsal") for run in having)
            of_methods.setdefault(", ".join(methods), []).append(words)
    some = [f"{methods}: {', '.join(words)}" for methods, words in of_methods.items()]
    return "; ".join(filter(None, [", ".join(filter(None, of_all)), *some]))


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
