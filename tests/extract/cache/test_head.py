from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch

from clinit.errors import CacheError, HeadError
from clinit.extract.cache.head import Head, Top1, read_head, store_head, top1, write_head
from clinit.extract.work.recorded import name_rows

W, B = np.ones((2, 3)), np.ones(2)
WHOLE = {"weight": W, "bias": B}


@pytest.fixture
def head() -> Head:
    weight = np.arange(6, dtype=np.float32).reshape(3, 2)
    return Head(weight, np.ones(3, np.float32), ("a", "b", "ç"), "f")


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_a_head_survives_the_disk_in_both_kinds_of_file(
    head: Head, tmp_path: Path, suffix: str
) -> None:
    written = replace(head, origin={"fitted": "ridge", "lam": 0.3, "tasks": [0, 0, 1]})
    write_head(written, tmp_path / f"head{suffix}")
    found = read_head(tmp_path / f"head{suffix}")
    np.testing.assert_array_equal(found.weight, head.weight)
    np.testing.assert_array_equal(found.bias, head.bias)
    assert (found.class_names, found.origin) == (head.class_names, written.origin)
    assert found.fingerprint == ("f" if suffix == ".safetensors" else "")
    assert found.weight.flags.writeable


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_a_head_of_any_floating_point_type_is_read(tmp_path: Path, dtype: torch.dtype) -> None:
    weight = torch.tensor([[1.5, -2.0], [0.25, 3.0]])
    tensors = {"weight": weight.to(dtype), "bias": torch.tensor([0.5, -1.0]).to(dtype)}
    save_torch(tensors, tmp_path / "head.safetensors")
    head = read_head(tmp_path / "head.safetensors")
    assert head.weight.dtype == head.bias.dtype == np.float32
    np.testing.assert_array_equal(head.weight, weight.numpy())
    np.testing.assert_array_equal(head.bias, [0.5, -1.0])


@pytest.mark.parametrize(
    ("arrays", "metadata", "match"),
    [
        ({"bias": B}, None, "no `weight`; it contains bias"),
        ({"weight": W, "b": B}, None, "no `bias`; it contains b, weight"),
        ({"weight": W, "bias": np.ones(3)}, None, r"float64 \(2, 3\) and float64 \(3,\)"),
        ({"weight": B, "bias": B}, None, r"float64 \(2,\) and float64 \(2,\)"),
        ({"weight": W * np.nan, "bias": B}, None, "are not finite"),
        ({"weight": W * 1e300, "bias": B}, None, "are not finite"),
        ({"weight": W.astype(int), "bias": B}, None, "int64|I64"),
        ({**WHOLE, "class_names": np.arange(2)}, None, "`class_names` of .* no texts"),
        ({**WHOLE, "class_names": np.array(["a", "a"])}, None, "1 different texts"),
        ({**WHOLE, "origin": np.array(["{"])}, None, "`origin` is not a JSON"),
        ({**WHOLE, "origin": np.array(["3"])}, None, "`origin` is not a JSON"),
        (WHOLE, {"clinit_head": '{"class_names": ["a"]}'}, "names 1 classes"),
        (WHOLE, {"clinit_head": '{"class_names": ["\\ud800", "b"]}'}, "names 2 classes"),
        (WHOLE, {"clinit_head": "["}, "is damaged: Expecting"),
        (WHOLE, {"clinit_head": "3"}, "it contains 3 instead of fields"),
        (WHOLE, {"clinit_head": '{"class_names": 3}'}, r"at `\$\.class_names`"),
        (WHOLE, {"clinit_head": '{"fingerprint": ["f"]}'}, "Expected `str`, got `array`"),
        (WHOLE, {"clinit_head": "[" * 200_000}, "it is nested too deeply"),
        (WHOLE, {"clinit_head": '{"format": "clinit-head/1"}'}, "its format is 'clinit-head/1'"),
        (WHOLE, {"clinit_head": '{"format": "clinit-head/2"}'}, "it has changed since it was"),
        (WHOLE, {"class_names": '["cat", "cat"]'}, "not a JSON list of different texts"),
        (WHOLE, {"class_names": '["cat", 3]'}, "not a JSON list of different texts"),
        (WHOLE, {"class_names": '["cat"]'}, "names 1 classes"),
        ({"weight": W[:1], "bias": B[:1], "class_names": np.array(["a", "b"])}, None, "for 1 rows"),
    ],
)
def test_what_is_no_head_is_refused(
    tmp_path: Path, arrays: dict[str, Any], metadata: dict[str, str] | None, match: str
) -> None:
    """Metadata are of safetensors alone, and texts of .npz."""
    if metadata is None:
        np.savez(tmp_path / "head.npz", **arrays)
    if not {"class_names", "origin"} & {*arrays}:
        save_file(arrays, tmp_path / "head.safetensors", metadata=metadata)
    for path in tmp_path.iterdir():
        with pytest.raises(HeadError, match=match):
            read_head(path)


@pytest.mark.parametrize(
    ("metadata", "names"),
    [
        (None, None),
        ({"format": "pt"}, None),
        ({"clinit_head": '{"fingerprint": "f", "class_names": ["a", "b", "c"]}'}, tuple("abc")),
        ({"clinit_head": '{"class_names": [1, 2, 3]}', "other": "x"}, tuple("123")),
        ({"class_names": '["a", "b", "c"]', "author": "somebody"}, tuple("abc")),
    ],
)
def test_heads_of_earlier_versions_and_from_elsewhere_are_read(
    head: Head, tmp_path: Path, metadata: dict[str, str] | None, names: tuple[str, ...] | None
) -> None:
    path = tmp_path / "head.safetensors"
    save_file({"weight": head.weight.astype(float), "bias": head.bias}, path, metadata=metadata)
    found = read_head(path)
    np.testing.assert_array_equal(found.weight, head.weight)
    assert found.class_names == names


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_a_missing_bias_is_zero(tmp_path: Path, suffix: str) -> None:
    weight = np.arange(6, dtype=np.float32).reshape(2, 3)
    path, notes = tmp_path / f"head{suffix}", list[str]()
    np.savez(path, weight=weight) if suffix == ".npz" else save_file({"weight": weight}, path)
    np.testing.assert_array_equal(read_head(path, on_note=notes.append).bias, np.zeros(2))
    assert ["no bias" in note for note in notes] == [True]


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_no_changed_byte_of_a_head_file_is_read(head: Head, tmp_path: Path, suffix: str) -> None:
    path, rng = tmp_path / f"head{suffix}", np.random.default_rng(0)
    write_head(replace(head, alignment={"loss": "mse"}), path)
    whole, stored = path.read_bytes(), read_head(path)
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= int(rng.integers(1, 256))
        path.write_bytes(damaged)
        try:
            found = read_head(path, on_note=(notes := list[str]()).append)
        except HeadError:
            continue
        # White space that is still white space; the directory of an .npz can hide an array.
        np.testing.assert_array_equal(found.weight, head.weight)
        assert notes or found.bias.tolist() == head.bias.tolist()
        if suffix == ".safetensors":
            assert (found.class_names, found.fingerprint) == (head.class_names, "f")
            assert found.alignment == {"loss": "mse"}
        assert found.class_names in (stored.class_names, None)


def test_storing_a_head_removes_what_a_killed_process_left_of_it_and_keeps_names(
    head: Head, tmp_path: Path
) -> None:
    path = tmp_path / "head.safetensors"
    (tmp_path / ".head.safetensors.tmp-0123456789abcdef").write_text("half")
    store_head(head, path)
    assert list(tmp_path.iterdir()) == [path]
    assert store_head(replace(head, class_names=None), path).class_names == head.class_names


def test_the_rows_are_named_by_the_weights_the_data_set_or_a_file(
    head: Head, tmp_path: Path
) -> None:
    names = tmp_path / "names.txt"
    names.write_text("p\nq\n\nr\n", encoding="utf-8")
    for given, found in ((None, "abç"), ("dataset", "xyz"), (str(names), "pqr")):
        assert name_rows(head, ("x", "y", "z"), given)[0].class_names == tuple(found)
    named, source = name_rows(Head(np.zeros((1000, 1)), np.zeros(1000)), (), None)
    assert (named.class_names or ())[::999] == ("n01440764", "n15075141")
    assert source == "ImageNet-1K (1,000 rows)"


@pytest.mark.parametrize(
    ("content", "kind", "match"),
    [
        (b"a\nb\n", HeadError, "2 names for a classifier of 3 rows"),
        (b"a\nb\na\n", CacheError, "'a' is in lines 1 and 3"),
        (b"\xff\n", CacheError, "cannot read class names in"),
        (None, CacheError, r"cannot read class names in .*names\.txt"),
    ],
)
def test_names_that_tell_no_classes_apart_are_refused(
    head: Head, tmp_path: Path, content: bytes | None, kind: type[Exception], match: str
) -> None:
    if content is not None:
        (tmp_path / "names.txt").write_bytes(content)
    with pytest.raises(kind, match=match):
        name_rows(head, (), str(tmp_path / "names.txt"))


def test_top1_of_more_rows_than_are_computed_at_a_time_is_that_of_all_logits() -> None:
    random = np.random.default_rng(0)
    weight, bias = (random.normal(size=shape).astype(np.float32) for shape in ((5, 4), (5,)))
    head, labels = Head(weight, bias), random.integers(5, size=1300)
    features = random.normal(size=(1300, 4)).astype(np.float16)
    logits = features.astype(float) @ head.weight.T + head.bias
    expected = int((logits.argmax(axis=1) == labels).sum())
    assert expected != int(((logits - head.bias).argmax(axis=1) == labels).sum())
    assert top1(head, features, labels, np.arange(5)) == Top1(expected, 1300)
