"""Which runs of a call are there already."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clinit.errors import RecordError
from clinit.extract.head import Head
from clinit.headtrain.record.format import INFO, check_free, finite, read_info
from clinit.headtrain.record.info import settings_of
from clinit.headtrain.stream.base_head import head_digest
from clinit.headtrain.stream.source import Source

_REMEDY = "Choose another --out, or remove the old record first."


def is_finished(
    folder: Path,
    settings: Mapping[str, Any],
    base: Source,
    new: Source,
    head: Head,
    *,
    diagnosed: bool = False,
) -> bool:
    """Return whether `folder` holds the record of this very run.

    Args:
        folder: Folder of the record.
        settings: What the run is asked to do, as its record says it.
        base: The data of the classes of the head.
        new: The data of the classes that arrive.
        head: What the run starts from.
        diagnosed: Whether its record must hold diagnoses; those that it holds never disturb.

    Raises:
        RecordError: If it holds anything else, or no record can be written there.
    """
    if not (folder / INFO).is_file():
        check_free([folder])
        return False
    stored = read_info(folder)
    wanted = {
        "config": settings_of({"config": settings}),
        "base": _without_path(base.description),
        "new": _without_path(new.description),
        "head": {"digest": head_digest(head)},
    }
    for name, value in wanted.items():
        found = settings_of(stored) if name == "config" else _without_path(stored.get(name) or {})
        if name == "head":  # what else is known about it does not matter
            found = {"digest": found.get("digest")}
        if finite(value) != found:
            differing = sorted(
                key for key in {*value, *found} if finite(value.get(key)) != found.get(key)
            )
            raise RecordError(
                f"{folder} holds the record of another run: {name} differs in"
                f" {', '.join(differing)}",
                remedy=_REMEDY,
            )
    if diagnosed and not all("diagnosis" in task for task in stored["tasks"]):
        raise RecordError(
            f"{folder} holds the record of this run, but without the diagnoses asked for",
            remedy=_REMEDY,
        )
    return True


def _without_path(description: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in description.items() if name != "path"}
