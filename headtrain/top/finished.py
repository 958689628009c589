"""Which runs of a call are there already."""

from __future__ import annotations

from pathlib import Path

from clinit.errors import RecordError
from clinit.headtrain.config import HeadConfig
from clinit.headtrain.record import INFO, check_free, finite, read_info
from clinit.headtrain.top.study import Study


def is_finished(study: Study, head: HeadConfig, folder: Path) -> bool:
    """Say whether `folder` holds the record of this very run.

    Raises:
        RecordError: If it holds anything else, or no record can be written there.
    """
    if not (folder / INFO).is_file():
        check_free([folder])
        return False
    stored = read_info(folder)
    wanted = {"config": study.settings(head)}
    for side, source in (("base", study.base), ("new", study.new)):
        wanted[side] = _without_path(source.description)
    for name, value in wanted.items():
        found = stored.get(name, {})
        found = found if name == "config" else _without_path(found)
        if finite(value) != found:
            differing = sorted(
                key for key in {*value, *found} if finite(value.get(key)) != found.get(key)
            )
            raise RecordError(
                f"{folder} holds the record of another run: {name} differs in"
                f" {', '.join(differing)}",
                remedy="Choose another --out, or remove the old record first.",
            )
    return True


def _without_path(description: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in description.items() if name != "path"}
