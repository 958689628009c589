"""Banks as Ray tasks: one GPU each where the cluster has GPUs, else one core.

The data goes through Ray's object store, once per node, and the records come back through it: no
folder needs to be shared, and every node reads the same features that the sweep was planned
with. Features that stay on disk are the exception: every node reads the files themselves, in a
folder that all of them share. The sweep's folder is written by the process that started it; Ray
retries tasks of nodes that are lost.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from clinit.errors import CacheError, ClinitError, StorageError
from clinit.extract.ray_cluster import Refusal, connected
from clinit.headtrain.record.format import RunRecord
from clinit.headtrain.runs import RunData
from clinit.headtrain.sweep.plan import BankPlan, SweepEvent, Train, Trained, train_here

SHARED = (
    "features that stay on disk are read by every node: the caches must be in a folder that all"
    " nodes share, under the same path"
)


@contextmanager
def train_on_ray(data: RunData, address: str, *, command: Sequence[str] = ()) -> Iterator[Train]:
    """Connect to the cluster at `address`; yield the function that trains banks there.

    Raises:
        ClusterError: If Ray is not installed or there is no cluster at `address`.
    """
    with connected(address) as ray:
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


def _train(
    data: RunData, bank: BankPlan, command: Sequence[str]
) -> list[tuple[BankPlan, list[RunRecord]]] | Refusal:
    """Train one bank on a node of the cluster."""
    import ray

    try:
        trained = list(train_here(data, _ignore, command=command)([bank]))
    except ClinitError as error:
        return _told(error, data)
    node = ray.get_runtime_context().get_node_id()
    return [
        (part, [replace(record, info={**record.info, "ray_node": node}) for record in records])
        for part, records in trained
    ]


def _told(error: ClinitError, data: RunData) -> Refusal:
    """Return what is carried of an error; of files that a node reads itself, which node it is."""
    if data.is_loaded or not isinstance(error, CacheError | StorageError):
        return Refusal.of(error)
    return Refusal(
        type(error).__name__,
        f"{error} (on the node {socket.gethostname()}); {SHARED}; a copy is another file",
        "Give more --memory, so that features are loaded and travel through Ray, or share the"
        " folder of the caches.",
    )


def _ignore(event: SweepEvent) -> None:
    """Ignore the event: events stay on their node."""
