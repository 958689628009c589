"""What is said of the wrong file of weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import Tensor

from clinit.errors import BackboneError
from clinit.extract.backbone import BackboneConfig, load_backbone
from clinit.extract.weights_contents import contents, difference, kind_of_file, known_network

OPTIMIZER: dict[str, Any] = {"state": {}, "param_groups": []}


def state_of(name: str, **arguments: Any) -> dict[str, Tensor]:
    return dict(timm.create_model(name, **arguments).state_dict())


def refusal(path: Path, name: str = "convnextv2_atto") -> tuple[str, str]:
    with pytest.raises(BackboneError) as caught:
        load_backbone(BackboneConfig(name=name, weights=path))
    return str(caught.value), caught.value.remedy


def test_weights_of_a_common_network_are_named_with_what_to_type(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    save_file(state_of("resnet18", num_classes=365), path)
    message, remedy = refusal(path)
    assert message == (
        f"{path} does not fit convnextv2_atto: it holds 122 tensors such as conv1.weight and"
        " fc.weight, those of resnet18; 140 of 140 expected are missing:"
        " stem.0.weight, stem.0.bias, …"
    )
    assert remedy == "Give `--backbone resnet18`, or weights of convnextv2_atto."


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


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ({"a.w": 0, "epoch": 1, "optimizer": 2}, "1 tensor, a.w, and what training keeps: epoch,"),
        ({"lora_A.x": 0, "b": 0}, "(low-rank updates of a network, without the network)"),
        ({"net.a": 0, "net.b": 0}, "net.a and net.b (all names begin with net.)"),
        ({"vit.embeddings.patch_embeddings.w": 0, "b": 0}, "of the library transformers"),
    ],
)
def test_other_files_are_described(state: dict[str, Any], expected: str) -> None:
    found = {k: torch.zeros(1) if value == 0 else value for k, value in state.items()}
    assert expected in contents(found)


def test_an_empty_file_holds_nothing() -> None:
    assert contents({}) == "holds nothing"


def test_weights_that_fit_differ_in_nothing() -> None:
    state = state_of("resnet18")
    assert difference(state, state) == ""


@pytest.mark.parametrize("name", ["resnet34", "convnextv2_pico", "vit_tiny_patch16_224"])
@pytest.mark.parametrize("rows", [1000, 7])
def test_a_network_is_known_whatever_its_classes(name: str, rows: int) -> None:
    with torch.device("meta"):
        assert known_network(state_of(name, num_classes=rows)) == name


def test_a_network_of_another_width_is_not_known(tiny_weights: Path) -> None:
    with torch.device("meta"):
        state = state_of("convnextv2_atto", dims=(8, 8, 8, 12))
    assert known_network(state) is None


@pytest.mark.parametrize(
    ("begin", "kind"),
    [
        (b"version https://git-lfs.github.com/spec/v1\n", "a pointer of Git LFS"),
        (b"\n<!DOCTYPE html>", "a web page"),
        (b"\xff\xd8\xff\xe0", "an image"),
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
