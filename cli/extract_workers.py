"""Where `clinit extract` computes: in this process, or on a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from clinit.cli.progress import doing

if TYPE_CHECKING:
    from pathlib import Path

    from clinit.extract.work.run import ExtractConfig, Network
    from clinit.extract.work.shard_work import ShardWork
    from clinit.extract.work.split_run import Crew


@dataclass(frozen=True, slots=True)
class Hosts:
    """Where shards are computed."""

    device: str
    ray: Any = None
    """The module, connected to a cluster; None for this process."""

    def hire(
        self, config: ExtractConfig, root: Path, out: Path, *, threads: int | None
    ) -> tuple[Network | None, Callable[[ShardWork], Crew] | None]:
        """Return a network and who computes; None and None for this process.

        This process needs the network to know what the features depend on; it computes none.
        """
        if self.ray is None:
            return None, None
        from clinit.extract.cluster import hire
        from clinit.extract.work.run import load_network

        out.mkdir(parents=True, exist_ok=True)
        crew = hire(self.ray, config, root, out, threads=threads)
        here = replace(config, backbone=replace(config.backbone, device="cpu"))
        return load_network(here), lambda work: crew.of(work, out)


@contextmanager
def workers_on(address: str | None, device: str) -> Iterator[Hosts]:
    """Choose the device, on this machine or on the cluster at `address`."""
    if address is None:
        import torch

        from clinit.extract.device import choose_device
        from clinit.extract.work.part import local_device

        chosen = str(choose_device(device))
        yield Hosts(local_device(chosen, os.environ, torch.cuda.device_count()))
        return
    from clinit.extract.cluster import workers_device
    from clinit.extract.ray_cluster import connected

    with ExitStack() as stack:
        with doing(f"Connecting to {address} …"):
            ray = stack.enter_context(connected(address))
        yield Hosts(workers_device(ray, device), ray)
