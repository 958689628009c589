"""The folder of a sweep: its records, and which runs were begun together.

    sweep.json     fingerprints of both caches, digests of the pretrained heads, and which runs
                   are trained together; sealed
    <run>/         one record per run

A sweep reads its folder before it trains: recorded runs are not trained again, and records
of other data are refused. The last bits of a run depend on the bank that it is trained in, and
the size of a bank on the free memory; so a sweep that resumes finds its banks here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Required, TypedDict

from clinit.errors import RecordError
from clinit.files.documents import DocumentKind
from clinit.headtrain.record.format import find_records, read_info
from clinit.headtrain.record.info import settings_of
from clinit.headtrain.runs import DATA_DIGESTS, RunData, check_data
from clinit.headtrain.stream.source import head_digest
from clinit.headtrain.study.parts import Training
from clinit.headtrain.study.study import Study, identity_of

SWEEP = "sweep.json"
_DOCUMENT = DocumentKind(
    title="the description of a sweep",
    format="clinit-sweep/2",
    older=("clinit-sweep/1",),
    error=RecordError,
    remedy="Remove this file and keep the records next to it; it is written anew.",
)
_KEPT = (
    "Existing records there are kept. Give the caches and heads that they were made with, or"
    " another --out."
)


class _SweepInfo(TypedDict, total=False):
    """The content of sweep.json."""

    base: Required[dict[str, Any]]
    new: Required[dict[str, Any]]
    heads: Required[dict[str, str]]
    """Digest of the pretrained head by the loss of the runs that start from it."""
    banks: list[list[str]]
    """Runs that are trained together, by `run_digest`."""


@dataclass(frozen=True, slots=True, eq=False)
class SweepFolder:
    """A sweep's folder, held by this process."""

    path: Path
    recorded: dict[str, Path]
    """Records by the identity of their run."""
    configs: list[Mapping[str, Any]]
    """The settings of all of them."""
    info: dict[str, Any]
    """The content of sweep.json."""

    @property
    def banks(self) -> list[list[str]]:
        """Runs that were planned to be trained together, by their digests."""
        banks: list[list[str]] = self.info.get("banks", [])
        return banks

    def remember(self, banks: Iterable[Iterable[Study]]) -> None:
        """Write down which runs are trained together, before their training.

        Raises:
            ClinitError: If it cannot be written.
        """
        told = [[run_digest(run) for run in bank] for bank in banks]
        named = {name for bank in told for name in bank}
        # Banks of other grids, which may resume later, and banks that are trained already.
        kept = [bank for bank in self.banks if bank in told or named.isdisjoint(bank)]
        all_banks = kept + [bank for bank in told if bank not in kept]
        if all_banks != self.banks:
            self.info["banks"] = all_banks
            _DOCUMENT.write(self.path / SWEEP, self.info)

    def record_of(self, run: Study) -> Path | None:
        """Return the record of `run`; None if there is none."""
        return self.recorded.get(run.identity)

    def records_of(self, runs: Iterable[Study]) -> list[Path]:
        """Return the records of the runs that have one."""
        return [path for run in runs if (path := self.record_of(run)) is not None]

    def add(self, run: Study, folder: Path) -> None:
        """Remember a record that was just written."""
        self.recorded[run.identity] = folder
        self.configs.append(run.values())


def run_digest(run: Study) -> str:
    """Return the digest by which sweep.json names a run."""
    return hashlib.sha256(run.identity.encode()).hexdigest()[:32]


def open_folder(path: Path, data: RunData, losses: set[str]) -> SweepFolder:
    """Read what a sweep's folder holds, which this process has claimed.

    Args:
        path: The folder.
        data: The data of the sweep's runs.
        losses: Losses of its runs, each of which has its pretrained head.

    Raises:
        RecordError: If a record was made with other caches or another pretrained head, or a
            record or sweep.json is damaged.
    """
    found = [(folder, read_info(folder)) for folder in find_records(path)]
    for folder, stored in found:
        with_head = stored["config"].get("loss", Training().loss) in losses
        check_data(folder, stored, data, with_head=with_head, remedy=_KEPT)
    info: dict[str, Any] = {
        **{
            side: {name: description.get(name) for name in ("fingerprint", *DATA_DIGESTS)}
            for side, description in data.descriptions.items()
        },
        "heads": {loss: head_digest(data.head_for(loss)) for loss in sorted(losses)},
    }
    before: dict[str, Any] = {}
    if (path / SWEEP).is_file():
        before = _DOCUMENT.load(path / SWEEP)
        _DOCUMENT.convert(before, _SweepInfo, origin=str(path / SWEEP))
        info = {**before, **info, "heads": {**before["heads"], **info["heads"]}}
    if info != before:
        _DOCUMENT.write(path / SWEEP, info)
    configs: list[Mapping[str, Any]] = [settings_of(stored) for _, stored in found]
    recorded = {identity_of(each): folder for each, (folder, _) in zip(configs, found, strict=True)}
    return SweepFolder(path, recorded, configs, info)
