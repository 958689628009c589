"""The main job on real photographs with real ImageNet weights, on a part of them."""

import json
import os
from pathlib import Path

import pytest

from clinit.extract.cache.read import open_cache
from tests.cli.calls import done

pytestmark = [
    pytest.mark.realdata,
    pytest.mark.slow,
    pytest.mark.skipif(
        "CLINIT_REALDATA" not in os.environ, reason="CLINIT_REALDATA names no folder"
    ),
]
NETWORKS = {
    "vit_tiny_patch16_224": [],
    "mobilenetv2_100": ["--model-arg=pad_type=same", "--mean=0.5", "--std=0.5"],
}


def clinit(*arguments: object) -> str:
    return done(*arguments)


def extract(name: str, dataset: str, folder: str, out: Path, *options: object) -> None:
    data = Path(os.environ["CLINIT_REALDATA"])
    weights = data / "weights" / f"{name}.safetensors"
    given = ("--dataset", dataset, "--root", data / folder, "--out", out, "--device", "cpu")
    clinit("extract", *given, "--backbone", name, "--weights", weights, *NETWORKS[name], *options)


@pytest.mark.parametrize(("name", "top1"), [("vit_tiny_patch16_224", 72), ("mobilenetv2_100", 68)])
def test_the_stored_head_has_the_accuracy_of_its_weights(
    name: str, top1: float, tmp_path: Path
) -> None:
    out = tmp_path / "cache"
    extract(name, "imagenet1k", "imagenet_mini", out, "--split=val", "--limit-per-class=12")
    head = open_cache(out).split("val").summary.head
    assert head.total == 120
    assert head.top1.percent == pytest.approx(top1, abs=8)


def test_least_square_rows_know_new_scenes_before_any_training(tmp_path: Path) -> None:
    name, small = "mobilenetv2_100", "--input-size=112"  # a quarter of the work
    base, new, runs = tmp_path / "base", tmp_path / "new", tmp_path / "runs"
    extract(name, "imagenet1k", "imagenet_mini", base, "--limit-per-class=1", small)
    extract(name, "folder", "places50", new, "--limit-per-class=3", small)
    scales = ("--iterations", 20, "--scale=none", "--scale=calibrated")
    clinit("train-head", "--base", base, "--new", new, "--out", runs, *scales)
    start = {
        (row["init"], row["scale"]): row["tasks"][0]["acc_new_start"]
        for row in json.loads(clinit("report", runs, "--format", "json"))
    }
    assert start["random", "none"] < 10
    assert start["least-square", "none"] < 10
    assert start["least-square", "calibrated"] > 25
