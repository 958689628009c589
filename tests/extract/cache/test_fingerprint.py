import hashlib
import json
from pathlib import Path

import pytest

from clinit.errors import CacheError
from clinit.extract.cache.fingerprint import FieldDifference, Fingerprint, check_view

NETWORK = Fingerprint.of_network(
    backbone="resnet18",
    weights="ab",
    model_args=repr(sorted({"global_pool": "avg", "depth": 2}.items())),
    timm="1.0",
    transform="resize 36",
    decoder="png 1",
    dtype="float16",
    autocast="off",
)
CLIP = Fingerprint.of_import(backbone="clip", dtype="float16")


def test_documents_hold_the_fields_in_the_order_in_which_they_always_did() -> None:
    own = [
        ("backbone", "resnet18"),
        ("weights", "ab"),
        ("model_args", "[('depth', 2), ('global_pool', 'avg')]"),
        ("timm", "1.0"),
        ("transform", "resize 36"),
        ("decoder", "png 1"),
        ("dtype", "float16"),
        ("autocast", "off"),
    ]
    view = [("augmentation", "cropped"), ("view_seed", "7"), ("view", "0")]
    rows = NETWORK.of_rows("m")
    seen = rows.of_view("cropped", seed=7, number=0)
    assert list(NETWORK.fields.items()) == own
    assert list(seen.fields.items()) == [*own, ("manifest", "m"), *view]
    assert (seen.backbone, seen.view, rows.view, rows.manifest) == ("resnet18", "0", None, "m")
    activations = rows.of_activations("n", cut="stages.3", dtype="bfloat16").fields
    assert [*activations] == [*dict(own), "manifest", "cut"]
    assert (activations["manifest"], activations["dtype"]) == ("n", "bfloat16")
    assert list(CLIP.of_rows("m", features="f").fields.items()) == [
        ("backbone", "clip"),
        ("imported", "npy"),
        ("dtype", "float16"),
        ("manifest", "m"),
        ("features", "f"),
    ]


def test_the_identifier_of_a_backbone_is_the_digest_of_its_fields_without_those_of_rows() -> None:
    text = '{"backbone": "clip", "dtype": "float16", "imported": "npy"}'
    assert json.loads(text) == CLIP.fields
    expected = hashlib.sha256(text.encode()).hexdigest()
    assert CLIP.backbone_identifier == expected
    assert CLIP.of_rows("m", features="f").backbone_identifier == expected
    backwards = Fingerprint(dict(sorted(CLIP.fields.items(), reverse=True)))
    assert backwards.backbone_identifier == expected
    assert Fingerprint.of_import(backbone="dino", dtype="float16").backbone_identifier != expected


def test_differences_name_each_field_that_differs_and_what_both_hold() -> None:
    one = Fingerprint({"a": "1", "b": "2", "c": "3"})
    assert one.differences(Fingerprint({"d": "4", "c": "0", "a": "1"})) == (
        FieldDifference("b", "2", "nothing"),
        FieldDifference("c", "3", "0"),
        FieldDifference("d", "nothing", "4"),
    )
    assert one.differences(Fingerprint({"c": "3", "b": "2", "a": "1"})) == ()
    # A field that holds the word is still another than one that is absent.
    assert len(one.differences(Fingerprint({**one.fields, "d": "nothing"}))) == 1


def test_a_view_differs_from_the_plain_split_in_nothing_but_the_fields_of_views() -> None:
    plain = NETWORK.of_rows("m")
    view = plain.of_view("cropped", seed=7, number=0)
    check_view(Path("0"), view, plain, view)
    other = NETWORK.of_rows("n").of_view("cropped", seed=7, number=0)
    with pytest.raises(CacheError, match="have manifest = n, expected manifest = m"):
        check_view(Path("0"), other, plain, other)


def test_a_head_reads_the_features_of_its_backbone_and_one_of_unknown_origin_reads_all() -> None:
    identifiers = ("", CLIP.backbone_identifier, NETWORK.backbone_identifier)
    assert [CLIP.of_rows("m").fits(each) for each in identifiers] == [True, True, False]
