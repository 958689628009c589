from __future__ import annotations

import importlib.util
import os
import pickle
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import ray_kills
from clinit.extract.ray_cluster import Refusal
from clinit.headtrain.sweep.cluster import _train, train_on_ray

from clinit.errors import CacheError, ClusterError
from clinit.extract.cache.read import open_cache
from clinit.headtrain.record.format import find_records, read_record
from clinit.headtrain.runs import RunData
from clinit.headtrain.stream.source import read_sources
from clinit.headtrain.study import Study
from clinit.headtrain.sweep.plan import compile_banks
from tests.headtrain.stream.made_caches import write_base, write_new

NO_NAMESPACE = ray_kills.why_not()

SCRIPT = """
import pickle, sys
from pathlib import Path
from ray.cluster_utils import Cluster
from clinit.headtrain.sweep.cluster import train_on_ray
from clinit.headtrain.sweep.folder import open_folder
from clinit.headtrain.sweep.grid import parse_grid
from clinit.headtrain.study import Study
from clinit.headtrain.sweep.plan import distinct, runs_of
from clinit.headtrain.sweep.plan import plan_sweep, run_sweep

data = pickle.loads(Path(sys.argv[1]).read_bytes())
runs = distinct(runs_of(parse_grid(sys.argv[3:])))
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
cluster.add_node(num_cpus=1)
try:
    folder = open_folder(Path(sys.argv[2]), data, {"ce"})
    plan = plan_sweep(runs, folder, data)
    with train_on_ray(data, cluster.address) as train:
        run_sweep(plan, folder, train, print)
finally:
    cluster.shutdown()
"""


@pytest.mark.slow
@pytest.mark.skipif(NO_NAMESPACE is not None, reason=str(NO_NAMESPACE))
def test_banks_are_trained_on_both_nodes_of_a_cluster(data: RunData, tmp_path: Path) -> None:
    stored, out = tmp_path / "data", tmp_path / "out"
    stored.write_bytes(pickle.dumps(data))
    words = ["init=random,lda", "seed=0:6", "device=cpu", "tasks=2", "iterations=6", "buffer=20"]
    apart = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    python = [sys.executable, "-W", "ignore", "-c", SCRIPT]
    subprocess.run(
        [*apart, *python, str(stored), str(out), *words],
        check=True,
        timeout=240,
        env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0"},
    )
    records = [read_record(path) for path in find_records(out)]
    assert len(records) == 12
    assert len({record.info["ray_node"] for record in records}) == 2
    assert {record.info["bank_size"] for record in records} == {2}


def test_an_error_of_a_task_is_the_same_error_here() -> None:
    with pytest.raises(CacheError, match="other data") as caught:
        Refusal("CacheError", "other data", "another --out").raise_again()
    assert caught.value.remedy == "another --out"


def test_a_missing_ray_is_reported_with_its_remedy(
    data: RunData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ClusterError, match="not installed") as caught, train_on_ray(data, "x"):
        pass
    assert 'pip install "clinit[ray]"' in caught.value.remedy


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")
def test_an_address_where_nobody_listens_is_reported_at_once() -> None:
    script = (
        "from clinit.extract.ray_cluster import connected; from clinit.errors import *\n"
        "try: connected('127.0.0.1:1').__enter__()\n"
        "except ClusterError as error: print(error, error.remedy)"
    )
    shown = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert "cannot connect to a Ray cluster at 127.0.0.1:1: " in shown.stdout
    assert "ray start --head" in shown.stdout


@pytest.fixture
def on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunData:
    """Features that stay on disk, of caches that were named from the folder above them."""
    write_base(tmp_path / "base")
    write_new(tmp_path / "new")
    monkeypatch.chdir(tmp_path)
    base, new = read_sources(Path("base"), Path("new"), memory=16_000)
    assert base.head is not None
    return RunData(base, new, base.head)


def test_features_on_disk_are_read_from_any_working_folder(
    on_disk: RunData, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = pickle.dumps(on_disk)
    features = open_cache(Path("base")).split("train").load().features
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    there: RunData = pickle.loads(sent)
    assert not there.is_loaded
    np.testing.assert_array_equal(there.base.train.features[:], features)


@pytest.mark.parametrize("way", ["missing", "a copy"])
def test_a_node_that_does_not_share_the_caches_is_named_with_its_remedy(
    on_disk: RunData, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = Path("base/train/shard-00000.h5")
    content = shard.read_bytes()
    shard.unlink()
    if way == "a copy":
        shard.write_bytes(content)
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace())
    monkeypatch.setattr("socket.gethostname", lambda: "node7")
    study = Study.of({"tasks": 2, "iterations": 2, "batch_size": 2, "device": "cpu"}).resolved()
    (bank,) = compile_banks([study], num_classes=10, dim=64)
    found = _train(on_disk, bank, ())
    assert isinstance(found, Refusal)
    what = "is missing" if way == "missing" else "has changed since this command has verified it"
    assert found.message == (
        f"{shard.absolute()} {what} (on the node node7); features that stay on disk are read by"
        " every node: the caches must be in a folder that all nodes share, under the same path;"
        " a copy is another file"
    )
    assert found.remedy.startswith("Give more --memory, so that features are loaded and travel")
    with pytest.raises(CacheError, match="on the node node7"):
        found.raise_again()
