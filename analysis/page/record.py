"""What a record says about its run beside its numbers, and how to repeat it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from clinit.analysis.report.run import RunSummary
from clinit.analysis.report.tables import duration

_ABOUT = {"device": "device", "started": "started", "git_commit": "commit of clinit"}


def repetition(run: RunSummary) -> dict[str, Any]:
    """Return the path, the settings, the versions and the commands of a run, as texts."""
    info: Mapping[str, Any] = run.record.info
    about = [[words, _text(info[name])] for name, words in _ABOUT.items() if info.get(name)]
    if info.get("seconds") is not None:
        about.insert(0, ["time", duration(info["seconds"])])
    command = info.get("command")
    return {
        "path": str(run.path) if run.record.path else None,
        "about": about,
        "settings": _pairs(run.config),
        "versions": _pairs(info.get("versions") or {}),
        "command": shlex.join(command) if command else None,
        "rerun": shlex.join(["clinit", "rerun", str(run.path)]) if run.record.path else None,
    }


def _pairs(values: Mapping[str, Any]) -> list[list[str]]:
    return [[str(name), _text(value)] for name, value in values.items() if value is not None]


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
