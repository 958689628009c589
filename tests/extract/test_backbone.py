import pickle
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from clinit.errors import BackboneError, DeviceError
from clinit.extract.backbone import (
    BackboneConfig,
    check_penultimate,
    load_backbone,
    parse_model_args,
)

MODEL = "convnextv2_atto"
ARGS: dict[str, Any] = {"depths": (1, 1, 1, 1), "dims": (4, 8, 8, 12)}


def config(weights: Path, **changes: object) -> BackboneConfig:
    settings = {"name": MODEL, "weights": weights, "model_args": ARGS} | changes
    return BackboneConfig(**settings)  # type: ignore[arg-type]


@pytest.fixture
def images() -> torch.Tensor:
    return torch.randn(5, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def test_features_are_what_timms_own_forward_pass_gives(
    tiny_weights: Path, images: torch.Tensor
) -> None:
    network = timm.create_model(MODEL, num_classes=3, checkpoint_path=str(tiny_weights), **ARGS)
    network.eval()
    backbone = load_backbone(config(tiny_weights))
    with torch.no_grad():
        expected = network.forward_head(network.forward_features(images), pre_logits=True)  # type: ignore[operator]
        assert torch.equal(backbone.features(images), expected)
        assert torch.equal(backbone.logits(images), network(images))


def test_the_head_of_the_features_gives_the_logits(
    tiny_weights: Path, images: torch.Tensor
) -> None:
    backbone = load_backbone(config(tiny_weights))
    check_penultimate(backbone, images)
    head = backbone.head
    found = backbone.features(images).numpy() @ head.weight.T + head.bias
    torch.testing.assert_close(torch.from_numpy(found), backbone.logits(images))
    assert (head.class_names, backbone.dim) == (("a", "b", "c"), 12)


@pytest.mark.parametrize("wrapper", [None, "model", "state_dict"])
def test_a_pth_file_gives_the_same_network_and_the_same_hash(
    tiny_weights: Path, tmp_path: Path, wrapper: str | None, images: torch.Tensor
) -> None:
    state = load_file(tiny_weights)
    torch.save(state if wrapper is None else {wrapper: state}, tmp_path / "tiny.pth")
    first, second = (
        load_backbone(config(tiny_weights)),
        load_backbone(config(tmp_path / "tiny.pth")),
    )
    assert first.weights_sha256 == second.weights_sha256
    assert torch.equal(first.features(images), second.features(images))
    assert second.head.class_names is None


def test_the_hash_changes_with_one_weight(tiny_weights: Path, tmp_path: Path) -> None:
    state = load_file(tiny_weights)
    state["stem.0.bias"][0] += 1e-3
    save_file(state, tmp_path / "other.safetensors")
    other = load_backbone(config(tmp_path / "other.safetensors"))
    assert other.weights_sha256 != load_backbone(config(tiny_weights)).weights_sha256


def test_code_in_a_checkpoint_is_not_run(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, ...]:
            return (Path.touch, (tmp_path / "exploded",))

    (tmp_path / "bomb.pth").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(BackboneError, match=r"bomb\.pth cannot be read as weights") as caught:
        load_backbone(config(tmp_path / "bomb.pth"))
    assert "code in a checkpoint is never run" in caught.value.remedy
    assert not (tmp_path / "exploded").exists()


def test_absent_weights_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BackboneError, match="no weights at "):
        load_backbone(config(tmp_path / "absent.safetensors"))


def test_weights_of_another_model_are_refused(tiny_weights: Path) -> None:
    with pytest.raises(BackboneError, match="does not fit convnextv2_atto"):
        load_backbone(config(tiny_weights, model_args={}))


def test_wrong_model_arguments_are_refused(tiny_weights: Path) -> None:
    with pytest.raises(BackboneError, match="timm cannot build convnextv2_atto with"):
        load_backbone(config(tiny_weights, model_args={"no_such_argument": 1}))


def test_an_unknown_model_is_refused_with_its_neighbours(tiny_weights: Path) -> None:
    with pytest.raises(BackboneError, match="has no model 'resnet18000'") as caught:
        load_backbone(config(tiny_weights, name="resnet18000"))
    assert "Models like it: " in caught.value.remedy


def test_pretrained_weights_that_cannot_be_had_are_refused_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def offline(*args: object, **kwargs: object) -> nn.Module:
        raise OSError("no connection")

    monkeypatch.setattr(timm, "create_model", offline)
    with pytest.raises(BackboneError, match="cannot give pretrained weights of resnet18: no conn"):
        load_backbone(BackboneConfig(name="resnet18"))


def test_a_cuda_device_that_is_not_there_is_refused(
    tiny_weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceError, match="PyTorch finds no CUDA device"):
        load_backbone(config(tiny_weights, device="cuda"))


def test_a_model_that_does_more_than_its_classifier_is_refused(
    tiny_weights: Path, images: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone = load_backbone(config(tiny_weights))
    classifier = backbone.network.get_classifier()  # type: ignore[operator]
    classifier.register_forward_hook(lambda module, inputs, output: 2 * output)
    with pytest.raises(BackboneError, match="does not give the model's own logits"):
        check_penultimate(backbone, images)


def test_features_that_are_not_finite_are_refused(tiny_weights: Path, images: torch.Tensor) -> None:
    backbone = load_backbone(config(tiny_weights))
    with pytest.raises(BackboneError, match="gives features that are not finite"):
        check_penultimate(backbone, images * float("nan"))


def test_a_model_without_one_linear_classifier_is_refused(tmp_path: Path) -> None:
    network = timm.create_model("resnet10t", num_classes=0)
    save_file(network.state_dict(), tmp_path / "headless.safetensors")
    headless = BackboneConfig(
        name="resnet10t", weights=tmp_path / "headless.safetensors", model_args={"num_classes": 0}
    )
    with pytest.raises(BackboneError, match="the classifier of resnet10t is Identity"):
        load_backbone(headless)


def test_a_model_that_averages_two_classifiers_is_refused(tiny_weights: Path) -> None:
    with pytest.raises(BackboneError, match="averages two classifiers"):
        load_backbone(config(tiny_weights, name="deit_tiny_distilled_patch16_224"))


def test_a_size_that_the_model_does_not_take_is_refused(tmp_path: Path) -> None:
    network = timm.create_model("vit_tiny_patch16_224", num_classes=2)
    save_file(network.state_dict(), tmp_path / "vit.safetensors")
    vit = BackboneConfig(name="vit_tiny_patch16_224", weights=tmp_path / "vit.safetensors")
    with pytest.raises(BackboneError, match="cannot process images of 96 x 96 pixels"):
        check_penultimate(load_backbone(vit), torch.zeros(2, 3, 96, 96))


def test_names_that_are_not_one_a_row_are_refused(tiny_weights: Path, tmp_path: Path) -> None:
    path = tmp_path / "named.safetensors"
    save_file(load_file(tiny_weights), path, metadata={"class_names": '["a"]'})
    with pytest.raises(BackboneError, match="names 1 classes, its classifier has 3 rows"):
        load_backbone(config(path))


def test_model_arguments_are_python_literals_or_strings() -> None:
    parsed = parse_model_args(["pad_type=same", "depths=(1, 2)", "drop_rate=0.1", "ls=None"])
    assert parsed == {"pad_type": "same", "depths": (1, 2), "drop_rate": 0.1, "ls": None}


@pytest.mark.parametrize("argument", ["pad_type", "=same", "a b=1"])
def test_a_malformed_model_argument_is_refused(argument: str) -> None:
    with pytest.raises(BackboneError, match="is not of the form name=value"):
        parse_model_args([argument])


def test_an_unknown_autocast_is_refused() -> None:
    with pytest.raises(ValueError, match="autocast must be off, bfloat16 or float16"):
        BackboneConfig(name=MODEL, autocast="int8")


def test_bfloat16_autocast_changes_little(tiny_weights: Path, images: torch.Tensor) -> None:
    exact = load_backbone(config(tiny_weights)).features(images)
    rough = load_backbone(config(tiny_weights, autocast="bfloat16")).features(images)
    assert rough.dtype == torch.float32
    assert not torch.equal(exact, rough)
    torch.testing.assert_close(exact, rough, rtol=0, atol=0.05 * float(exact.abs().max()))


@pytest.mark.gpu
def test_the_gpu_gives_the_features_of_the_cpu(tiny_weights: Path, images: torch.Tensor) -> None:
    on_gpu = load_backbone(config(tiny_weights, device="cuda")).features(images.cuda())
    expected = load_backbone(config(tiny_weights)).features(images)
    torch.testing.assert_close(on_gpu.cpu(), expected, rtol=1e-2, atol=1e-2)
