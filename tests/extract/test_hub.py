from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import timm
from huggingface_hub import constants
from huggingface_hub.errors import LocalEntryNotFoundError

from clinit.errors import BackboneError
from clinit.extract import hub
from clinit.extract.backbone import BackboneConfig, load_backbone


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
