import dataclasses
import pickle
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file

from clinit.errors import BackboneError
from clinit.extract.network.backbone import (
    BackboneConfig,
    check_features,
    load_backbone,
    projection_widths,
    state_sha256,
)
from tests.conftest import TINY_MODEL as MODEL
from tests.extract.work.made import tiny_backbone


@pytest.fixture
def images() -> torch.Tensor:
    return torch.randn(5, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def test_the_head_of_the_features_gives_the_logits(
    tiny_weights: Path, images: torch.Tensor
) -> None:
    backbone = load_backbone(tiny_backbone(tiny_weights))
    check_features(backbone, images)
    head = backbone.head
    found = backbone.features(images).numpy() @ head.weight.T + head.bias
    torch.testing.assert_close(torch.from_numpy(found), backbone.logits(images))
    assert (head.class_names, backbone.dim) == (("a", "b", "c"), 12)


def test_code_in_a_checkpoint_is_not_run(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, ...]:
            return (Path.touch, (tmp_path / "exploded",))

    (tmp_path / "bomb.pth").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(BackboneError, match=r"bomb\.pth cannot be read as weights") as caught:
        load_backbone(tiny_backbone(tmp_path / "bomb.pth"))
    assert "clinit never runs code in a checkpoint" in caught.value.remedy
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize("has_weights", [True, False])
@pytest.mark.parametrize(
    ("name", "text"),
    [
        (MODEL, "convnextv2_atto: the model argument 'checkpoint_path'"),
        (f"{MODEL}.nope", "has no weights 'nope' of convnextv2_atto"),
        (f"{MODEL}.fcmae_ft_in1k.x", "has no weights 'fcmae_ft_in1k.x' of convnextv2_atto"),
        ("hf-hub:timm/resnet18", "has no model 'hf-hub:timm/resnet18'"),
        ("local-dir:/tmp/resnet18", "has no model 'local-dir:/tmp/resnet18'"),
        ("/tmp/resnet18", "has no model '/tmp/resnet18'"),
        ("resnet18.hf-hub:timm/resnet18", "has no weights 'hf-hub:timm/resnet18' of resnet18"),
        ("", "has no model ''"),
    ],
)
def test_names_and_arguments_that_are_no_architecture_are_refused_before_timm_is_called(
    tiny_weights: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str, has_weights: bool
) -> None:
    monkeypatch.setattr(timm, "create_model", lambda *args, **kwargs: 1 / 0)
    monkeypatch.setattr(timm.models, "load_state_dict", lambda *args, **kwargs: 1 / 0)
    weights, arguments = tiny_weights if has_weights else None, {"checkpoint_path": "evil.pth"}
    with pytest.raises(BackboneError, match=text) as caught:
        load_backbone(BackboneConfig(name=name, weights=weights, model_args=arguments))
    if name == f"{MODEL}.nope":
        assert "convnextv2_atto.fcmae_ft_in1k" in caught.value.remedy
    if name.startswith("hf-hub"):
        assert "`--backbone resnet18`" in caught.value.remedy


@pytest.mark.parametrize("parameter", ["head.fc.weight", "head.fc.bias"])
def test_a_classifier_that_is_not_finite_is_refused_at_load(
    tiny_weights: Path, tmp_path: Path, parameter: str
) -> None:
    state, path = load_file(tiny_weights), tmp_path / "diverged.safetensors"
    state[parameter].view(-1)[1] = torch.nan
    save_file(state, path)
    with pytest.raises(BackboneError, match=f"{path}: the classifier of .* not finite"):
        load_backbone(tiny_backbone(path))


def test_a_model_that_does_more_than_its_classifier_is_refused(
    tiny_weights: Path, images: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone = load_backbone(tiny_backbone(tiny_weights))
    classifier = backbone.network.get_classifier()  # type: ignore[operator, no-any-return]
    classifier.register_forward_hook(lambda module, inputs, output: 2 * output)
    with pytest.raises(BackboneError, match="does not give the model's own logits"):
        check_features(backbone, images)


def saved(name: str, folder: Path, **arguments: Any) -> BackboneConfig:
    """Return a network with random weights, its number of classes left to the file."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        network = timm.create_model(name, **arguments)
    path = folder / f"{name}.safetensors"
    save_file(network.state_dict(), path)
    return BackboneConfig(name=name, weights=path, model_args=arguments)


TINY_VIT: dict[str, Any] = {"depth": 1, "embed_dim": 12, "num_heads": 2, "img_size": 32}
TINY_VIT["patch_size"] = 16


def test_a_network_without_a_classifier_has_no_head(tmp_path: Path, images: torch.Tensor) -> None:
    backbone = load_backbone(saved("vit_small_patch14_dinov2", tmp_path, **TINY_VIT))
    check_features(backbone, images)
    assert (backbone.head, backbone.projection, backbone.dim) == (None, None, 12)
    assert torch.equal(backbone.features(images), backbone.network(images))


def test_a_clip_tower_gives_features_before_or_after_its_projection(
    tmp_path: Path, images: torch.Tensor
) -> None:
    config = saved("vit_base_patch32_clip_224", tmp_path, num_classes=512, **TINY_VIT)
    before = load_backbone(config)
    after = load_backbone(dataclasses.replace(config, output="projected"))
    for backbone in (before, after):
        check_features(backbone, images)
        assert backbone.head is None
    assert (before.dim, after.dim) == (12, 512)
    found = before.features(images).numpy() @ before.projection.weight.T + before.projection.bias
    torch.testing.assert_close(torch.from_numpy(found), after.features(images))
    named = load_backbone(config, named=True)
    assert named.head is not None, "whoever names its rows has a classifier"


@pytest.mark.parametrize(
    ("name", "widths"),
    [
        ("vit_base_patch32_clip_224.openai", {512}),
        ("vit_base_patch32_clip_224.laion2b_ft_in12k_in1k", set()),
        ("vit_base_patch32_clip_224", {512}),
        ("resnet50_clip.openai", {1024}),
        ("vit_base_patch16_siglip_224.v2_webli", set()),
        ("vit_pe_core_base_patch16_224.fb", {1024}),
        ("resnet18", set()),
    ],
)
def test_a_projection_is_told_from_a_classifier_by_its_registered_width(
    name: str, widths: set[int]
) -> None:
    assert projection_widths(name) == widths


@pytest.mark.untyped
def test_a_map_of_features_is_refused(tmp_path: Path, images: torch.Tensor) -> None:
    config = saved("vit_small_patch14_dinov2", tmp_path, global_pool="", **TINY_VIT)
    with pytest.raises(BackboneError, match=r"shape \(5, 5, 12\), expected 12 finite") as caught:
        check_features(load_backbone(config), images)
    assert "--model-arg global_pool=avg" in caught.value.remedy


@pytest.mark.parametrize(("autocast", "expected"), [("off", False), ("tf32", True)])
def test_products_and_convolutions_have_one_precision_which_is_restored(
    tiny_weights: Path,
    images: torch.Tensor,
    monkeypatch: pytest.MonkeyPatch,
    autocast: str,
    expected: bool,
) -> None:
    switches: Any = (torch.backends.cudnn, torch.backends.cuda.matmul)
    before, seen = [each.allow_tf32 for each in switches], list[bool]()
    backbone = load_backbone(tiny_backbone(tiny_weights, autocast=autocast))
    forward = backbone.network.forward_features

    def look(batch: torch.Tensor) -> torch.Tensor:
        seen.extend(each.allow_tf32 for each in switches)
        return forward(batch)  # type: ignore[operator, no-any-return]

    monkeypatch.setattr(backbone.network, "forward_features", look)
    backbone.features(images)
    backbone.logits(images)
    dataclasses.replace(backbone, program=backbone.forward).features(images)
    assert seen == [expected] * 6
    assert [each.allow_tf32 for each in switches] == before


def test_bfloat16_autocast_changes_little(tiny_weights: Path, images: torch.Tensor) -> None:
    exact = load_backbone(tiny_backbone(tiny_weights)).features(images)
    rough = load_backbone(tiny_backbone(tiny_weights, autocast="bfloat16")).features(images)
    assert rough.dtype == torch.float32
    assert not torch.equal(exact, rough)
    torch.testing.assert_close(exact, rough, rtol=0, atol=0.05 * float(exact.abs().max()))


@pytest.mark.gpu
@pytest.mark.parametrize(("autocast", "share"), [("off", 1e-5), ("tf32", 1e-2)])
def test_the_gpu_gives_the_features_of_the_cpu(
    tiny_weights: Path, images: torch.Tensor, autocast: str, share: float
) -> None:
    config = tiny_backbone(tiny_weights, device="cuda", autocast=autocast)
    on_gpu = load_backbone(config).features(images.cuda())
    expected = load_backbone(tiny_backbone(tiny_weights)).features(images)
    atol = share * float(expected.abs().max())
    torch.testing.assert_close(on_gpu.cpu(), expected, rtol=0, atol=atol)


def test_the_digest_of_a_state_is_that_of_its_values_however_they_lie() -> None:
    lone = torch.tensor([1.5], dtype=torch.float64)
    spread = torch.tensor(1.5, dtype=torch.float64).expand(1)
    assert spread.stride() == (0,)
    assert state_sha256({"a": spread}) == state_sha256({"a": lone})
    assert state_sha256({"a": lone}) != state_sha256({"a": lone + 1})
    assert state_sha256({"a": lone}) != state_sha256({"b": lone})


def test_a_deprecated_name_of_timm_stands_for_todays(tmp_path: Path) -> None:
    given = saved("vit_tiny_patch16_224", tmp_path, **TINY_VIT, num_classes=3)
    found = load_backbone(dataclasses.replace(given, name="vit_tiny_patch16_224_in21k"))
    assert found.config.name == "vit_tiny_patch16_224.augreg_in21k"
    assert found.config.name in found.note


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"weights": Path("absent.safetensors")}, "no weights at absent"),
        ({"output": "projected"}, "convnextv2_atto ends in a classifier"),
        ({"name": "convnextv2_ato"}, "has no model 'convnextv2_ato'"),
        ({"weights": Path("named.safetensors")}, "names 1 classes, its classifier has 3 rows"),
        ({"model_args": {"depths": []}}, "timm cannot build convnextv2_atto with"),
    ],
)
def test_what_is_no_backbone_is_refused(
    tiny_weights: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
    match: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    save_file(load_file(tiny_weights), "named.safetensors", metadata={"class_names": '["a"]'})
    with pytest.raises(BackboneError, match=match):
        load_backbone(dataclasses.replace(tiny_backbone(tiny_weights), **changes))
