"""The workload of the fault campaign, made once for all processes of a test run."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable, Iterator

import pytest
from fault_trials.server import Server
from fault_trials.trial import Failure, Place, Trial, campaign_folder
from fault_trials.workload import make_work


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    shared = tmp_path_factory.getbasetemp()
    if shared.name.startswith("popen-"):  # of a worker of pytest-xdist
        shared = shared.parent
    work, scratch = shared / "faults-work", campaign_folder()
    with Server() as server:
        with (shared / "faults.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (work / "kept").is_dir():
                make_work(server, work)
        yield Place(server, work, scratch)
    shutil.rmtree(scratch)


@pytest.fixture
def failures(place: Place) -> Callable[[Trial], list[Failure]]:
    """Make a trial in a folder of its own; return what went wrong."""

    def run(trial: Trial) -> list[Failure]:
        folder = place.scratch / "t00000"  # names of folders are of one length, for tables
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return trial.run(place, folder)

    return run
