"""Shards as work of a Ray cluster: one worker per GPU, or per share of the processors.

A worker loads the backbone once. It is given the numbers of shards, writes each into the cache,
which all nodes share, and returns counts and seconds; the process that asked holds the claims.
What a worker was computing when it or its node was lost is given to another one. Workers are
actors of Ray Core: its tasks with a GPU load the network anew each time.
"""

from __future__ import annotations

import socket
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from clinit.errors import ClinitError, ClusterError
from clinit.extract.dataset.manifest import read_manifest
from clinit.extract.plan import read_plan
from clinit.extract.ray_cluster import Refusal
from clinit.extract.run import (
    ExtractConfig,
    Network,
    load_network,
    refuse_other_backbone,
)
from clinit.extract.shard_work import ShardWork
from clinit.extract.split_run import MANIFEST_FILE, Crew
from clinit.extract.views import View
from clinit.stopwatch import Stopwatch

ATTEMPTS = 3
"""How often the computation of a shard may fail before the run stops."""
OF_A_NODE = ("ClusterError", "MachineError", "StorageError", "DeviceError", "BackboneError")
"""Known errors that are of one node: another worker may do what this one cannot."""
STARTING_S = 300.0
"""Longest time without any worker, in seconds: images of containers are pulled meanwhile."""
_LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class ShardDone:
    """What a worker says of a shard that it has written."""

    shard: int
    rows: int
    seconds: Mapping[str, float]
    """Seconds of each phase."""


class ShardWorker:
    """The work of one actor."""

    def __init__(self, config: ExtractConfig, root: Path, out: Path) -> None:
        self._config, self._root, self._out = config, root, out
        self._network: Network | None = None
        self._work: tuple[str, ShardWork] | None = None
        """The split or view at hand."""

    def start(self) -> Refusal | None:
        """Load the backbone; return what prevents it."""
        try:
            if not self._out.is_dir() or not self._root.is_dir():
                absent = self._root if self._out.is_dir() else self._out
                raise ClusterError(
                    f"{absent} is not there on {socket.gethostname()}",
                    remedy="Put the images and the cache on storage that all nodes mount at the"
                    " same place.",
                )
            self._network = load_network(self._config)
            refuse_other_backbone(self._out, self._network.fingerprint)
        except ClinitError as error:
            return Refusal.of(error)
        return None

    def compute(self, place: str, shard: int) -> ShardDone | Refusal:
        """Compute a shard of the split or view in the folder `place` of the cache."""
        try:
            if self._work is None or self._work[0] != place:
                self._work = place, self._work_of(place)
            work = self._work[1]
            before = dict(work.timing.seconds)
            list(work.compute([shard], on_rows=lambda rows: None))
        except ClinitError as error:
            return Refusal.of(error)
        seconds = {name: s - before[name] for name, s in work.timing.seconds.items()}
        return ShardDone(shard, len(work.plan.rows(shard)), seconds)

    def _work_of(self, place: str) -> ShardWork:
        assert self._network is not None, "it was started"
        folder, transform = self._out / place, self._network.transform
        plan, manifest = read_plan(folder), read_manifest(folder / MANIFEST_FILE)
        told = plan.fingerprint
        view = None
        if told.view is not None:
            view = View.of(transform, seed=int(told.view_seed or 0), number=int(told.view))
        own = self._network.fingerprint.of_rows(manifest.digest)
        if view is not None:
            own = own.of_view(view.describe(), seed=view.seed, number=view.number)
        for each in told.differences(own):
            begun, here = each.told
            raise ClusterError(
                f"{folder} was begun with {each.name} = {begun}, {socket.gethostname()} has"
                f" {each.name} = {here}",
                remedy="Install the same versions on all nodes.",
            )
        return ShardWork(
            plan=plan,
            manifest=manifest,
            root=self._root,
            folder=folder,
            backbone=self._network.backbone,
            transform=transform,
            view=view,
            workers=self._config.workers,
            strict=self._config.strict,
            max_pixels=self._config.max_pixels,
        )


@dataclass(frozen=True, slots=True)
class Share:
    """What one worker takes of a node."""

    cpus: int
    gpus: int


def shares_of(
    nodes: Iterable[Mapping[str, Any]], *, gpus: bool, threads: int | None
) -> list[Share]:
    """Return the workers that fit on a cluster.

    Args:
        nodes: What `ray.nodes()` says.
        gpus: One worker per GPU, with its share of the node's processors.
        threads: Processors per worker, without GPUs; None gives a worker all of its node.
    """
    found = []
    for node in nodes:
        resources = node["Resources"] if node["Alive"] else {}
        cpus, cards = int(resources.get("CPU", 0)), int(resources.get("GPU", 0))
        if gpus:
            found += [Share(cpus // cards, 1)] * cards if cards else []
        elif cpus:
            each = min(threads or cpus, cpus)
            found += [Share(each, 0)] * (cpus // each)
    return found


@dataclass(slots=True, eq=False)
class RayCrew:
    """The workers of a cluster; they stay between splits."""

    ray: Any
    make: Callable[[Share], Any]
    """Makes the actor of a share."""
    size: int
    """Number of workers."""
    idle: deque[tuple[Any, Share]] = field(default_factory=deque)
    starting: dict[Any, tuple[Any, Share]] = field(default_factory=dict)
    """Workers that load their backbone, by the reference to its end."""
    refusal: Refusal | None = None
    """Why the last worker that was given up could not work."""

    def start(self, share: Share) -> None:
        """Ask for a worker; it is idle as soon as it is there."""
        worker = self.make(share)
        self.starting[worker.start.remote()] = worker, share

    def begun(self, reference: Any) -> None:
        """Take what a worker says that was starting: it is idle, or cannot work."""
        worker, share = self.starting.pop(reference)
        try:
            refusal = self.ray.get(reference)
        except self.ray.exceptions.RayError as error:
            self.refusal = Refusal.of(_unusable(error))
            return
        if refusal is None:
            self.idle.append((worker, share))
        else:
            self.dismiss(worker, refusal)

    def dismiss(self, worker: Any, refusal: Refusal) -> None:
        """Give up a worker whose node cannot do the work; the others go on."""
        self.refusal = refusal
        self.ray.kill(worker)

    def replace(self, worker: Any, share: Share) -> None:
        """Ask for another worker in place of one that is lost or has failed."""
        with suppress(self.ray.exceptions.RayError):
            self.ray.kill(worker)  # it may hold memory of a device that it cannot use any more
        self.start(share)

    def of(self, work: ShardWork, out: Path) -> Crew:
        """Return who computes the shards of a split."""
        return _SplitCrew(self, work, work.folder.relative_to(out).as_posix())


@dataclass(slots=True, eq=False)
class _SplitCrew:
    """The workers of a cluster, at one split."""

    crew: RayCrew
    work: ShardWork
    place: str
    running: dict[Any, tuple[Any, Share, int]] = field(default_factory=dict)
    given_back: deque[int] = field(default_factory=deque)
    failures: Counter[int] = field(default_factory=Counter)

    def compute(
        self,
        shards: Iterable[int],
        *,
        on_rows: Callable[[int], None],
        before_write: Callable[[int], None],
    ) -> Iterator[int]:
        """Give shards to idle workers; yield each one when it is there."""
        asked, waited = iter(shards), Stopwatch()
        try:
            while True:
                is_more = self._give_out(asked, before_write)
                if not is_more and not self.running:
                    return
                if self.running or self.crew.idle:
                    waited = Stopwatch()
                self._refuse_nobody(waited)
                references = [*self.running, *self.crew.starting]
                ready, _ = self.crew.ray.wait(references, num_returns=1, timeout=_LOOK_S)
                for reference in ready:
                    if reference in self.crew.starting:
                        self.crew.begun(reference)
                    elif (done := self._landed(reference)) is not None:
                        for phase, seconds in done.seconds.items():
                            self.work.timing.seconds[phase] += seconds
                        on_rows(done.rows)
                        yield done.shard
        finally:
            for reference in self.running:
                self.crew.ray.cancel(reference)

    def _give_out(self, asked: Iterator[int], before_write: Callable[[int], None]) -> bool:
        """Give every idle worker a shard; return whether more may be left."""
        while self.crew.idle:
            shard = self.given_back.popleft() if self.given_back else next(asked, None)
            if shard is None:
                return False
            before_write(shard)
            worker, share = self.crew.idle.popleft()
            self.running[worker.compute.remote(self.place, shard)] = worker, share, shard
        return True

    def _landed(self, reference: Any) -> ShardDone | None:
        """Take what a worker says of its shard; None where another one has to do it."""
        ray = self.crew.ray
        worker, share, shard = self.running.pop(reference)
        try:
            result = ray.get(reference)
        except ray.exceptions.RayActorError as error:
            # Perhaps it had been lost before it was given the shard, with others of its node.
            self._give_back(shard, error, limit=ATTEMPTS + self.crew.size)
            self.crew.replace(worker, share)
            return None
        except ray.exceptions.RayError as error:  # such as a device without memory
            self._give_back(shard, error, limit=ATTEMPTS)
            self.crew.replace(worker, share)
            return None
        if isinstance(result, Refusal):
            if result.kind not in OF_A_NODE:
                result.raise_again()
            self.given_back.append(shard)
            self.crew.dismiss(worker, result)
            return None
        self.crew.idle.append((worker, share))
        assert isinstance(result, ShardDone)
        return result

    def _give_back(self, shard: int, error: Exception, *, limit: int) -> None:
        """Let another worker do a shard, unless it has failed too often."""
        self.failures[shard] += 1
        if self.failures[shard] >= limit:
            raise ClusterError(
                f"shard {shard:,} of {self.place} was given up after {self.failures[shard]}"
                f" attempts: {_last_line(error)}",
                remedy="Look at the logs of the workers (`ray logs`), then run the same command"
                " again: what is there is kept.",
            ) from error
        self.given_back.append(shard)

    def _refuse_nobody(self, waited: Stopwatch) -> None:
        """Stop where no worker is there, or has been for long."""
        if self.running or self.crew.idle:
            return
        if self.crew.starting and waited.total <= STARTING_S:
            return
        if self.crew.refusal is not None:
            self.crew.refusal.raise_again()
        raise ClusterError(
            f"no worker of the cluster has started in {STARTING_S:,.0f} s",
            remedy="Look at `ray status`; then run the same command again: it resumes.",
        )


def hire(ray: Any, config: ExtractConfig, root: Path, out: Path, *, threads: int | None) -> RayCrew:
    """Start workers on the cluster that `ray` is connected to; they end with the connection.

    Args:
        ray: The module, see `connected`.
        config: How features are extracted; its device is that of the workers.
        root: The folder of the images, the same on all nodes.
        out: The folder of the cache, shared by all nodes; it exists.
        threads: Processors and decoding threads per worker; None: see `shares_of`.

    Raises:
        ClusterError: If the cluster has no place for a worker.
    """
    gpus = config.backbone.device.startswith("cuda")
    shares = shares_of(ray.nodes(), gpus=gpus, threads=threads)
    if not shares:
        raise ClusterError(
            f"the cluster has no {'GPU' if gpus else 'processor'} to work on",
            remedy="Choose another --device, or add nodes: `ray start --address=…`.",
        )
    weights = config.backbone.weights
    backbone = replace(config.backbone, weights=weights and weights.absolute())
    actor = ray.remote(ShardWorker)

    def make(share: Share) -> Any:
        told = replace(config, backbone=backbone, workers=threads or max(1, share.cpus))
        places = root.absolute(), out.absolute()
        return actor.options(num_cpus=share.cpus, num_gpus=share.gpus).remote(told, *places)

    crew = RayCrew(ray, make, len(shares))
    for share in shares:
        crew.start(share)
    return crew


def workers_device(ray: Any, asked: str) -> str:
    """Return the device of the workers: CUDA where the cluster has GPUs, unless asked otherwise."""
    if asked != "auto":
        return asked.partition(":")[0]
    return "cuda" if ray.cluster_resources().get("GPU") else "cpu"


def _unusable(error: Exception) -> ClusterError:
    return ClusterError(
        f"no worker of the cluster is left; the last one could not start: {_last_line(error)}",
        remedy="Look at `ray status` and at the logs of the workers (`ray logs`); then run the same"
        " command again: it resumes.",
    )


def _last_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1]
