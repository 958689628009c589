"""What becomes of timm's pretrained weights: every architecture, built without memory."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from clinit.errors import BackboneError
from clinit.extract.network import backbone
from clinit.extract.network.backbone import Backbone, BackboneConfig, load_backbone

HEAD, NONE, PROJECTION = "a classifier", "no classifier", "a projection in place of a classifier"
SEVERAL, OTHER = "several classifiers", "a classifier that is not one linear layer"
ENCODER = "an encoder without pooling"


class WithoutValues(TorchFunctionMode):
    """Leaves out what fills tensors: those on the meta device have no values."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        is_filled = name.endswith("_") and not name.startswith("_") and name != "requires_grad_"
        given = [*args, *(kwargs or {}).values()]
        if is_filled and isinstance(given[0], Tensor):
            return given[0]
        return func(*args, **(kwargs or {}))


def built(name: str, **arguments: Any) -> nn.Module:
    """Return a network on the meta device."""
    with torch.device("meta"), WithoutValues():
        network: nn.Module = timm.create_model(name, **arguments)
    return network


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Backbone]:
    """Return `load_backbone` for networks whose classifier alone has values, all zero."""

    def on_meta(name: str, arguments: dict[str, Any]) -> nn.Module:
        network = built(name, **arguments)
        last = getattr(network, "get_classifier", nn.Identity)()
        if isinstance(last, nn.Linear):
            last.to_empty(device="cpu")
            for parameter in last.parameters():
                nn.init.zeros_(parameter)
        return network

    monkeypatch.setattr(backbone, "pretrained_network", on_meta)
    monkeypatch.setattr(backbone, "state_sha256", lambda state: "")
    monkeypatch.setattr(nn.Module, "to", lambda module, **_: module)
    return lambda name, **arguments: load_backbone(BackboneConfig(name=name, model_args=arguments))


def check_shape(found: Backbone) -> None:
    """Check that a network gives as many features as it is said to."""
    images = torch.zeros(2, *found.data_config["input_size"], device="meta")
    assert found.forward(images).shape == (2, found.dim)


def kind(load: Callable[..., Backbone], name: str) -> str:
    """Return what the weights of a name end in, or why they are refused."""
    several = isinstance(getattr(timm.get_pretrained_cfg(name), "classifier", None), tuple)
    try:
        found = load(name)
    except BackboneError as error:
        other = OTHER if "not one linear layer" in str(error) else ENCODER
        return SEVERAL if several else other
    if found.head is not None:  # with an auxiliary one, its logits are not those of the network
        return SEVERAL if several else HEAD
    check_shape(found)
    grown = built(name, num_classes=7)
    classifier = grown.get_classifier()  # type: ignore[operator]
    if isinstance(classifier, nn.Linear):  # what an export puts in place of it
        assert classifier.in_features == found.dim
        (last,) = (key for key, module in grown.named_modules() if module is classifier)
        states = ({k for k in net.state_dict() if not k.startswith(f"{last}.")}
                  for net in (grown, found.network))  # fmt: skip
        assert next(states) == next(states)
    return NONE if found.projection is None else PROJECTION


@pytest.mark.slow
def test_every_pretrained_network_is_of_one_kind(load: Callable[..., Backbone]) -> None:
    kinds, known = Counter[str](), dict[tuple[object, ...], str]()
    for name in timm.list_models(pretrained=True):
        told = timm.get_pretrained_cfg(name)
        key = (name.partition(".")[0], told.num_classes, str(told.classifier))
        if key not in known:
            known[key] = kind(load, name)
        kinds[known[key]] += 1
    assert kinds[HEAD] > 1_200
    assert kinds[NONE] > 250
    assert kinds[PROJECTION] > 100
    page = (Path(__file__).parents[3] / "docs" / "features.md").read_text(encoding="utf-8")
    refused = kinds[SEVERAL] + kinds[OTHER] + kinds[ENCODER]
    assert refused < 250
    counts = (
        f"({refused:,} of the {kinds.total():,} pretrained networks in timm {timm.__version__})"
    )
    assert timm.__version__ not in page or counts in page, counts


@pytest.mark.parametrize(
    "name",
    [
        *("vit_small_patch14_dinov2.lvd142m", "vit_small_patch16_dinov3.lvd1689m"),
        *("vit_base_patch16_siglip_224.v2_webli", "vit_base_patch16_224.mae"),
        *("convnext_tiny.dinov3_lvd1689m", "hiera_tiny_224.mae"),
        *("vit_base_patch32_clip_224.openai", "resnet50_clip.openai"),
    ],
)
def test_networks_without_a_classifier_are_taken(load: Callable[..., Backbone], name: str) -> None:
    assert kind(load, name) == (PROJECTION if "openai" in name else NONE)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("deit_tiny_distilled_patch16_224", "is tuple, not one linear layer"),
        ("efficientvim_m1", "is ModuleList, not one linear layer"),
        ("caformer_s18", "is MlpHead, not one linear layer"),
        ("resnetv2_50x1_bit", "is Conv2d, not one linear layer"),
        ("samvit_base_patch16", None),
    ],
)
def test_a_classifier_that_is_no_head_is_refused_and_left_out_on_request(
    load: Callable[..., Backbone], name: str, why: str | None
) -> None:
    if why is not None:
        with pytest.raises(BackboneError, match=why) as caught:
            load(name)
        assert "--model-arg num_classes=0" in caught.value.remedy
    found = load(name, num_classes=0)
    assert found.head is None
    check_shape(found)


def test_an_encoder_without_pooling_is_refused(load: Callable[..., Backbone]) -> None:
    with pytest.raises(BackboneError, match="it does not pool them"):
        load("qwen3_vit_88m_enc")
