"""Which runs of a call are there already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from clinit.errors import RecordError
from clinit.extract.head import Head
from clinit.headtrain.record.format import INFO, check_free, finite, read_info
from clinit.headtrain.record.info import settings_of, study_of_run
from clinit.headtrain.stream.base_head import head_digest
from clinit.headtrain.stream.source import Source
from clinit.headtrain.study import PLACES, Study, identity_of

_REMEDY = "Choose another --out, or replace it with --overwrite."
_SETTINGS_REMEDY = f"{_REMEDY} `clinit sweep` collects runs of several settings in one folder."


def places_of(studies: Sequence[Study], names: Sequence[str], out: Path) -> list[Path]:
    """Return the folder of each run in `out`: that of its record, or else that of its name.

    A run has another name beside runs of other seeds; it is the same run.

    Args:
        studies: What the runs are asked to do, resolved.
        names: Their names, in the same order.
        out: The folder of all records.
    """
    found: dict[str, Path] = {}
    for info in sorted(out.glob(f"*/{INFO}")):
        with suppress(RecordError):  # a damaged one is refused where its name is needed
            found[identity_of(settings_of(read_info(info.parent)))] = info.parent
    return [found.get(run.identity, out / name) for run, name in zip(studies, names, strict=True)]


def unrecorded(
    studies: Sequence[Study],
    folders: Sequence[Path],
    base: Source,
    new: Source,
    head: Head,
    *,
    diagnosed: bool = False,
    overwrite: bool = False,
) -> list[int]:
    """Return the numbers of the runs that are to be trained; see `is_finished`.

    Raises:
        RecordError: If a folder holds anything else, or no record can be written there.
    """
    return [
        number
        for number, (study, folder) in enumerate(zip(studies, folders, strict=True))
        if not is_finished(folder, study, base, new, head, diagnosed=diagnosed, overwrite=overwrite)
    ]


def is_finished(
    folder: Path,
    study: Study,
    base: Source,
    new: Source,
    head: Head,
    *,
    diagnosed: bool = False,
    overwrite: bool = False,
) -> bool:
    """Return whether `folder` holds the record of this very run, and it is to stay.

    Args:
        folder: Folder of the record.
        study: What the run is asked to do, resolved.
        base: The data of the classes of the head.
        new: The data of the classes that arrive.
        head: What the run starts from.
        diagnosed: Whether its record must hold diagnoses; those that it holds never disturb.
        overwrite: Whether a record that is there, of this run or another, is to be replaced.

    Raises:
        RecordError: If it holds anything else, or no record can be written there.
    """
    if overwrite or not (folder / INFO).is_file():
        check_free([folder], overwrite=overwrite)
        return False
    stored = read_info(folder)
    recorded = _telling(study_of_run(stored, str(folder)))
    _compare(folder, "config", _telling(study), recorded, _SETTINGS_REMEDY)
    check_data(folder, stored, base, new, head)
    if diagnosed and not all("diagnosis" in task for task in stored["tasks"]):
        raise RecordError(
            f"{folder} holds the record of this run, but without the diagnoses asked for",
            remedy=_REMEDY,
        )
    return True


def check_data(
    folder: Path | None,
    stored: Mapping[str, Any],
    base: Source,
    new: Source,
    head: Head,
    *,
    remedy: str = _REMEDY,
) -> None:
    """Check that a record is of these data and this head; `remedy` is what to do otherwise.

    Raises:
        RecordError: If one of them is another.
    """
    where = {
        "base": _without_path(base.description),
        "new": _without_path(new.description),
        "head": {"digest": head_digest(head)},
    }
    found = {name: _without_path(stored.get(name) or {}) for name in where}
    found["head"] = {"digest": found["head"].get("digest")}  # what else is known is no matter
    for name, value in where.items():
        _compare(folder, name, finite(value), found[name], remedy)


def _compare(
    folder: Path | None,
    name: str,
    wanted: Mapping[str, Any],
    found: Mapping[str, Any],
    remedy: str = _REMEDY,
) -> None:
    if wanted == found:
        return
    differing = sorted(k for k in {*wanted, *found} if wanted.get(k) != found.get(k))
    raise RecordError(
        f"{folder} holds the record of another run: {name} differs in {', '.join(differing)}",
        remedy=remedy,
    )


def _telling(study: Study) -> dict[str, Any]:
    """Return the settings that tell a run from others."""
    left_out = {*PLACES, "probe"}
    return {k: value for k, value in study.reduced().values().items() if k not in left_out}


def _without_path(description: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in description.items() if name != "path"}
