"""Tasks of Ray: parts of an extraction and banks of a sweep; known errors stay what they are."""

from __future__ import annotations

import importlib.util
import os
import pickle
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clinit.errors import ClusterError
from clinit.extract.cache.plan import WHOLE
from clinit.extract.dataset.scan import scan
from clinit.extract.work import run as module
from clinit.extract.work.run import ExtractConfig, extract, extract_on_ray
from clinit.ray_tasks import connected
from tests.extract.work.made import tiny_config


class RayError(Exception):
    """Anything that Ray says of a task; `cause` is what the task has raised."""

    cause: Exception | None = None


class FakeRay:
    """Ray in this process: calls are made when they are waited for."""

    exceptions = SimpleNamespace(RayError=RayError)

    def __init__(self, *nodes: dict[str, float]) -> None:
        self._nodes = nodes
        self.options: dict[str, Any] = {}

    def nodes(self) -> list[dict[str, Any]]:
        dead = {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0}}
        return [dead, *({"Alive": True, "Resources": each} for each in self._nodes)]

    def put(self, value: Any) -> Any:
        return pickle.loads(pickle.dumps(value))

    def remote(self, **options: Any) -> Callable[[Callable[..., Any]], Any]:
        self.options = options
        return lambda task: SimpleNamespace(remote=lambda *given: (task, given))

    def wait(self, references: list[Any], **_: Any) -> tuple[list[Any], list[Any]]:
        return references[-1:], references[:-1]

    def get(self, reference: Any) -> Any:
        task, given = reference
        try:
            return pickle.loads(pickle.dumps(task(*pickle.loads(pickle.dumps(given)))))
        except Exception as error:
            told = RayError("Traceback\nlost")
            told.cause = pickle.loads(pickle.dumps(error))
            raise told from error

    def cancel(self, reference: Any, *, force: bool) -> None:
        pass

    def __enter__(self) -> FakeRay:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def config(tiny_weights: Path) -> ExtractConfig:
    config = tiny_config(tiny_weights, batch_size=2, shard_rows=2, views=1)
    return replace(config, backbone=replace(config.backbone, device="auto"))


Extract = Callable[..., Path]


@pytest.fixture
def on_ray(
    make_tree: Callable[..., Path],
    config: ExtractConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Extract:
    """Extract on a made cluster, and compare with one process."""
    root = make_tree()
    manifests = {split: scan("folder", root, split).manifest for split in ("train", "val")}
    here = replace(config, backbone=replace(config.backbone, device="cpu"))
    wanted = tmp_path / "alone"
    list(extract(manifests, root, wanted, here))

    def run(ray: FakeRay, **changes: Any) -> Path:
        monkeypatch.setattr(module, "connected", lambda address: ray)
        out = tmp_path / "out"
        results = list(extract_on_ray(manifests, root, out, replace(config, **changes), "x"))
        assert all(result.is_complete and result.split for result in results)
        assert [result.plan.title for result in results] == ["train", "val", "train, view 0"]
        assert sum(result.computed_rows for result in results) == 36
        for path in sorted(wanted.rglob("*.h5")):
            assert (out / path.relative_to(wanted)).read_bytes() == path.read_bytes()
        return out

    return run


@pytest.mark.parametrize(
    ("nodes", "count", "resources"),
    [
        (({"CPU": 4.0}, {"CPU": 2.0}), 3, {"num_cpus": 2}),
        (({"CPU": 8.0, "GPU": 2.0}, {"CPU": 4.0}), 2, {"num_cpus": 4, "num_gpus": 1}),
    ],
)
def test_a_part_takes_a_gpu_or_the_share_of_a_node(
    nodes: tuple[dict[str, float], ...], count: int, resources: dict[str, float]
) -> None:
    assert module._places(FakeRay(*nodes), "auto", None) == (count, resources)


def test_parts_of_a_cluster_give_the_bits_of_one_process(on_ray: Extract) -> None:
    ray = FakeRay({"CPU": 2.0}, {"CPU": 2.0})
    on_ray(ray)
    assert ray.options["num_cpus"] == 2


def test_a_cluster_without_a_place_is_refused(on_ray: Extract) -> None:
    with pytest.raises(ClusterError, match="processor"):
        on_ray(FakeRay())


def test_a_node_that_does_not_see_a_folder_is_named(config: ExtractConfig, tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="does not exist on "):
        module._extract_on_node({}, tmp_path, tmp_path / "absent", config, WHOLE)


def test_a_missing_ray_is_reported_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ClusterError, match="not installed") as caught, connected("x"):
        pass
    assert 'pip install "clinit[ray]"' in caught.value.remedy


# A cluster of two nodes of one processor each, in a network namespace with nothing but loopback.

APART = ("unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")


def on_cluster(code: str, *words: object) -> None:
    """Run code next to `cluster` and its node `second`; skip if there cannot be a cluster."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed")
    if not shutil.which("ip") or subprocess.run([*APART[:2], "true"], check=False).returncode:
        pytest.skip("may not make a network namespace")
    whole = f"{CLUSTER}\ntry:\n{textwrap.indent(code, '    ')}\nfinally:\n    cluster.shutdown()"
    python = [sys.executable, "-W", "ignore", "-c", whole, *map(str, words)]
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
    subprocess.run([*APART, *python], check=True, timeout=900, env=environment)


CLUSTER = """
import sys
from pathlib import Path
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
second = cluster.add_node(num_cpus=1)
"""
KILL = """
import os, signal, threading
from clinit.cli.main import app
from clinit.extract.work import run

victim, out, words = sys.argv[1], Path(sys.argv[2]), sys.argv[3:]
dying, dead = out.with_name("dying"), out.with_name("dead")
os.mkfifo(dying)
doomed, run_tasks = second.node_id, run.run_tasks

def extract_until_dead(*given):
    import ray

    written = 0
    def on_third_shard(event, arguments):
        nonlocal written
        if event != "os.rename" or "/train/shard-" not in os.fsdecode(arguments[1]):
            return
        written += 1
        if written == 3 and not dead.exists():
            dead.touch()
            if victim == "worker":
                os.kill(os.getpid(), signal.SIGKILL)
            dying.read_bytes()  # nobody writes: until the node is removed

    if victim == "worker" or ray.get_runtime_context().get_node_id() == doomed:
        sys.addaudithook(on_third_shard)
    return run._extract_on_node(*given)

def remove():
    with dying.open("wb"):  # waits for the reader
        cluster.remove_node(second, allow_graceful=False)

if victim == "node":
    threading.Thread(target=remove, daemon=True).start()
run.run_tasks = lambda ray, task, *given, **how: run_tasks(ray, extract_until_dead, *given, **how)
app([*words, f"--out={out}", f"--ray={cluster.address}"], standalone_mode=False)
assert dead.exists(), "nothing was killed"
assert len(list(out.glob("train/shard-*.h5"))) == 48
"""


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["worker", "node"])
def test_a_worker_or_a_node_that_is_killed_changes_no_bit(
    victim: str, make_tree: Callable[..., Path], tiny_weights: Path, tmp_path: Path
) -> None:
    root = make_tree(train=64, val=1)
    words = ["extract", f"--root={root}", f"--weights={tiny_weights}", "--dataset=folder"]
    words += ["--backbone=convnextv2_atto", "--model-arg=depths=(1,1,1,1)", "--device=cpu"]
    words += ["--model-arg=dims=(4,8,8,12)", "--input-size=32", "--batch-size=2", "--shard-rows=4"]
    on_cluster(KILL, victim, tmp_path / "out", *words)
    subprocess.run(
        [sys.executable, "-m", "clinit", *words, f"--out={tmp_path / 'alone'}"], check=True
    )
    alone = {path.name: path.read_bytes() for path in tmp_path.glob("alone/train/*.h5")}
    assert alone == {path.name: path.read_bytes() for path in tmp_path.glob("out/train/*.h5")}
