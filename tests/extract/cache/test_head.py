import errno
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch

from clinit.errors import CacheError, HeadError, StorageError
from clinit.extract.cache.head import (
    Head,
    Top1,
    read_head,
    store_head,
    top1,
    write_head,
)
from clinit.extract.head_names import name_rows


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


@pytest.mark.parametrize(
    ("tensors", "metadata", "text"),
    [
        ({"weight": np.zeros((3, 2)), "b": np.zeros(3)}, {}, "no `bias`; it holds b, weight"),
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


def test_too_few_names_are_refused(head: Head, tmp_path: Path) -> None:
    with pytest.raises(HeadError, match="the data set: 1 names for a classifier of 3 rows"):
        name_rows(head, ("x",), "dataset")
    with pytest.raises(CacheError, match=r"cannot read the class names in .*absent\.txt"):
        name_rows(head, ("x",), str(tmp_path / "absent.txt"))


@pytest.mark.parametrize(
    ("content", "text"),
    [(b"a\nb\na\n", "a name occurs twice"), (b"\xff\n", "cannot read the class names in")],
)
def test_names_that_tell_no_classes_apart_are_refused(
    head: Head, tmp_path: Path, content: bytes, text: str
) -> None:
    (tmp_path / "names.txt").write_bytes(content)
    with pytest.raises(CacheError, match=text):
        name_rows(head, (), str(tmp_path / "names.txt"))


def test_top1_of_more_rows_than_are_computed_at_a_time_is_that_of_all_logits() -> None:
    random = np.random.default_rng(0)
    weight, bias = (random.normal(size=shape).astype(np.float32) for shape in ((5, 4), (5,)))
    head = Head(weight, bias)
    features, labels = (
        random.normal(size=(1300, 4)).astype(np.float16),
        random.integers(5, size=1300),
    )
    logits = features.astype(float) @ head.weight.T + head.bias
    expected = int((logits.argmax(axis=1) == labels).sum())
    without_bias = int(((logits - head.bias).argmax(axis=1) == labels).sum())
    assert expected != without_bias
    assert top1(head, features, labels, np.arange(5)) == Top1(expected, 1300)


def in_file(path: Path) -> dict[str, str]:
    with safe_open(path, framework="numpy") as file:
        return dict(file.metadata())


def test_no_changed_byte_of_a_head_file_is_read(head: Head, tmp_path: Path) -> None:
    path = tmp_path / "head.safetensors"
    write_head(replace(head, alignment={"loss": "mse"}), path)
    whole, rng = path.read_bytes(), np.random.default_rng(0)
    for place in range(len(whole)):
        for flip in (1 << int(rng.integers(8)), int(rng.integers(1, 256))):
            damaged = bytearray(whole)
            damaged[place] ^= flip
            path.write_bytes(damaged)
            try:
                found = read_head(path)
            except HeadError:
                continue
            # White space that is still white space, or zeros of another type.
            np.testing.assert_array_equal(found.weight, head.weight)
            np.testing.assert_array_equal(found.bias, head.bias)
            assert (found.class_names, found.fingerprint) == (head.class_names, "f")
            assert found.alignment == {"loss": "mse"}


@pytest.mark.parametrize("tensor", ["weight", "bias"])
def test_other_tensors_under_the_same_metadata_are_refused(
    head: Head, tmp_path: Path, tensor: str
) -> None:
    path = tmp_path / "head.safetensors"
    write_head(head, path)
    tensors = {"weight": head.weight.copy(), "bias": head.bias.copy()}
    tensors[tensor].flat[0] += 1
    save_file(tensors, path, metadata=in_file(path))
    with pytest.raises(HeadError, match=r"head\.safetensors has changed since it was written") as e:
        read_head(path)
    assert "Run the command that wrote this head again" in e.value.remedy


@pytest.mark.parametrize(
    ("metadata", "names"),
    [
        (None, None),
        ({"format": "pt"}, None),
        ({"clinit_head": '{"fingerprint": "f", "class_names": ["a", "b", "c"]}'}, tuple("abc")),
        ({"clinit_head": '{"class_names": [1, 2, 3]}', "other": "x"}, tuple("123")),
    ],
)
def test_heads_of_earlier_versions_and_from_elsewhere_are_read(
    head: Head,
    tmp_path: Path,
    metadata: dict[str, str] | None,
    names: tuple[str, ...] | None,
) -> None:
    path = tmp_path / "head.safetensors"
    save_file(
        {"weight": head.weight.astype(np.float64), "bias": head.bias}, path, metadata=metadata
    )
    found = read_head(path)
    np.testing.assert_array_equal(found.weight, head.weight)
    assert found.class_names == names


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ("3", "it holds 3 instead of fields"),
        ('{"class_names": 3}', "class_names is 3, expected"),
        ('{"class_names": [null, "b", "c"]}', "class_names"),
        ('{"fingerprint": ["f"]}', r"fingerprint is \['f'\], expected `str`, got `array`"),
        ('{"class_names": ["\\ud800", "b", "c"]}', "has class names that are no text"),
        ("[" * 5000, "it is nested too deeply"),
        ('{"format": "clinit-head/1"}', "is not the description of a head: its format is 'clinit-"),
        ('{"format": "clinit-head/2"}', "it has changed since it was written"),
    ],
)
def test_metadata_that_describe_no_head_are_refused(
    head: Head, tmp_path: Path, facts: str, message: str
) -> None:
    path = tmp_path / "head.safetensors"
    save_file({"weight": head.weight, "bias": head.bias}, path, metadata={"clinit_head": facts})
    with pytest.raises(HeadError, match=rf"head\.safetensors .*{message}"):
        read_head(path)


def test_a_head_that_cannot_be_read_is_not_called_absent(
    head: Head, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, mode: str) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    path = tmp_path / "head.safetensors"
    write_head(head, path)
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(StorageError, match=f"^cannot read {path}: Permission denied$"):
        read_head(path)


def test_storing_a_head_removes_what_a_killed_process_left_of_it(
    head: Head, tmp_path: Path
) -> None:
    draft = tmp_path / ".head.safetensors.tmp-0123456789abcdef"
    draft.write_text("half")
    store_head(head, tmp_path / "head.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["head.safetensors"]


def test_a_file_of_names_that_is_no_list_of_names_is_not_read_whole(
    head: Head, tmp_path: Path
) -> None:
    with (tmp_path / "names.txt").open("wb") as file:
        file.truncate(2**40)  # takes no space
    with pytest.raises(CacheError, match="it is larger than 16 MiB"):
        name_rows(head, (), str(tmp_path / "names.txt"))


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_a_head_survives_in_both_kinds_of_file_with_its_origin(
    head: Head, tmp_path: Path, suffix: str
) -> None:
    written = replace(head, origin={"fitted": "ridge", "lam": 0.3, "tasks": [0, 0, 1]})
    write_head(written, tmp_path / f"head{suffix}")
    found = read_head(tmp_path / f"head{suffix}")
    np.testing.assert_array_equal(found.weight, head.weight)
    np.testing.assert_array_equal(found.bias, head.bias)
    assert (found.class_names, found.origin) == (head.class_names, written.origin)
    assert found.weight.flags.writeable


def test_a_head_from_elsewhere_brings_its_class_names(tmp_path: Path) -> None:
    tensors = {"weight": np.ones((2, 3), np.float32), "bias": np.zeros(2, np.float32)}
    path = tmp_path / "head.safetensors"
    save_file(tensors, path, metadata={"class_names": '["cat", "dog"]', "author": "somebody"})
    assert read_head(path).class_names == ("cat", "dog")
    for wrong in ('["cat", "cat"]', "cat, dog", '["cat", 3]'):
        save_file(tensors, path, metadata={"class_names": wrong})
        with pytest.raises(HeadError, match="are no JSON list of different texts") as caught:
            read_head(path)
        assert "clinit.save_head(path, weight, bias, class_names)" in caught.value.remedy
    save_file(tensors, path, metadata={"class_names": '["cat"]'})
    with pytest.raises(HeadError, match="names 1 classes but holds 2 rows"):
        read_head(path)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_a_weight_in_columns_is_turned_if_the_width_is_known(tmp_path: Path, suffix: str) -> None:
    weight = np.arange(6, dtype=np.float32).reshape(2, 3)
    path, notes = tmp_path / f"head{suffix}", list[str]()
    tensors = {"weight": np.ascontiguousarray(weight.T)}
    np.savez(path, weight=weight.T) if suffix == ".npz" else save_file(tensors, path)
    head = read_head(path, dim=3, on_note=notes.append)
    np.testing.assert_array_equal(head.weight, weight)
    np.testing.assert_array_equal(head.bias, np.zeros(2))
    assert ["(dim, classes)" in notes[0], "no bias" in notes[1], len(notes)] == [True, True, 2]
    assert read_head(path).weight.shape == (3, 2)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"bias": np.ones(2)}, "holds no `weight`; it holds bias"),
        ({"weight": np.ones((2, 3)), "b": np.ones(2)}, "holds no `bias`; it holds b, weight"),
        ({"weight": np.ones((2, 3)), "bias": np.ones(3)}, r"weight \(2, 3\) and bias \(3,\)"),
        ({"weight": np.ones((2, 3), int), "bias": np.ones(2)}, "`weight` of .* holds int64"),
        ({"weight": np.full((2, 3), np.nan), "bias": np.ones(2)}, "weights that are not finite"),
        ({"weight": np.full((2, 3), 1e300), "bias": np.ones(2)}, "weights that are not finite"),
        (
            {"weight": np.ones((2, 3)), "bias": np.ones(2), "class_names": np.arange(2)},
            "`class_names` of .* are no texts",
        ),
        (
            {"weight": np.ones((2, 3)), "bias": np.ones(2), "class_names": np.array(["a", "a"])},
            "names the class a twice",
        ),
        (
            {"weight": np.ones((2, 3)), "bias": np.ones(2), "origin": np.array(["{"])},
            "`origin` of .* is no JSON",
        ),
        (
            {"weight": np.ones((2, 3)), "bias": np.ones(2), "origin": np.array(["3"])},
            "`origin` of .* is no JSON object",
        ),
    ],
)
def test_npz_files_that_are_no_heads_are_refused(
    tmp_path: Path, arrays: dict[str, np.ndarray], message: str
) -> None:
    np.savez(tmp_path / "head.npz", **arrays)  # type: ignore[arg-type]
    with pytest.raises(HeadError, match=message):
        read_head(tmp_path / "head.npz")


def test_a_changed_byte_of_an_npz_file_is_told_or_changes_nothing(
    head: Head, tmp_path: Path
) -> None:
    path = tmp_path / "head.npz"
    write_head(replace(head, origin={"fitted": "lda"}), path)
    content, stored = path.read_bytes(), read_head(path)
    for place in range(len(content)):
        changed = bytearray(content)
        changed[place] ^= 0x41
        path.write_bytes(changed)
        try:
            found = read_head(path, on_note=(notes := list[str]()).append)
        except HeadError:
            continue
        np.testing.assert_array_equal(found.weight, stored.weight)
        if notes:  # the directory hides the bias
            continue
        np.testing.assert_array_equal(found.bias, stored.bias)
        assert found.class_names in (stored.class_names, None)
