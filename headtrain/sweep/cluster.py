"""Banks as Ray tasks: one GPU each where the cluster has GPUs, else one core.

The data goes through Ray's object store, once per node, and the records come back through it: no
folder needs to be shared, and every node reads the same features that the sweep was planned
with. The sweep's folder is written by the process that started it; Ray retries tasks of nodes
that are lost.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import clinit.errors
from clinit.errors import ClinitError, ExperimentError
from clinit.headtrain.record.format import RunRecord
from clinit.headtrain.sweep.folder import SweepData
from clinit.headtrain.sweep.plan import BankPlan
from clinit.headtrain.sweep.runner import SweepEvent, Train, Trained, train_here


@dataclass(frozen=True, slots=True)
class Refusal:
    """A known error of a task, since exceptions with keyword arguments cannot be pickled."""

    kind: str
    message: str
    remedy: str

    def raise_again(self) -> None:
        """Raise the error in this process."""
        kind: type[ClinitError] = getattr(clinit.errors, self.kind, ClinitError)
        raise kind(self.message, remedy=self.remedy)


@contextmanager
def train_on_ray(data: SweepData, address: str, *, command: Sequence[str] = ()) -> Iterator[Train]:
    """Connect to the cluster at `address`; yield the function that trains banks there.

    Raises:
        ExperimentError: If Ray is not installed or there is no cluster at `address`.
    """
    ray = _connect(address)
    try:
        share = {"num_gpus": 1} if ray.cluster_resources().get("GPU") else {"num_cpus": 1}
        task = ray.remote(**share)(_train)
        stored = ray.put(data)

        def train(banks: Sequence[BankPlan]) -> Trained:
            waiting = [task.remote(stored, bank, tuple(command)) for bank in banks]
            try:
                while waiting:
                    (ready,), waiting = ray.wait(waiting, num_returns=1)
                    result = ray.get(ready)
                    if isinstance(result, Refusal):
                        result.raise_again()
                    yield from result
            finally:
                for left in waiting:
                    ray.cancel(left, force=True)

        yield train
    finally:
        ray.shutdown()


def _train(
    data: SweepData, bank: BankPlan, command: Sequence[str]
) -> list[tuple[BankPlan, list[RunRecord]]] | Refusal:
    """Train one bank on a node of the cluster."""
    import ray

    try:
        trained = list(train_here(data, _ignore, command=command)([bank]))
    except ClinitError as error:
        return Refusal(type(error).__name__, str(error), error.remedy)
    node = ray.get_runtime_context().get_node_id()
    return [
        (part, [replace(record, info={**record.info, "ray_node": node}) for record in records])
        for part, records in trained
    ]


def _ignore(event: SweepEvent) -> None:
    """Ignore the event: events stay on their node."""


def _connect(address: str) -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise ExperimentError(
            "--ray needs Ray, which is not installed",
            remedy='Install it, on every node: pip install "clinit[ray]".',
        ) from error
    try:
        _knock(address)
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError, OSError) as error:
        raise ExperimentError(
            f"cannot connect to a Ray cluster at {address}: {error}",
            remedy="Start one with `ray start --head` and give HOST:6379, or `auto` on a node.",
        ) from error
    return ray


def _knock(address: str) -> None:
    """Open a connection to HOST:PORT and close it: Ray itself would wait for two minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
