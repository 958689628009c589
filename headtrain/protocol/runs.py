"""Runs of one call: data, folders, which runs are left to train, training and recording.

The command line, Python, sweeps and repetitions of runs all use these functions, so that a run
always has the same folder and is never trained twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from clinit.errors import RecordError
from clinit.extract.cache.fingerprint import Fingerprint
from clinit.files.paths import is_file
from clinit.headtrain.protocol.events import BankStarted
from clinit.headtrain.protocol.experiment import RunData, run_experiment
from clinit.headtrain.protocol.learner import Diagnose
from clinit.headtrain.protocol.record.format import (
    INFO,
    RunRecord,
    check_free,
    read_info,
    write_record,
)
from clinit.headtrain.protocol.record.info import settings_of, study_of_run
from clinit.headtrain.protocol.stream.source import head_digest
from clinit.headtrain.protocol.study.study import Study, by_stream, identity_of, names_of
from clinit.observer import Observer, ignore

_REMEDY = "Choose another --out, or replace it with --overwrite."
DATA_DIGESTS = (
    *("manifest_digest", "val_manifest_digest"),
    *("features_digest", "val_features_digest", "groups_digest"),
)
"""Fields that identify the data of a side (base or new classes), in addition to its fingerprint."""


def places_of(studies: Sequence[Study], out: Path, *, overwrite: bool = False) -> dict[Study, Path]:
    """Return the folder of each run: of its existing record in `out`, or else `out/NAME`.

    The name of a run contains the settings that differ within the call. So the same run has another
    name in a call with several seeds than in a call with one seed.

    Args:
        studies: The settings of the runs, resolved.
        out: The folder of all records.
        overwrite: Replace records in these folders, of these or other runs.

    Raises:
        ValueError: If there is no study, or if two are equal.
        RecordError: If a folder contains something else, or a record cannot be written there.
    """
    found: dict[str, Path] = {}
    for info in sorted(out.glob(f"*/{INFO}")):
        with suppress(RecordError):  # a damaged record is refused if its folder is needed
            found[identity_of(settings_of(read_info(info.parent)))] = info.parent
    named = zip(studies, names_of(studies), strict=True)
    places = {study: found.get(study.identity, out / name) for study, name in named}
    written = (place for place in places.values() if overwrite or not is_file(place / INFO))
    check_free(written, overwrite=overwrite)
    return places


def left_of(
    places: Mapping[Study, Path], data: RunData, *, diagnosed: bool = False, overwrite: bool = False
) -> dict[Study, Path]:
    """Return the runs to train: the runs whose folder does not contain their record.

    The checkpoint of a recorded run is removed: the run was killed after it wrote its record.

    Args:
        places: Result of `places_of`.
        data: The data of the runs.
        diagnosed: Whether records must contain diagnoses; unrequested diagnoses are accepted.
        overwrite: Train all runs again, to replace existing records.

    Raises:
        RecordError: If a folder contains the record of another run, or of other data.
    """
    if overwrite:
        return dict(places)
    left = {}
    for study, place in places.items():
        if not is_file(place / INFO):
            left[study] = place
            continue
        stored = read_info(place)
        wanted, found = study.telling, study_of_run(stored, str(place)).telling
        if differing := sorted(name for name in wanted if wanted[name] != found.get(name)):
            each = (f"{name} ({found.get(name)} there, {wanted[name]} now)" for name in differing)
            sweep = f"clinit sweep{' --top' if study.top is not None else ''}"
            raise RecordError(
                f"{place} holds the record of another run: config differs in {', '.join(each)}",
                remedy=f"{_REMEDY} `{sweep}` collects runs of several settings in one folder.",
            )
        check_data(place, stored, data)
        if diagnosed and not all("diagnosis" in task for task in stored["tasks"]):
            raise RecordError(
                f"{place} holds the record of this run, but without the diagnoses asked for",
                remedy=_REMEDY,
            )
        if study.top is not None:
            checkpoint_of(place).unlink(missing_ok=True)
    return left


def check_data(
    folder: Path | None,
    stored: Mapping[str, Any],
    data: RunData,
    *,
    with_head: bool = True,
    remedy: str = _REMEDY,
) -> None:
    """Check that a record was made with these data and, if `with_head`, with their head.

    Raises:
        RecordError: If data or head differ; `remedy` is the next step.
    """
    differing = []
    for side, mine in (("base", data.base.description), ("new", data.new.description)):
        then = stored.get(side) or {}
        if bool(then) != bool(mine):
            differing.append(f"{side} classes ({'none there' if mine else 'none now'})")
            continue
        for each in _all_fields(then).differences(_all_fields(mine)):
            there, now = each.told
            differing.append(f"{side} {each.name} ({there} there, {now} now)")
    loss = stored["config"].get("loss", "")
    known = (stored.get("head") or {}).get("digest")
    if with_head and known not in (None, head_digest(data.head_for(loss))):
        differing.append(f"the head that {loss} starts from")
    if differing:
        message = f"{folder} was made with other data: {', '.join(differing)}"
        raise RecordError(message, remedy=remedy)


def _all_fields(side: Mapping[str, Any]) -> Fingerprint:
    known = {name: str(side[name]) for name in DATA_DIGESTS if side.get(name) is not None}
    return Fingerprint({**(side.get("fingerprint") or {}), **known})


BankRecords = Iterator[tuple[Sequence[Study], list[RunRecord]]]
"""Banks with their records, each trained when it is asked for."""


def train_banks(
    data: RunData,
    banks: Sequence[Sequence[Study]],
    observer: Observer = ignore,
    diagnose: Diagnose | None = None,
) -> BankRecords:
    """Train banks one after another; yield each with its records."""
    for number, bank in enumerate(banks, start=1):
        observer(BankStarted(bank, number, len(banks)))
        yield bank, run_experiment(data, bank, observer=observer, diagnose=diagnose)


def train_heads(
    data: RunData,
    studies: Sequence[Study],
    left: Mapping[Study, Path] | None = None,
    *,
    observer: Observer = ignore,
    diagnose: Diagnose | None = None,
    overwrite: bool | None = None,
) -> dict[Study, RunRecord]:
    """Train one stream after another, all heads of a stream together, and record runs in `left`.

    If a run of a stream is in `left`, all heads of the stream are trained, also the recorded heads,
    so that the results are equal to the results of an uninterrupted call.

    Args:
        data: The data of the runs.
        studies: All runs of the call, resolved, without top blocks.
        left: The runs to record, each with its folder; None: all runs, and nothing is written.
        observer: Called with each event as it happens.
        diagnose: Measures each head at the end of each task.
        overwrite: Replace existing records; None if the caller has no such option.

    Raises:
        ClinitError: If the data do not fit together, or a record cannot be written.
    """
    wanted = {*studies} if left is None else left.keys()
    banks = [bank for bank in by_stream(studies, data.heads) if not wanted.isdisjoint(bank)]
    records: dict[Study, RunRecord] = {}
    for bank, made in train_banks(data, banks, observer, diagnose):
        for study, record in zip(bank, made, strict=True):
            if study in wanted:
                records[study] = record
                if left is not None:
                    write_record(record, left[study], overwrite=overwrite)
    return records


def checkpoint_of(place: Path) -> Path:
    """Return the checkpoint of the run that is recorded in `place`."""
    return place.with_name(f"{place.name}.checkpoint")
