"""Shards as work of a Ray cluster: what is lost is given out again, and the bits are the same."""

from __future__ import annotations

import json
import pickle
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray_kills

from clinit.errors import ClusterError
from clinit.extract import cluster as module
from clinit.extract.backbone import BackboneConfig
from clinit.extract.cluster import Share, hire, shares_of, workers_device
from clinit.extract.dataset.scan import scan
from clinit.extract.part import Part
from clinit.extract.ray_cluster import Refusal
from clinit.extract.run import ExtractConfig, extract, extract_part, load_network

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "ray_kills.py"
WHY_NOT = ray_kills.why_not()


class RayError(Exception):
    """Anything that Ray says of a task."""


class RayActorError(RayError):
    """The actor has gone."""


class FakeRay:
    """Ray in this process: calls are made when they are waited for, and fail as they are told."""

    def __init__(self, *nodes: dict[str, float]) -> None:
        self.exceptions = SimpleNamespace(RayError=RayError, RayActorError=RayActorError)
        self._nodes = nodes
        self.made: list[Any] = []
        self.failures: dict[int, list[Exception]] = {}
        """What the calls for a shard raise, one after the other."""
        self.killed: list[int] = []
        self.unstartable: Exception | None = None
        self.broken: dict[int, Exception] = {}
        """What every call of a worker raises, by its number."""
        self.never_start: set[int] = set()
        """Workers, by number, whose node does not come up."""

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": each} for each in self._nodes]

    def cluster_resources(self) -> dict[str, float]:
        return {name: sum(n.get(name, 0) for n in self._nodes) for name in ("CPU", "GPU")}

    def remote(self, kind: Callable[..., Any]) -> Any:
        def make(*arguments: Any) -> Any:
            actor, number = kind(*arguments), len(self.made)
            self.made.append(actor)

            def call(name: str) -> Any:
                return SimpleNamespace(
                    remote=lambda *given: (
                        number,
                        name,
                        partial(getattr(actor, name), *given),
                        given,
                    )
                )

            return SimpleNamespace(start=call("start"), compute=call("compute"), number=number)

        return SimpleNamespace(options=lambda **shares: SimpleNamespace(remote=make))

    def wait(self, references: list[Any], **options: Any) -> tuple[list[Any], list[Any]]:
        for reference in references:
            if not (reference[1] == "start" and reference[0] in self.never_start):
                return [reference], []
        return [], references

    def get(self, reference: Any) -> Any:
        number, name, call, given = reference
        if name == "start" and self.unstartable is not None:
            raise self.unstartable
        if name == "compute" and number in self.broken:
            raise self.broken[number]
        failures = self.failures.get(given[1], []) if name == "compute" else []
        if failures:
            raise failures.pop(0)
        return pickle.loads(pickle.dumps(call()))

    def cancel(self, reference: Any) -> None:
        pass

    def kill(self, worker: Any) -> None:
        self.killed.append(worker.number)


@pytest.fixture
def config(tiny_weights: Path) -> ExtractConfig:
    model_args: dict[str, Any] = {"depths": (1, 1, 1, 1), "dims": (4, 8, 8, 12)}
    backbone = BackboneConfig(name="convnextv2_atto", weights=tiny_weights, model_args=model_args)
    return ExtractConfig(backbone=backbone, input_size=32, batch_size=2, shard_rows=2, views=1)


Extract = Callable[[FakeRay], Path]


@pytest.fixture
def on_ray(make_tree: Callable[..., Path], config: ExtractConfig, tmp_path: Path) -> Extract:
    """Extract on a made cluster, and compare with one process."""
    root, out, alone = make_tree(), tmp_path / "cluster", tmp_path / "alone"
    manifests = {split: scan("folder", root, split).manifest for split in ("train", "val")}

    def run(ray: FakeRay) -> Path:
        out.mkdir(exist_ok=True)
        crew = hire(ray, config, root, out, threads=1)
        results = extract_part(
            manifests, root, out, config, Part(), crew=lambda work: crew.of(work, out)
        )
        assert [result.computed_rows for result in results] == [15, 6, 15]
        list(extract(manifests, root, alone, config))
        assert contents(out) == contents(alone)
        return out

    return run


def test_shards_of_splits_and_views_are_those_of_one_process(on_ray: Extract) -> None:
    ray = FakeRay({"CPU": 2}, {"CPU": 1})
    out = on_ray(ray)
    assert len(ray.made) == 3
    run = json.loads((out / "train" / "cache.json").read_text())["run"]
    assert run["device"] == "cpu"
    assert run["seconds"]["forward"] > 0
    assert run["images_per_s"] > 0


def test_the_shard_of_a_lost_worker_is_given_to_another_one(on_ray: Extract) -> None:
    ray = FakeRay({"CPU": 2})
    ray.failures = {3: [RayActorError("the node has gone"), RayError("CUDA out of memory")]}
    on_ray(ray)
    assert len(ray.made) == 4, "each of them is replaced"


def test_one_gpu_that_fails_does_not_stop_the_others(on_ray: Extract) -> None:
    ray = FakeRay({"CPU": 4})
    ray.broken = {0: RayError("CUDA error: an illegal memory access was encountered")}
    on_ray(ray)
    assert ray.killed == [0]


def test_workers_that_died_while_they_were_idle_use_up_no_attempts(on_ray: Extract) -> None:
    ray = FakeRay({"CPU": 8})
    ray.broken = {number: RayActorError("the node has gone") for number in range(4)}
    on_ray(ray)


def test_a_node_that_cannot_do_the_work_is_given_up(
    on_ray: Extract, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its images are not mounted, say: the others go on, and the last one's reason is told."""
    start = module.ShardWorker.start
    refused: list[module.ShardWorker] = []

    def first_refuses(worker: module.ShardWorker) -> Refusal | None:
        if not refused or refused[0] is worker:
            refused[:] = [worker]
            return Refusal("ClusterError", "/data is not there on node7", "Mount it.")
        return start(worker)

    monkeypatch.setattr(module.ShardWorker, "start", first_refuses)
    shutil.rmtree(on_ray(FakeRay({"CPU": 2})))
    refused.clear()
    with pytest.raises(ClusterError, match="/data is not there on node7"):
        on_ray(FakeRay({"CPU": 1}))


def test_why_no_worker_could_start_is_told(on_ray: Extract) -> None:
    ray = FakeRay({"CPU": 2})
    ray.unstartable = RayError("remote traceback\nModuleNotFoundError: No module named 'clinit'")
    with pytest.raises(ClusterError) as caught:
        on_ray(ray)
    assert str(caught.value) == (
        "no worker of the cluster is left; the last one could not start: ModuleNotFoundError: No"
        " module named 'clinit'"
    )


def test_a_machine_that_fails_at_a_shard_leaves_it_to_the_others(
    on_ray: Extract, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute, failed = module.ShardWorker.compute, list[int]()

    def fails_once(worker: module.ShardWorker, place: str, shard: int) -> Any:
        if not failed:
            failed.append(shard)
            return Refusal("MachineError", "too many open files", "Raise the limit.")
        return compute(worker, place, shard)

    monkeypatch.setattr(module.ShardWorker, "compute", fails_once)
    ray = FakeRay({"CPU": 2})
    on_ray(ray)
    assert failed == [0]
    assert len(ray.killed) == 1


def test_a_shard_that_is_lost_again_and_again_is_given_up(on_ray: Extract) -> None:
    ray = FakeRay({"CPU": 2})
    ray.failures = {3: [RayError("boom\nCUDA out of memory")] * module.ATTEMPTS}
    with pytest.raises(ClusterError) as caught:
        on_ray(ray)
    assert str(caught.value) == (
        "shard 3 of train was given up after 3 attempts: CUDA out of memory"
    )
    assert "what is there is kept" in caught.value.remedy


def test_workers_that_never_come_up_are_not_waited_for(
    on_ray: Extract, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = FakeRay({"CPU": 2})
    ray.never_start = {1}
    shutil.rmtree(on_ray(ray))
    monkeypatch.setattr(module, "STARTING_S", 0.0)
    nobody = FakeRay({"CPU": 1})
    nobody.never_start = {0}
    with pytest.raises(ClusterError, match="no worker of the cluster has started in 0 s"):
        on_ray(nobody)


def test_what_a_worker_refuses_is_refused_here(on_ray: Extract, tmp_path: Path) -> None:
    ray = FakeRay({"CPU": 1})
    load = load_network

    def other(config: ExtractConfig) -> Any:
        network = load(config)
        fields = {**network.fingerprint.fields, "timm": "0.0.1"}
        return replace(network, fingerprint=replace(network.fingerprint, fields=fields))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "load_network", other)
        patch.setattr(module, "refuse_other_backbone", lambda out, fingerprint: None)
        with pytest.raises(ClusterError, match=r"was begun with timm = .*, .* has timm = 0\.0\.1"):
            on_ray(ray)


def test_folders_that_a_node_does_not_see_are_told(config: ExtractConfig, tmp_path: Path) -> None:
    worker = module.ShardWorker(config, tmp_path / "images", tmp_path)
    refusal = worker.start()
    assert isinstance(refusal, Refusal)
    assert f"{tmp_path / 'images'} is not there on " in refusal.message
    assert "storage that all nodes mount" in refusal.remedy


def test_a_cluster_without_a_place_for_a_worker_is_refused(
    config: ExtractConfig, tmp_path: Path
) -> None:
    with pytest.raises(ClusterError, match="the cluster has no processor to work on"):
        hire(FakeRay({"GPU": 1}), config, tmp_path, tmp_path, threads=None)
    on_gpus = replace(config, backbone=replace(config.backbone, device="cuda"))
    with pytest.raises(ClusterError, match="the cluster has no GPU to work on") as caught:
        hire(FakeRay({"CPU": 8}), on_gpus, tmp_path, tmp_path, threads=None)
    assert "ray start --address" in caught.value.remedy


def test_workers_take_a_gpu_each_or_their_share_of_the_processors() -> None:
    nodes = [
        {"Alive": True, "Resources": {"CPU": 16.0, "GPU": 4.0}},
        {"Alive": True, "Resources": {"CPU": 6.0}},
        {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0}},
    ]
    assert shares_of(nodes, gpus=True, threads=None) == [Share(4, 1)] * 4
    assert shares_of(nodes, gpus=False, threads=None) == [Share(16, 0), Share(6, 0)]
    assert shares_of(nodes, gpus=False, threads=4) == [*[Share(4, 0)] * 4, Share(4, 0)]
    assert shares_of(nodes[1:], gpus=False, threads=8) == [Share(6, 0)]


def test_workers_compute_on_gpus_where_the_cluster_has_some() -> None:
    assert workers_device(FakeRay({"CPU": 4, "GPU": 1}), "auto") == "cuda"
    assert workers_device(FakeRay({"CPU": 4}), "auto") == "cpu"
    assert workers_device(FakeRay({"CPU": 4}), "cuda:1") == "cuda"


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "cache.json" and not path.name.endswith(".lock")
    }


@pytest.mark.slow
@pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
def test_a_worker_and_a_node_that_are_killed_change_nothing() -> None:
    command = [sys.executable, "-W", "ignore", str(SCRIPT), "--moments", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 moments, 0 faults" in done.stdout
    assert re.search(r"worker killed with \d+ of 48 shards there", done.stdout)
    assert re.search(r"node killed with \d+ of 48 shards there", done.stdout)


@pytest.mark.parametrize(
    ("when", "done", "lost", "is_same", "told"),
    [
        (None, {0: 1}, 0, True, "nothing was killed within the run"),
        (3, {0: 1, 1: 2}, 0, True, "shards [1] were computed twice"),
        (3, {0: 1}, 2, True, "2 shards were given out again"),
        (3, {0: 1}, 1, False, "the features differ from those of one process"),
    ],
)
def test_the_benchmark_of_kills_sees_what_is_wrong(
    when: int | None, done: dict[int, int], lost: int, is_same: bool, told: str
) -> None:
    heard = ray_kills.Told(done=Counter(done), lost=lost)
    result = SimpleNamespace(exit_code=0, output="")
    assert ray_kills.verdict(result, when, heard, is_same) == [told]
    good = ray_kills.Told(done=Counter({0: 1, 1: 1}), lost=1)
    assert ray_kills.verdict(result, 3, good, True) == []
