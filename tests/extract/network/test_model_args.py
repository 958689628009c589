import pytest
import timm
import torch
from torch import nn

from clinit.extract.network.backbone import check_model_args, parse_model_args


def test_model_arguments_are_python_literals_or_strings() -> None:
    parsed = parse_model_args(["pad_type=same", "depths=(1, 2)", "drop_rate=0.1", "act_layer=None"])
    assert parsed == {"pad_type": "same", "depths": (1, 2), "drop_rate": 0.1, "act_layer": None}


@pytest.mark.parametrize(
    ("model", "argument"),
    [
        ("swinv2_tiny_window8_256", "pretrained_window_sizes=(8, 8, 8, 4)"),
        ("dpn68", "b=True"),
        ("visformer_tiny", "embed_norm=None"),
        ("coat_lite_tiny", "crpe_window={3: 4, 5: 2, 7: 2}"),
    ],
)
def test_arguments_of_one_family_of_networks_are_taken(model: str, argument: str) -> None:
    with torch.device("meta"):
        assert isinstance(timm.create_model(model, **parse_model_args([argument])), nn.Module)


@pytest.mark.parametrize(
    "name",
    [
        *("checkpoint_path", "pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "cache_dir"),
        *("model_name", "scriptable", "exportable", "no_jit", "features_only", "kwargs_filter"),
        *("pretrained_filter_fn", "device", "kwargs", "pretrained_strict", "pruned"),
    ],
)
def test_what_is_no_architecture_is_refused_by_its_name(name: str) -> None:
    text = f"the model argument '{name}' does not describe an architecture"
    with pytest.raises(ValueError, match=text):
        check_model_args({"depths": (1, 2), name: "x"})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (10**9, "= 1000000000 lies beyond 65,536"),
        ((4, 8, (10**6,)), "lies beyond 65,536"),
        pytest.param(16**4100, "lies beyond 65,536", id="huge"),
        (1e7, "lies beyond 1,000,000"),
        (float("nan"), "= nan lies beyond 1,000,000"),
        ("/etc/passwd", "= '/etc/passwd' is not a word of letters, digits, _, + and -"),
        ("hf-hub:timm/resnet18", "is not a word of letters"),
        ("a\n", "is not a word of letters"),
        ((1,) * 129, "has more than 128 entries or more than 3 levels"),
        ([[[[1]]]], "has more than 128 entries or more than 3 levels"),
        ({3: 10**9}, "lies beyond 65,536"),
        ({True: 1}, "is of type dict, expected numbers, words or lists of them"),
        ({"file": "x"}, "is of type dict, expected numbers, words or lists of them"),
        (nn.Linear, "is of type type"),
    ],
)
def test_what_is_not_plain_or_beyond_reason_is_refused(value: object, text: str) -> None:
    with pytest.raises(ValueError, match="the model argument depths ") as caught:
        check_model_args({"depths": value})
    assert text in str(caught.value)
    assert len(str(caught.value)) < 200
