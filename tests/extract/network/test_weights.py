"""What is said of the wrong file of weights."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from huggingface_hub import constants
from huggingface_hub.errors import LocalEntryNotFoundError
from safetensors.torch import save_file
from torch import Tensor

from clinit.errors import BackboneError
from clinit.extract.network import weights as hub
from clinit.extract.network.backbone import BackboneConfig, load_backbone
from clinit.extract.network.weights import contents, difference, kind_of_file

OPTIMIZER: dict[str, Any] = {"state": {}, "param_groups": []}


def state_of(name: str, **arguments: Any) -> dict[str, Tensor]:
    return dict(timm.create_model(name, **arguments).state_dict())


def refusal(path: Path, name: str = "convnextv2_atto") -> tuple[str, str]:
    with pytest.raises(BackboneError) as caught:
        load_backbone(BackboneConfig(name=name, weights=path))
    return str(caught.value), caught.value.remedy


def test_a_shape_that_differs_is_told(tiny_weights: Path) -> None:
    message, remedy = refusal(tiny_weights)
    assert "those of" not in message
    assert " have another shape: stem.0.weight is (4, 3, 4, 4), expected (40, 3, 4, 4)" in message
    assert remedy == "Check `--backbone` and `--model-arg` against the model that was saved."


def test_a_head_and_a_checkpoint_of_training_are_called_what_they_are(tmp_path: Path) -> None:
    head = tmp_path / "head.safetensors"
    save_file({"weight": torch.zeros(365, 384), "bias": torch.zeros(365)}, head)
    message, _ = refusal(head)
    assert "holds 2 tensors such as weight (a head of 365 classes on 384 features," in message
    saved = tmp_path / "checkpoint.pth"
    torch.save({"epoch": 3, "model_state_dict": {}, "optimizer": OPTIMIZER}, saved)
    message, remedy = refusal(saved)
    assert message == f"{saved} holds no tensor, but epoch, model_state_dict, …"
    assert "below the key state_dict or model." in remedy


def test_an_empty_file_holds_nothing() -> None:
    assert contents({}) == "holds nothing"


def test_weights_that_fit_differ_in_nothing() -> None:
    state = state_of("resnet18")
    assert difference(state, state) == ""


@pytest.mark.parametrize(
    ("begin", "kind"),
    [
        (b"version https://git-lfs.github.com/spec/v1\n", "a pointer of Git LFS"),
        (b"\n<!DOCTYPE html>", "a web page"),
        (b"\x89HDF\r\n", "an HDF5 file"),
    ],
)
def test_a_file_that_is_no_checkpoint_is_called_what_it_looks_like(
    tmp_path: Path, begin: bytes, kind: str
) -> None:
    for name in ("weights.safetensors", "weights.pth"):
        path = tmp_path / name
        path.write_bytes(begin + b"x" * 100)
        message, _ = refusal(path)
        assert f"{path} cannot be read as weights (it looks like {kind}" in message
    assert kind_of_file(tmp_path / "absent") is None


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
    monkeypatch.setattr(hub, "_PAUSE_S", 0.0)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    yield sessions
    assert constants.HF_HUB_OFFLINE is False


def test_a_hub_that_answers_is_asked_once(session: list[Answers]) -> None:
    session.append(Answers())
    with hub.hub_or_cache() as why:
        assert (why, constants.HF_HUB_OFFLINE) == (None, False)
    assert session[0].asked == 1


def test_a_network_that_falters_is_a_network(session: list[Answers]) -> None:
    session.append(Answers(OSError("no name"), TimeoutError()))
    with hub.hub_or_cache() as why:
        assert (why, constants.HF_HUB_OFFLINE) == (None, False)
    assert session[0].asked == 3


def test_without_a_network_the_cache_alone_is_looked_into(session: list[Answers]) -> None:
    session.append(Answers(*(OSError("no\nname") for _ in range(3))))
    with hub.hub_or_cache() as why:
        assert why == f"{constants.ENDPOINT} cannot be reached (no name)"
        assert constants.HF_HUB_OFFLINE


def test_a_hub_that_says_nothing_is_waited_for_as_long_as_the_library_would(
    monkeypatch: pytest.MonkeyPatch, session: list[Answers]
) -> None:
    ended = threading.Event()

    class Silent(Answers):
        def head(self, url: str, timeout: float) -> None:
            ended.wait(20)

    session.append(Silent())
    monkeypatch.setattr(constants, "HF_HUB_ETAG_TIMEOUT", 1)
    began = time.monotonic()
    assert hub.why_unreachable() == f"{constants.ENDPOINT} cannot be reached (no answer in 1 s)"
    assert 0.9 < time.monotonic() - began < 10
    ended.set()


def test_who_works_offline_is_told_so_and_nothing_is_asked(
    monkeypatch: pytest.MonkeyPatch, session: list[Answers]
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(constants, "HF_HUB_OFFLINE", True)
        with hub.hub_or_cache() as why:
            assert why == "HF_HUB_OFFLINE is set"
        assert constants.HF_HUB_OFFLINE is True


def test_weights_that_are_not_in_the_cache_are_refused_within_seconds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """The library itself, with an address where nobody listens."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{closed.getsockname()[1]}"
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(hub, "_PAUSE_S", 0.01)
    began = time.monotonic()
    with pytest.raises(BackboneError) as caught:
        load_backbone(BackboneConfig(name="convnextv2_atto.fcmae_ft_in1k"))
    assert time.monotonic() - began < 20
    assert str(caught.value).startswith(
        f"no weights of convnextv2_atto.fcmae_ft_in1k: {address} cannot be reached ("
    )
    assert str(caught.value).endswith(f"), and they are not in its cache, {tmp_path}")
    assert caught.value.remedy == (
        "Where there is a network, `hf download timm/convnextv2_atto.fcmae_ft_in1k"
        " model.safetensors --local-dir .` gets the file; give it with"
        " `--weights model.safetensors`."
    )
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
