"""The folder of a sweep: its records, and on what data they were made.

    sweep.json     fingerprints of both caches, digests of the pretrained heads
    <run>/         one record a run

A sweep reads its folder before it trains: what is recorded is not trained again, and records
of other data are refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clinit.errors import CacheError, ClinitError, RecordError
from clinit.extract.commit import commit_json
from clinit.extract.contrast import contrast
from clinit.extract.head import Head
from clinit.extract.lock import claim_folder
from clinit.headtrain.base_head import head_digest
from clinit.headtrain.record import find_records, read_info
from clinit.headtrain.source import Source
from clinit.headtrain.sweep.run import Run, identity

FORMAT = "clinit-sweep/1"
SWEEP = "sweep.json"


@dataclass(frozen=True, slots=True, eq=False)
class SweepData:
    """What all runs of a sweep read."""

    base: Source
    new: Source
    head: Head
    """The pretrained head that runs start from."""
    heads: Mapping[str, Head] = field(default_factory=dict)
    """By loss, where runs of that loss start from another head: an aligned one."""
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What records say about the heads, by loss; "" for `head`."""

    def head_for(self, loss: str) -> Head:
        """Return the pretrained head that runs of `loss` start from."""
        return self.heads.get(loss, self.head)

    def facts_for(self, loss: str) -> Mapping[str, Any]:
        """Return what a record says about the head that runs of `loss` start from."""
        return self.facts.get(loss if loss in self.heads else "", {})

    @property
    def num_classes(self) -> int:
        """Most rows that a head can have at the end of a stream."""
        return self.head.num_classes + len(self.new.class_names)

    @property
    def sides(self) -> dict[str, dict[str, Any]]:
        """The fingerprints of both sides, without their places."""
        return {"base": _side(self.base.description), "new": _side(self.new.description)}


@dataclass(frozen=True, slots=True, eq=False)
class SweepFolder:
    """A sweep's folder, held by this process."""

    path: Path
    recorded: dict[str, Path]
    """Records by the identity of their run."""
    configs: list[Mapping[str, Any]]
    """The settings of all of them."""

    def record_of(self, run: Run) -> Path | None:
        """Return where `run` is recorded; None where it is not."""
        return self.recorded.get(run.identity)

    def add(self, run: Run, folder: Path) -> None:
        """Remember a record that was just written."""
        self.recorded[run.identity] = folder
        self.configs.append(run.config)


@contextmanager
def hold_folder(path: Path, data: SweepData, losses: set[str]) -> Iterator[SweepFolder]:
    """Take a sweep's folder for this process, and read what it holds.

    Args:
        path: Made if it is not there.
        data: What the sweep's runs read.
        losses: Those of its runs: each has its pretrained head.

    Raises:
        CacheError: If the folder was made with other caches or other pretrained heads.
        RecordError: If another process writes there, or a record cannot be read.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(claim_folder(path))
        except ClinitError as error:
            raise RecordError(
                f"cannot take the sweep folder {path}: another process holds it, or it cannot be"
                " written",
                remedy="Wait until the other sweep has finished, or choose another --out.",
            ) from error
        found = [(folder, read_info(folder)) for folder in find_records(path)]
        for folder, info in found:
            _check_sides(data.sides, info, f"the record {folder}", len(found))
        _settle(path / SWEEP, data, losses, len(found))
        yield SweepFolder(
            path,
            {identity(info["config"]): folder for folder, info in found},
            [info["config"] for _, info in found],
        )


def _settle(path: Path, data: SweepData, losses: set[str], num_records: int) -> None:
    """Compare the data with what the folder was made with, or write it down."""
    heads = {loss: head_digest(data.head_for(loss)) for loss in sorted(losses)}
    if path.is_file():
        stored = _read(path)
        _check_sides(data.sides, stored, str(path), num_records)
        for loss, digest in heads.items():
            if stored["heads"].get(loss, digest) != digest:
                raise _replaced(str(path), [f"the head that {loss} starts from"], num_records)
        heads = {**stored["heads"], **heads}
        if heads == stored["heads"]:
            return
    commit_json(path, {"format": FORMAT, **data.sides, "heads": heads})


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        known = content["format"] == FORMAT and isinstance(content["heads"], dict)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RecordError(
            f"{path} is damaged: {error}",
            remedy="Remove this file, not the records beside it; it is written anew.",
        ) from error
    if not known:
        raise RecordError(
            f"{path} is of another layout than {FORMAT}",
            remedy="Continue with the version of clinit that wrote it, or choose another --out.",
        )
    return dict(content)


def _check_sides(
    sides: Mapping[str, Mapping[str, Any]], found: Mapping[str, Any], where: str, num_records: int
) -> None:
    differing = []
    for side, mine in sides.items():
        theirs, own = _flat(_side(found.get(side) or {})), _flat(mine)
        differing += [
            f"{side} {name} ({_both(theirs.get(name), own.get(name))})"
            for name in {**theirs, **own}
            if theirs.get(name) != own.get(name)
        ]
    if differing:
        raise _replaced(where, differing, num_records)


def _replaced(where: str, differing: list[str], num_records: int) -> CacheError:
    return CacheError(
        f"{where} was made with other data: {', '.join(differing)}",
        remedy=f"The {num_records:,} runs recorded there are kept as they are. Give the caches"
        " and heads that they were made with, or another --out.",
    )


def _side(description: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: description.get(name)
        for name in (
            "fingerprint",
            "manifest_digest",
            "val_manifest_digest",
            "features_digest",
            "val_features_digest",
        )
    }


def _flat(side: Mapping[str, Any]) -> dict[str, Any]:
    rest = {name: value for name, value in side.items() if name != "fingerprint"}
    return {**(side.get("fingerprint") or {}), **rest}


def _both(theirs: object, own: object) -> str:
    there, now = ("absent" if value is None else str(value) for value in (theirs, own))
    there, now = contrast(there, now)
    return f"{there} there, {now} now"
