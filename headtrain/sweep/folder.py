"""The folder of a sweep: one record per run.

A sweep reads its folder before it trains. It does not train recorded runs again, and refuses
records of other data.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clinit.headtrain.record.format import find_records, read_info
from clinit.headtrain.record.info import settings_of
from clinit.headtrain.runs import RunData, check_data
from clinit.headtrain.study.parts import Training
from clinit.headtrain.study.study import Study, identity_of

_KEPT = (
    "Existing records there are kept. Give the caches and heads that they were made with, or"
    " another --out."
)


@dataclass(frozen=True, slots=True, eq=False)
class SweepFolder:
    """The folder of a sweep, claimed by this process."""

    path: Path
    recorded: dict[str, Path]
    """Records by the identity of their run."""
    configs: list[Mapping[str, Any]]
    """The settings of all recorded runs."""
    banks: dict[str, Sequence[Mapping[str, Any]]]
    """Differing settings of all heads in the bank of each recorded run, by its identity."""

    def record_of(self, run: Study) -> Path | None:
        """Return the record of `run`; None if it is not recorded."""
        return self.recorded.get(run.identity)

    def add(self, run: Study, folder: Path) -> None:
        """Remember a record that was just written."""
        self.recorded[run.identity] = folder
        self.configs.append(run.values())


def run_digest(run: Study) -> str:
    """Return the digest that names the checkpoint of a run."""
    return hashlib.sha256(run.identity.encode()).hexdigest()[:32]


def open_folder(path: Path, data: RunData, losses: set[str]) -> SweepFolder:
    """Read the folder of a sweep, which this process has claimed.

    Args:
        path: The folder.
        data: The data of the sweep's runs.
        losses: Losses of the sweep's runs; each loss has its pretrained head.

    Raises:
        RecordError: If a record was made with other caches or another pretrained head, or is
            damaged.
    """
    recorded: dict[str, Path] = {}
    configs: list[Mapping[str, Any]] = []
    banks: dict[str, Sequence[Mapping[str, Any]]] = {}
    for folder in find_records(path):
        stored = read_info(folder)
        with_head = stored["config"].get("loss", Training().loss) in losses
        check_data(folder, stored, data, with_head=with_head, remedy=_KEPT)
        configs.append(settings_of(stored))
        identity = identity_of(configs[-1])
        recorded[identity], banks[identity] = folder, stored.get("bank", ())
    return SweepFolder(path, recorded, configs, banks)
