"""Banks of a sweep as tasks of a Ray cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from clinit.headtrain.record.format import RunRecord
from clinit.headtrain.runs import RunData, train_bank
from clinit.headtrain.sweep.plan import Bank, Train, Trained
from clinit.ray_tasks import connected, run_tasks

SHARED = (
    "features that stay on disk are read by every node: the caches must be in a folder that all"
    " nodes share, under the same path"
)


@contextmanager
def train_on_ray(data: RunData, address: str) -> Iterator[Train]:
    """Connect to a Ray cluster; yield a function that trains each bank on one GPU or one core.

    Ray's object store sends the data once per node, and returns the records, so that no shared
    folder is needed. Only features that stay on disk must be readable by every node.

    Raises:
        ClusterError: If Ray is not installed, or if no cluster runs at `address`.
    """
    with connected(address) as ray:
        share: dict[str, Any] = (
            {"num_gpus": 1} if ray.cluster_resources().get("GPU") else {"num_cpus": 1}
        )
        stored = ray.put(data)

        def train(banks: Sequence[Bank]) -> Trained:
            return run_tasks(ray, _train_on_node, [(stored, bank) for bank in banks], **share)

        yield train


def _train_on_node(data: RunData, bank: Bank) -> tuple[Bank, list[RunRecord]]:
    """Train one bank on a node of the cluster; its events are not reported."""
    import ray

    node = ray.get_runtime_context().get_node_id()
    records = train_bank(data, bank)
    return bank, [replace(each, info={**each.info, "ray_node": node}) for each in records]
