"""What can still be read of a damaged cache, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from clinit.errors import CacheError, ClinitError, ManifestError
from clinit.extract.manifest import Manifest, read_manifest
from clinit.extract.plan import Plan, read_plan
from clinit.extract.summary import RunFacts, Summary, read_summary
from clinit.extract.verify import Checked, verify
from clinit.extract.views import view_folders


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairConfig:
    """What the cache may not know any more."""

    root: Path | None = None
    """Folder of the images; default: where they were."""
    weights: Path | None = None
    """File of the weights; default: where they were, or timm's own."""
    device: str | None = None
    """Default: the kind of device that the features were computed on."""
    workers: int | None = None
    """Threads that read and decode; default: the usable CPUs."""


@dataclass(frozen=True, slots=True)
class Mended:
    """A part that has been written again."""

    title: str
    rows: int | None
    """Rows that were computed; None where they were read from other files."""
    differences: tuple[str, ...] = ()
    """What is not as it was written, or not known to be."""


@dataclass(frozen=True, slots=True, eq=False)
class DamagedCache:
    """A cache with its problems."""

    path: Path
    problems: tuple[ClinitError, ...]
    damaged: tuple[Path, ...]
    """Folders of the splits and views that have problems of their own."""
    plans: Mapping[str, Plan]
    """By split."""
    summaries: Mapping[Path, Summary]
    """Those that are whole, by the folder of the split or view."""

    @classmethod
    def of(cls, path: Path) -> DamagedCache:
        """Verify a cache and read what can be read.

        Raises:
            CacheError: If there is none.
        """
        parts: list[Checked] = list(verify(path))
        plans: dict[str, Plan] = {}
        summaries: dict[Path, Summary] = {}
        for folder in (part.folder for part in parts if part.folder is not None):
            with suppress(CacheError):  # it is among the problems
                plan = read_plan(folder)
                if folder.parent == path:
                    plans[folder.name] = plan
                summaries[folder] = read_summary(folder, plan)
        return cls(
            path,
            tuple(problem for part in parts for problem in part.problems),
            tuple(part.folder for part in parts if part.folder is not None and part.problems),
            plans,
            summaries,
        )

    @property
    def names(self) -> Sequence[str]:
        """Splits that must be written again: with problems of their own, or for the head.

        Raises:
            CacheError: If a plan is not whole: it says what all else should be.
        """
        for folder in self.damaged:
            read_plan(folder)
        found = [name for name in self.plans if self.path / name in self.damaged]
        if not found and len(self.damaged) < len(self.problems):
            judged = [name for name in self.plans if self._has_judged_head(name)]
            found = (judged or list(self.plans))[:1]
        return found

    def _has_judged_head(self, name: str) -> bool:
        told = self.summaries.get(self.path / name)
        return told is not None and told.head.tensors is not None

    def facts(self, name: str) -> RunFacts:
        """Return how a split came about; where its summary is not whole, what its views say.

        The last resort is the other split, extracted by the same command more often than not.
        """
        views = view_folders(self.path) if name == "train" else []
        for folder in (self.path / name, *views, *self.summaries):
            if folder in self.summaries:
                return self.summaries[folder].run
        return RunFacts()

    @property
    def views(self) -> Sequence[int]:
        """Numbers of the views that have problems."""
        return [int(folder.name) for folder in self.damaged if folder.parent != self.path]

    def manifest(self, name: str) -> Manifest:
        """Return the manifest of a split; the views of a split have copies of it.

        Raises:
            CacheError: If none of them is whole.
        """
        for folder in (self.path / name, *view_folders(self.path)):
            try:
                manifest = read_manifest(folder / "manifest.parquet")
            except ManifestError:
                continue
            if manifest.digest == self.plans[name].fingerprint.manifest:
                return manifest
        raise CacheError(
            f"{self.path / name / 'manifest.parquet'} is not whole, and nothing else says which"
            " images it named",
            remedy="Run the command that wrote this cache again (`clinit extract` with its"
            " --dataset or --manifest): it finds the images again and keeps the shards.",
        )
