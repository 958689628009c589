import pytest
import timm
import torch
from torch import nn

from clinit.errors import BackboneError
from clinit.extract.network.backbone import (
    check_model_args,
    parse_model_args,
    read_literal,
    read_model_args,
)


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
    text = f"the model argument '{name}' is none of those that describe an architecture"
    with pytest.raises(ValueError, match=text):
        check_model_args({"depths": (1, 2), name: "x"})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (10**9, "= 1000000000 lies beyond 65,536"),
        ((4, 8, (10**6,)), "lies beyond 65,536"),
        pytest.param(16**4100, "= a number of thousands of digits lies beyond 65,536", id="huge"),
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


@pytest.mark.parametrize(
    "text",
    [
        *("[" * 2000 + "]" * 2000, "-" * 4000 + "1", "(" * 4000, "0x" + "f" * 4000, "1" * 4000),
        *("__import__('os')", "{}.a", "{[]: 1}", "\0", "'" + "\\x", "\ud800"),
    ],
)
def test_hostile_text_is_an_error_and_no_crash(text: str) -> None:
    try:
        read_literal(text)
    except ValueError as error:
        assert len(str(error)) < 200  # noqa: PT017
    with pytest.raises(ValueError):  # noqa: PT011
        read_model_args(text)
    with pytest.raises(BackboneError):
        parse_model_args([f"pretrained_cfg={text}"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ({"depths": 1}, "model_args is of type dict, expected a text"),
        ("5", "model_args is '5', expected names with values"),
        ("{1: 2}", "expected names with values"),
        ("{'checkpoint_path': 'evil.pth'}", "the model argument 'checkpoint_path' is none of"),
    ],
)
def test_stored_arguments_of_another_form_are_refused(text: object, message: str) -> None:
    for good in ("{'depths': (1, 2)}", "[('depths', (1, 2))]"):
        assert read_model_args(good) == {"depths": (1, 2)}
    with pytest.raises(ValueError, match=message):
        read_model_args(text)
