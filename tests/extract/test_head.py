from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch

from clinit.errors import CacheError, HeadError
from clinit.extract.head import Head, read_head, write_head
from clinit.extract.head_names import name_rows
from clinit.extract.top1 import Top1, head_rows, top1


@pytest.fixture
def head() -> Head:
    weight = np.arange(6, dtype=np.float32).reshape(3, 2)
    return Head(weight, np.ones(3, np.float32), ("a", "b", "ç"), "f")


def test_a_head_survives_the_disk(head: Head, tmp_path: Path) -> None:
    write_head(head, tmp_path / "head.safetensors")
    found = read_head(tmp_path / "head.safetensors")
    np.testing.assert_array_equal(found.weight, head.weight)
    np.testing.assert_array_equal(found.bias, head.bias)
    assert (found.class_names, found.fingerprint) == (head.class_names, "f")


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
    ("dtype", "name"),
    [(torch.float8_e4m3fn, "F8_E4M3"), (torch.int64, "I64"), (torch.complex64, "C64")],
)
def test_a_head_of_another_type_is_refused(tmp_path: Path, dtype: torch.dtype, name: str) -> None:
    tensors = {"weight": torch.ones(2, 2).to(dtype), "bias": torch.ones(2).to(dtype)}
    save_torch(tensors, tmp_path / "head.safetensors")
    with pytest.raises(HeadError, match=f"not a head file: weight is of type {name}, expected fl"):
        read_head(tmp_path / "head.safetensors")


def test_a_head_has_the_permissions_of_any_new_file(head: Head, tmp_path: Path) -> None:
    write_head(head, tmp_path / "head.safetensors")
    (tmp_path / "other").touch()
    assert (tmp_path / "head.safetensors").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_a_head_without_names_stays_without(head: Head, tmp_path: Path) -> None:
    write_head(Head(head.weight, head.bias), tmp_path / "head.safetensors")
    assert read_head(tmp_path / "head.safetensors").class_names is None


def test_a_head_has_one_name_a_row(head: Head) -> None:
    with pytest.raises(ValueError, match="2 class names for 3 rows"):
        Head(head.weight, head.bias, ("a", "b"))


@pytest.mark.parametrize(
    ("tensors", "metadata", "text"),
    [
        ({"weight": np.zeros((3, 2))}, {}, "is not a head file"),
        ({"weight": np.zeros((3, 2)), "bias": np.zeros(2)}, {}, r"weight \(3, 2\) and bias \(2,\)"),
        ({"weight": np.zeros(3), "bias": np.zeros(3)}, {}, r"weight \(3,\) and bias \(3,\)"),
        ({"weight": np.full((1, 1), np.nan), "bias": np.zeros(1)}, {}, "are not finite"),
        (
            {"weight": np.zeros((2, 1)), "bias": np.zeros(2)},
            {"clinit_head": '{"class_names": ["a"]}'},
            "names 1 cl",
        ),
        (
            {"weight": np.zeros((2, 1)), "bias": np.zeros(2)},
            {"clinit_head": "["},
            "is damaged: Expecting",
        ),
    ],
)
def test_what_is_not_a_head_is_refused(
    tmp_path: Path, tensors: dict[str, np.ndarray], metadata: dict[str, str], text: str
) -> None:
    save_file(tensors, tmp_path / "head.safetensors", metadata=metadata)
    with pytest.raises(HeadError, match=text):
        read_head(tmp_path / "head.safetensors")


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(HeadError, match="no head file at"):
        read_head(tmp_path / "absent")
    (tmp_path / "text").write_text("text")
    with pytest.raises(HeadError, match="is not a head file"):
        read_head(tmp_path / "text")


def test_the_rows_are_named_by_the_weights_the_data_set_or_a_file(
    head: Head, tmp_path: Path
) -> None:
    assert name_rows(head, ("x", "y", "z"), None)[0].class_names == ("a", "b", "ç")
    assert name_rows(head, ("x", "y", "z"), "dataset")[0].class_names == ("x", "y", "z")
    (tmp_path / "names.txt").write_text("p\nq\n\nr\n", encoding="utf-8")
    assert name_rows(head, (), str(tmp_path / "names.txt"))[0].class_names == ("p", "q", "r")


def test_a_thousand_rows_are_those_of_imagenet() -> None:
    named, source = name_rows(Head(np.zeros((1000, 1)), np.zeros(1000)), (), None)
    assert named.class_names is not None
    assert named.class_names[0] == "n01440764"
    assert named.class_names[-1] == "n15075141"
    assert source == "ImageNet-1K (1,000 rows)"


def test_other_rows_stay_without_names(head: Head) -> None:
    assert name_rows(Head(head.weight, head.bias), ("x",), None)[1] == "unknown"


def test_too_few_names_are_refused(head: Head, tmp_path: Path) -> None:
    with pytest.raises(HeadError, match="the data set: 1 names for a classifier of 3 rows"):
        name_rows(head, ("x",), "dataset")
    with pytest.raises(CacheError, match=r"cannot read the class names in .*absent\.txt"):
        name_rows(head, ("x",), str(tmp_path / "absent.txt"))


@pytest.mark.parametrize(
    ("content", "text"),
    [(b"a\nb\na\n", "a name occurs twice in"), (b"\xff\n", "cannot read the class names in")],
)
def test_names_that_tell_no_classes_apart_are_refused(
    head: Head, tmp_path: Path, content: bytes, text: str
) -> None:
    (tmp_path / "names.txt").write_bytes(content)
    with pytest.raises(CacheError, match=text):
        name_rows(head, (), str(tmp_path / "names.txt"))


def test_top1_counts_only_rows_of_classes_that_the_head_knows(head: Head) -> None:
    rows = head_rows(head, ("b", "other", "a"))
    np.testing.assert_array_equal(rows, [1, -1, 0])
    features = np.array([[1, 0], [-1, -1], [1, 1], [-1, -2]], dtype=np.float16)
    labels = np.array([0, 2, 1, 2])
    logits = features.astype(float) @ head.weight.T + head.bias
    best = logits.argmax(axis=1)  # rows 2, 0, (2), 0
    assert best.tolist() == [2, 0, 2, 0]
    assert top1(head, features, labels, rows) == Top1(2, 3)
    assert Top1(0, 0).percent is None
    assert Top1(1, 4).percent == 25
