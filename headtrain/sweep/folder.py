"""The folder of a sweep: its records, and the data that they were made with.

    sweep.json     fingerprints of both caches, digests of the pretrained heads, and which runs
                   are trained together; sealed
    <run>/         one record per run

A sweep reads its folder before it trains: what is recorded is not trained again, and records
of other data are refused. The last bits of a run depend on the bank that it is trained in, and
the size of a bank on the memory that is free; so a sweep that goes on finds its banks here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Required, TypedDict

from clinit.errors import CacheError, RecordError
from clinit.extract.cache.fingerprint import Fingerprint
from clinit.files.documents import DocumentKind
from clinit.headtrain.record.format import find_records, read_info
from clinit.headtrain.record.info import settings_of
from clinit.headtrain.runs import RunData
from clinit.headtrain.stream.base_head import head_digest
from clinit.headtrain.study.parts import Training
from clinit.headtrain.study.study import Study, identity_of
from clinit.words import number_of

SWEEP = "sweep.json"
_DOCUMENT = DocumentKind(
    title="the description of a sweep",
    format="clinit-sweep/2",
    older=("clinit-sweep/1",),
    error=RecordError,
    remedy="Remove this file, not the records beside it; it is written anew.",
)


class _SweepSide(TypedDict, total=False):
    """One of the two data sets."""

    fingerprint: Required[dict[str, str]]
    manifest_digest: str | None
    val_manifest_digest: str | None


class _SweepInfo(TypedDict, total=False):
    """The content of sweep.json."""

    base: Required[_SweepSide]
    new: Required[_SweepSide]
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
    def banks(self) -> Sequence[Sequence[str]]:
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
        # Those of other grids, which may go on later, and those that are trained already.
        kept = [bank for bank in self.banks if bank in told or named.isdisjoint(bank)]
        all_banks = kept + [bank for bank in told if bank not in kept]
        if all_banks != self.banks:
            self.info["banks"] = all_banks
            _DOCUMENT.write(self.path / SWEEP, self.info)

    def record_of(self, run: Study) -> Path | None:
        """Return where `run` is recorded; None where it is not."""
        return self.recorded.get(run.identity)

    def records_of(self, runs: Iterable[Study]) -> list[Path]:
        """Return where those of the runs are recorded that are."""
        return [path for run in runs if (path := self.record_of(run)) is not None]

    def add(self, run: Study, folder: Path) -> None:
        """Remember a record that was just written."""
        self.recorded[run.identity] = folder
        self.configs.append(run.values())


def run_digest(run: Study) -> str:
    """Return the digest by which sweep.json names a run."""
    return _digest(run.identity)


def _digest(identity: str) -> str:
    return hashlib.sha256(identity.encode()).hexdigest()[:32]


def open_folder(path: Path, data: RunData, losses: set[str]) -> SweepFolder:
    """Read what a sweep's folder holds, which this process has claimed.

    Args:
        path: The folder.
        data: What the sweep's runs read.
        losses: Losses of its runs, each of which has its pretrained head.

    Raises:
        CacheError: If the folder was made with other caches or other pretrained heads.
        RecordError: If a record or sweep.json is damaged.
    """
    heads = {loss: head_digest(data.head_for(loss)) for loss in sorted(losses)}
    found = [(folder, read_info(folder)) for folder in find_records(path)]
    for folder, info in found:
        where = f"the record {folder}"
        _check_sides(_sides(data), info, where, len(found))
        loss = info["config"].get("loss", Training().loss)
        started_from = (info.get("head") or {}).get("digest")
        if loss in heads and started_from not in (None, heads[loss]):
            raise _replaced(where, [f"the head that {loss} starts from"], len(found))
    return SweepFolder(
        path,
        {identity_of(settings_of(info)): folder for folder, info in found},
        [info["config"] for _, info in found],
        _settle(path / SWEEP, data, heads, len(found)),
    )


def _settle(
    path: Path, data: RunData, heads: Mapping[str, str], num_records: int
) -> dict[str, Any]:
    """Check that the data are those of the folder, or record them; return sweep.json."""
    if not path.is_file():
        info: dict[str, Any] = {**_sides(data), "heads": dict(heads)}
    else:
        info = _DOCUMENT.load(path)
        _DOCUMENT.convert(info, _SweepInfo, origin=str(path))
        _check_sides(_sides(data), info, str(path), num_records)
        for loss, digest in heads.items():
            if info["heads"].get(loss, digest) != digest:
                raise _replaced(str(path), [f"the head that {loss} starts from"], num_records)
        if heads.items() <= info["heads"].items():
            return info
        info["heads"] = {**info["heads"], **heads}
    _DOCUMENT.write(path, info)
    return info


def _check_sides(
    sides: Mapping[str, Mapping[str, Any]], found: Mapping[str, Any], where: str, num_records: int
) -> None:
    differing = []
    for side, mine in sides.items():
        theirs = _all_fields(_side(found.get(side) or {}))
        for each in theirs.differences(_all_fields(mine)):
            there, now = each.told
            differing.append(f"{side} {each.name} ({there} there, {now} now)")
    if differing:
        raise _replaced(where, differing, num_records)


def _replaced(where: str, differing: list[str], num_records: int) -> CacheError:
    return CacheError(
        f"{where} was made with other data: {', '.join(differing)}",
        remedy=f"What is recorded there, {number_of(num_records, 'run')}, is kept as it is. Give"
        " the caches and heads that they were made with, or another --out.",
    )


def _sides(data: RunData) -> dict[str, dict[str, Any]]:
    """Return the fingerprints of both sides, without the paths of their caches."""
    return {"base": _side(data.base.description), "new": _side(data.new.description)}


def _side(description: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: description.get(name)
        for name in (
            "fingerprint",
            "manifest_digest",
            "val_manifest_digest",
            "features_digest",
            "val_features_digest",
            "groups_digest",
        )
    }


def _all_fields(side: Mapping[str, Any]) -> Fingerprint:
    """Return the fingerprint of a side with the digests beside it."""
    digests = {name: each for name, each in side.items() if name != "fingerprint"}
    known = {name: str(digest) for name, digest in digests.items() if digest is not None}
    return Fingerprint({**(side.get("fingerprint") or {}), **known})
