"""What names the runs of a table: settings in which they differ, and a title of what they share.

A setting is a column of its own; where columns take too much room, one column says all in words.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from clinit.analysis.columns import Column
from clinit.analysis.common_settings import common
from clinit.analysis.run_summary import RunSummary
from clinit.analysis.settings import NOTHING, SHORT, differences, phrase, scale_of, shown


@dataclass(frozen=True, slots=True, eq=False)
class RunNames:
    """The names of runs, each of which is the first of its line."""

    settings: tuple[str, ...]
    """What differs: `init`, `scale` and other settings; `init` where nothing does."""
    title: str
    """What all have in common, in words."""

    @classmethod
    def of(cls, runs: Sequence[RunSummary], *, without: Collection[str] = ()) -> RunNames:
        """Return the names of runs; settings `without` are neither in them nor in the title."""
        differing = differences(runs, without=without).names
        inits = dict.fromkeys(run.init for run in runs)
        scales = dict.fromkeys(scale for run in runs if (scale := scale_of(run)) is not None)
        own = ["scale"] if len(scales) > 1 else []
        if len(inits) > 1 or not (own or differing):
            own.insert(0, "init")
        return cls((*own, *differing), common(runs, (*own, *differing, *without)))

    @property
    def columns(self) -> list[Column]:
        """A column for each setting."""
        return [Column(SHORT.get(name, name)) for name in self.settings]

    def cells(self, run: RunSummary) -> list[str]:
        """Return what a run has in these columns."""
        return [self._text(run, name) for name in self.settings]

    def words(self, run: RunSummary) -> str:
        """Return the same in words: `least-square, calibrated, lr 0.1`."""
        texts = {name: self._text(run, name) for name in self.settings}
        return ", ".join(
            text if name in ("init", "scale") else phrase(run, name)
            for name, text in texts.items()
            if text != NOTHING
        )

    def _text(self, run: RunSummary, name: str) -> str:
        if name == "init":
            return run.init
        if name == "scale":
            return scale_of(run) or NOTHING
        return shown(run, name)
