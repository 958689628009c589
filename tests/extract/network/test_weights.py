"""Weights of a file or of the Hub, and what is not one of them."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torchvision.models
from huggingface_hub import constants
from huggingface_hub.errors import LocalEntryNotFoundError
from safetensors.torch import load_file, save_file
from torch import Tensor

from clinit.errors import BackboneError
from clinit.extract.network import weights as hub
from clinit.extract.network.backbone import BackboneConfig, load_backbone
from tests.conftest import TINY_ARGS, TINY_MODEL
from tests.extract.work.made import tiny_backbone


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (None, "contains no tensor, but epoch, optimizer"),
        ({"weight": torch.zeros(365, 384), "bias": torch.zeros(365)}, "2 tensors such as weight"),
        (b"version https://git-lfs.github.com/spec/v1\n", "cannot be read as weights"),
        (b"\n<!DOCTYPE html>", "cannot be read as weights"),
    ],
)
def test_a_file_that_holds_no_such_network_is_refused(
    tmp_path: Path, content: dict[str, Tensor] | bytes | None, match: str
) -> None:
    path = tmp_path / "weights.pth"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        torch.save(content or {"epoch": 3, "optimizer": {"state": {}}}, path)
    with pytest.raises(BackboneError, match=match):
        load_backbone(BackboneConfig(name="convnextv2_atto", weights=path))


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
        ({"pretrained_cfg": None}, "not a folder of a timm network"),
        ({"model_args": {"checkpoint_path": "evil.pth"}}, "'checkpoint_path' does not describe"),
    ],
)
def test_a_folder_of_another_network_is_refused(
    tiny_weights: Path, tmp_path: Path, changes: dict[str, Any], match: str
) -> None:
    folder = timm_folder(tiny_weights, tmp_path / "hub", **changes)
    with pytest.raises(BackboneError, match=match):
        load_backbone(BackboneConfig(name=TINY_MODEL, weights=folder))


class Answers:
    """A session of the library that fails as often as it is told, then answers."""

    def __init__(self, *failures: Exception) -> None:
        self.failures, self.asked = list(failures), 0

    def head(self, url: str, timeout: float) -> None:
        assert url == constants.ENDPOINT
        self.asked += 1
        if self.failures:
            raise self.failures.pop(0)


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Answers]]:
    sessions: list[Answers] = []
    monkeypatch.setattr(hub, "get_session", lambda: sessions[0])
    monkeypatch.setattr(hub, "_PAUSES_S", (0.0, 0.0, 0.0))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    yield sessions
    assert constants.HF_HUB_OFFLINE is False


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
    assert f"{address} cannot be reached (" in str(caught.value)
    assert str(caught.value).endswith(f"its cache {tmp_path} does not contain them")
    assert "hf download timm/convnextv2_atto.fcmae_ft_in1k " in caught.value.remedy
    assert isinstance(caught.value.__cause__, LocalEntryNotFoundError)


def test_weights_in_the_cache_serve_without_a_network(
    monkeypatch: pytest.MonkeyPatch, session: list[Answers]
) -> None:
    session.append(Answers(*(OSError("no name") for _ in range(3))))
    build = timm.create_model

    def cached(name: str, *, pretrained: bool, **arguments: Any) -> Any:
        assert pretrained
        assert constants.HF_HUB_OFFLINE
        return build(name, pretrained=False, **arguments)

    monkeypatch.setattr(timm, "create_model", cached)
    assert load_backbone(BackboneConfig(name="convnextv2_atto")).dim == 320
