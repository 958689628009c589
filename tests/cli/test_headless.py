"""Networks without a classifier, by command: extract, fit a head, add, export, predict."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file

from clinit.extract.cache.read import open_cache
from clinit.headtrain.model.model import load_model
from tests.cli.calls import call, checked, refused
from tests.conftest import Once

TOWERS: dict[str, tuple[str, dict[str, Any]]] = {
    "dinov2": ("vit_small_patch14_dinov2", {"img_size": 56}),
    "siglip": ("vit_base_patch16_siglip_224", {"img_size": 64}),
    "clip": ("vit_base_patch32_clip_224", {"img_size": 64, "num_classes": 512}),
}
TINY: dict[str, Any] = {"depth": 1, "embed_dim": 12, "num_heads": 2}
COLOURS = {name: 40 * number for number, name in enumerate("abcde")}


def done(*arguments: object) -> str:
    return " ".join(checked(call(*arguments)).split())


def photographs(root: Path, classes: str) -> Path:
    """Write images of one grey level per class, with coarse noise: none repeats another."""
    random = np.random.default_rng(ord(classes[0]))
    for split, count in (("train", 6), ("val", 3)):
        for name in classes:
            folder = root / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = COLOURS[name] + random.integers(0, 60, (5, 5, 3))
                image = Image.fromarray(pixels.astype(np.uint8)).resize((70, 70))
                image.save(folder / f"{number}.png")
    return root


@pytest.fixture(scope="session")
def folder(once: Once) -> Path:
    """Photographs of five classes in two folders, and weights of three towers."""

    def make(place: Path) -> None:
        photographs(place / "first", "abc")
        photographs(place / "later", "de")
        for title, (name, arguments) in TOWERS.items():
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(1)
                network = timm.create_model(name, **TINY, **arguments)
                for value in network.state_dict().values():
                    value += 0.1 * torch.randn_like(value)
            save_file(network.state_dict(), place / f"{title}.safetensors")

    return once("headless", make)


def network_of(folder: Path, title: str) -> list[object]:
    """Return the options that name a network."""
    name, arguments = TOWERS[title]
    told = {**TINY, **arguments}
    told.pop("num_classes", None)
    words: list[object] = ["--backbone", name, "--weights", folder / f"{title}.safetensors"]
    for key, value in told.items():
        words += ["--model-arg", f"{key}={value}"]
    return [*words, "--device", "cpu", "--input-size", arguments["img_size"]]


def extracted(folder: Path, out: Path, title: str, *more: object) -> str:
    """Extract both folders into `out`; return what was printed of the first one."""
    texts = []
    for side in ("first", "later"):
        given = ("--dataset", "folder", "--root", folder / side, "--out", out / side, *more)
        texts.append(done("extract", *given, *network_of(folder, title)))
    return texts[0]


def trained(out: Path) -> Path:
    """Fit a head to the first classes, learn the later ones; return the record."""
    head = out / "head.safetensors"
    assert "On 9 validation rows: top-1 " in done("head", "fit", out / "first", "--out", head)
    caches = ("--base", out / "first", "--new", out / "later", "--head", head)
    stream = ("--tasks", 1, "--iterations", 2, "--buffer", 6, "--init", "least-square")
    done("train-head", *caches, *stream, "--device", "cpu", "--out", out / "runs")
    return out / "runs" / "least-square-calibrated"


def right(model: Path, folder: Path) -> float:
    """Return the share of images that a model names by the folder that they are in."""
    told = json.loads(done("predict", model, folder, "--device", "cpu", "--json"))
    named = [each["classes"][0]["class"] == Path(each["image"]).parent.name for each in told]
    return float(np.mean(named))


@pytest.mark.parametrize("title", TOWERS)
def test_features_without_a_head_become_a_model(folder: Path, tmp_path: Path, title: str) -> None:
    text = extracted(folder, tmp_path, title)
    assert f"no head: pooled features of {TOWERS[title][0]}" in text
    assert f"clinit head fit {tmp_path / 'first'} --out head.safetensors" in text
    cache = open_cache(tmp_path / "first")
    assert (cache.head, cache.split("train").dim) == (None, 12)
    words = ("train-head", "--base", cache.path, "--new", tmp_path / "later", "--out", tmp_path)
    assert "no pretrained head" in str(refused(call(*words)))
    done("export", trained(tmp_path), "--out", tmp_path / "exported")
    assert right(tmp_path / "exported", folder / "first" / "val") > 0.5


@pytest.mark.parametrize("title", TOWERS)
def test_a_model_of_new_classes_alone_predicts_and_grows(
    folder: Path, tmp_path: Path, title: str
) -> None:
    model, grown = tmp_path / "model", tmp_path / "grown"
    text = done("add", *network_of(folder, title), folder / "first", "--out", model)
    assert f"{model} knows 3 classes. Of 9 photographs held out, " in text
    assert "fitted on 9 tested images; the error that is left was not measured" in text
    assert "Old classes" not in text
    assert right(model, folder / "first" / "val") > 0.5
    done("add", model, folder / "later", "--out", grown, "--device", "cpu")
    facts = load_model(grown, device="cpu").facts
    assert (facts.class_names, facts.tasks) == (tuple("abcde"), (1, 1, 1, 2, 2))
    assert [each.action for each in facts.history] == ["add", "add"]
    assert right(grown, folder / "later" / "val") > 0.5


def test_no_network_of_timm_gives_projected_features(folder: Path, tmp_path: Path) -> None:
    text = extracted(folder, tmp_path, "clip", "--features", "projected", "--dtype", "float32")
    assert "projected features of vit_base_patch32_clip_224" in text
    split = open_cache(tmp_path / "first").split("val")
    assert (split.dim, split.fingerprint.output) == (512, "projected")
    run = trained(tmp_path)
    error = refused(call("export", run, "--out", tmp_path / "exported"))
    assert "`clinit export RUN --out FILE.npz`" in error.remedy
    done("export", run, "--out", tmp_path / "head.npz")
    error = refused(call("train-top", "--base", tmp_path / "first", "--new", tmp_path / "later",
                     "--head", tmp_path / "head.safetensors", "--out", tmp_path / "top",
                     "--device", "cpu", "--top-blocks", 1))  # fmt: skip
    assert "--features pooled" in error.remedy


def test_top_blocks_of_a_network_without_a_classifier_learn(folder: Path, tmp_path: Path) -> None:
    extracted(folder, tmp_path, "dinov2")
    trained(tmp_path)
    done("train-top", "--base", tmp_path / "first", "--new", tmp_path / "later",
         "--head", tmp_path / "head.safetensors", "--out", tmp_path / "top", "--device", "cpu",
         "--top-blocks", 1, "--tasks", 1, "--iterations", 2, "--buffer", 6,
         "--init", "least-square", "--trunk-cache", tmp_path / "trunk")  # fmt: skip
    (run,) = (tmp_path / "top").glob("*/run.json")
    done("export", run.parent, "--out", tmp_path / "model")
    assert load_model(tmp_path / "model", device="cpu").head.num_classes == 5


@pytest.mark.parametrize(
    ("command", "fact"),
    [
        ("extract --dataset folder --root first --features projected", "in its pooled features"),
        ("extract --dataset folder --root first --head-classes dataset", "in its pooled features"),
        ("add alone", "its only class"),
        ("add first --init fitted", "has no classifier"),
        ("remember first", "new to the model: 3 of 3 classes"),
    ],
)
def test_what_a_network_without_a_classifier_lacks_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, fact: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for side in ("first", "later"):
        (tmp_path / side).symlink_to(folder / side)
    photographs(tmp_path / "alone", "a")
    error = refused(call(*command.split(), "--out", "out", *network_of(folder, "dinov2")))
    assert fact in f"{error} {error.remedy}"
