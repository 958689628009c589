"""Weights of a file or of the Hub, and what is not one of them."""

import json
import re
import socket
import zipfile
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import torchvision.models
from huggingface_hub import constants
from huggingface_hub.errors import LocalEntryNotFoundError
from safetensors.torch import load_file, save_file
from timm.models import save_for_hf
from torch import Tensor, nn

from clinit.errors import BackboneError
from clinit.extract.network import hub
from clinit.extract.network.backbone import BackboneConfig, load_backbone, state_sha256
from clinit.extract.work.run import ExtractConfig, load_network
from tests.conftest import TINY_ARGS, TINY_MODEL
from tests.extract.work.made import tiny_backbone


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (None, "contains no names with tensors, but epoch, optimizer"),
        ([torch.zeros(3)], "contains no names with tensors, but list"),
        ({"weight": torch.zeros(365, 384), "bias": torch.zeros(365)}, "2 tensors such as weight"),
        (b"version https://git-lfs.github.com/spec/v1\n", "as weights: it begins with b'v"),
        (b"\n<!DOCTYPE html>", "cannot be read as weights: it begins"),
    ],
)
def test_a_file_that_holds_no_such_network_is_refused(
    tmp_path: Path, content: dict[str, Tensor] | list[Tensor] | bytes | None, match: str
) -> None:
    path = tmp_path / "weights.pth"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        torch.save(content or {"epoch": 3, "optimizer": {"state": {}}}, path)
    with pytest.raises(BackboneError, match=match):
        load_backbone(BackboneConfig(name="convnextv2_atto", weights=path))


def _prefixed(state: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {f"{prefix}{name}": tensor for name, tensor in state.items()}


@pytest.mark.parametrize(
    ("content", "note"),
    [
        (lambda s: {"net": s, "epoch": 3, "step": torch.tensor(5)}, ""),
        (lambda s: {"model_state_dict": s, "optimizer": {"state": {0: {"exp_avg": s}}}}, ""),
        (lambda s: {"model": {"net": s}, "scheduler": {"lr": 0.1}}, ""),
        (lambda s: {"state_dict": s, "best": np.float64(0.5), "at": datetime(2026, 1, 1)}, ""),
        (lambda s: {"model": s, "args": Path("photos"), "seen": np.arange(3)}, ""),
        (lambda s: _prefixed(s, "module.model.backbone."), "model.backbone. before"),
        (lambda s: _prefixed(s, "x.") | {"loss.weight": s["head.fc.bias"]}, "(loss.weight) too"),
    ],
)
def test_weights_are_found_beside_whatever_a_program_saves_with_them(
    tiny_weights: Path, tmp_path: Path, content: Callable[[Any], Any], note: str
) -> None:
    torch.save(content(load_file(tiny_weights)), tmp_path / "saved.pth")
    paths = (tmp_path / "saved.pth", tiny_weights)
    found, known = (load_backbone(tiny_backbone(path)) for path in paths)
    assert found.weights_sha256 == known.weights_sha256
    assert note in found.note
    assert bool(note) == bool(found.note)


def _gray(state: dict[str, Any]) -> dict[str, Any]:
    return state | {"stem.0.weight": state["stem.0.weight"][:, :1].clone()}


def _expanded(state: dict[str, Any]) -> dict[str, Any]:
    return state | {"head.fc.weight": torch.zeros(1, 1).expand(2_000_000, 12)}


@pytest.mark.parametrize(
    ("content", "arguments", "match", "remedy"),
    [
        (_expanded, {}, "declares head.fc.weight (2000000, 12), 96.00 MB", "t.to_dense().clone()"),
        (lambda s: s | {"head.fc.bias": torch.empty(3, device="meta")}, {}, "declares", "clone"),
        (lambda s: nn.Linear(2, 3), {}, "objects of its program", "False); w = w.state_dict()"),
        (lambda s: {"a.b": nn.Linear(2, 3)}, {}, "objects of its", "False)['a.b']; w = w.st"),
        (lambda s: {n: t.numpy() for n, t in s.items()}, {}, "objects of its", "False); w = w"),
        (lambda s: {"a": s, "b": dict(s)}, {}, "several networks: a, b", "['a']"),
        (_gray, {}, "size mismatch", "w.repeat(1, 3, 1, 1) / 3"),
        (_gray, {"in_chans": 1}, "input channels", "w.repeat(1, 3, 1, 1)"),
        (dict, {"in_chans": 4}, "does not fit", "other shapes has stem.0.weight"),
        (dict, {"num_classes": 9}, "does not fit", "has 3 rows, the network 9"),
        (lambda s: {"stem.0.weight": s["stem.0.weight"]}, {}, "does not fit", "file lacks stem"),
    ],
)
def test_weights_that_do_not_fit_are_refused_with_what_they_need(
    tiny_weights: Path,
    tmp_path: Path,
    content: Callable[[Any], Any],
    arguments: dict[str, Any],
    match: str,
    remedy: str,
) -> None:
    torch.save(content(load_file(tiny_weights)), tmp_path / "saved.pth")
    path, arguments = tmp_path / "saved.pth", TINY_ARGS | arguments
    with pytest.raises(BackboneError, match=re.escape(match)) as caught:
        load_backbone(BackboneConfig(name=TINY_MODEL, weights=path, model_args=arguments))
    assert remedy in caught.value.remedy


def test_a_compressed_checkpoint_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    torch.save({"x": torch.zeros(10**6)}, tmp_path / "plain.pth")
    with (
        zipfile.ZipFile(tmp_path / "plain.pth") as plain,
        zipfile.ZipFile(tmp_path / "small.pth", "w", zipfile.ZIP_DEFLATED) as small,
    ):
        for name in plain.namelist():
            small.writestr(name, plain.read(name))
    with pytest.raises(BackboneError, match="MB of compressed parts"):
        load_backbone(BackboneConfig(name=TINY_MODEL, weights=tmp_path / "small.pth"))


@pytest.mark.parametrize("options", [(), ("--model-arg", "img_size=64")])
def test_a_vision_transformer_is_given_its_own_size(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    tiny: dict[str, Any] = {"embed_dim": 12, "depth": 1, "num_heads": 2}
    network = timm.create_model("vit_tiny_patch16_224", img_size=64, num_classes=2, **tiny)
    torch.save(network.state_dict(), tmp_path / "small.pth")
    arguments, path = tiny | ({"img_size": 64} if options else {}), tmp_path / "small.pth"
    config = BackboneConfig(name="vit_tiny_patch16_224", weights=path, model_args=arguments)
    with pytest.raises(BackboneError) as caught:
        load_network(ExtractConfig(backbone=config))
    assert "--input-size 64" in caught.value.remedy


@pytest.mark.parametrize("safe", [False, True])
def test_a_folder_that_timm_saves_is_read(tmp_path: Path, safe: bool) -> None:
    network = timm.create_model(TINY_MODEL, num_classes=2, **TINY_ARGS)
    names = {"label_names": {"1": "b", "0": "a"}}
    save_for_hf(network, str(tmp_path), names, TINY_ARGS, safe_serialization=safe)
    found = load_backbone(BackboneConfig(name=TINY_MODEL, weights=tmp_path))
    assert found.weights_sha256 == state_sha256(network.state_dict())
    assert found.head.class_names == ("a", "b")


def test_a_checkpoint_of_torchvision_computes_as_there(tmp_path: Path) -> None:
    theirs = torchvision.models.mobilenet_v2(num_classes=7).eval()
    torch.save(theirs.state_dict(), tmp_path / "mobile.pth")
    given: dict[str, Any] = {"weights": tmp_path / "mobile.pth", "model_args": {"num_classes": 7}}
    found = load_backbone(BackboneConfig(name="mobilenetv2_100", **given))
    images = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(found.logits(images), theirs(images), rtol=1e-4, atol=1e-5)
    with pytest.raises(BackboneError, match="does not fit mobilenetv2_110d"):
        load_backbone(BackboneConfig(name="mobilenetv2_110d", **given))


CONFIG = {
    "architecture": TINY_MODEL,
    "label_names": ["x", "y", "z"],
    "model_args": {**TINY_ARGS, "num_classes": 3},
    "pretrained_cfg": {"mean": [0.1, 0.2, 0.3], "crop_pct": 1.0, "input_size": [3, 64, 64]},
}


def timm_folder(weights: Path, folder: Path, **changes: Any) -> Path:
    folder.mkdir()
    save_file(load_file(weights), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG | changes))
    return folder


def test_a_folder_of_timm_gives_arguments_classes_and_transform(
    tiny_weights: Path, tmp_path: Path
) -> None:
    folder = timm_folder(tiny_weights, tmp_path / "hub")
    found = load_backbone(BackboneConfig(name=f"{TINY_MODEL}.fcmae", weights=folder))
    assert found.weights_sha256 == load_backbone(tiny_backbone(tiny_weights)).weights_sha256
    assert found.head.class_names == ("x", "y", "z")
    assert found.config.model_args == {"depths": [1, 1, 1, 1], "dims": [4, 8, 8, 12]}
    content = {k: v for k, v in CONFIG.items() if k not in ("pretrained_cfg", "label_names")}
    flat = content | CONFIG["pretrained_cfg"] | {"labels": ["x", "y", "z"]}  # as timm wrote once
    (folder / "config.json").write_text(json.dumps(flat))
    again = load_backbone(BackboneConfig(name=TINY_MODEL, weights=folder))
    assert (again.data_config, again.head.class_names) == (found.data_config, ("x", "y", "z"))
    expected = CONFIG["pretrained_cfg"] | {"std": timm.data.IMAGENET_DEFAULT_STD}
    assert {n: found.data_config[n] for n in expected} == {
        n: tuple(v) if isinstance(v, list) else v for n, v in expected.items()
    }


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"architecture": "resnet18"}, "contains the network 'resnet18', not convnextv2_atto"),
        ({"label_names": ["x"]}, "names 1 classes, its classifier has 3 rows"),
        ({"pretrained_cfg": {"std": [0, 0, 0]}}, "not a folder of a timm network"),
        ({"pretrained_cfg": 3}, "not a folder of a timm network"),
        ({"model_args": {"checkpoint_path": "evil.pth"}}, "'checkpoint_path' does not describe"),
    ],
)
def test_a_folder_of_another_network_is_refused(
    tiny_weights: Path, tmp_path: Path, changes: dict[str, Any], match: str
) -> None:
    folder = timm_folder(tiny_weights, tmp_path / "hub", **changes)
    with pytest.raises(BackboneError, match=match):
        load_backbone(BackboneConfig(name=TINY_MODEL, weights=folder))


def test_weights_that_are_not_in_the_cache_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """The library itself, with an address that is taken and where nobody listens."""
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    address = f"http://127.0.0.1:{taken.getsockname()[1]}"
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(hub, "_PAUSES_S", (0.0, 0.01))
    with taken, pytest.raises(BackboneError) as caught:
        load_backbone(BackboneConfig(name="convnextv2_atto.fcmae_ft_in1k"))
    with pytest.raises(BackboneError, match="cannot be reached") as early:  # without timm
        hub.check_download("convnextv2_atto", None)
    assert early.value.remedy == caught.value.remedy
    hub.check_download("nope", None)  # timm tells which names are near
    hub.check_download("convnextv2_atto", Path("weights.pth"))
    (tmp_path / "models--timm--convnextv2_atto.fcmae_ft_in1k").mkdir()
    hub.check_download("convnextv2_atto", None)
    assert f"{address} cannot be reached (" in str(caught.value)
    assert str(caught.value).endswith(f"its cache {tmp_path} does not contain them")
    assert "hf download timm/convnextv2_atto.fcmae_ft_in1k " in caught.value.remedy
    assert isinstance(caught.value.__cause__, LocalEntryNotFoundError)  # only its cache was asked
    assert constants.HF_HUB_OFFLINE is False
