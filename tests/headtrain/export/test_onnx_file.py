import importlib.util
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from clinit.errors import BackboneError, DeviceError, ModelError
from clinit.extract.backbone import BackboneConfig
from clinit.extract.dataset.scan import scan
from clinit.extract.run import ExtractConfig, extract
from clinit.headtrain.export import onnx_file
from clinit.headtrain.export.classifier import Classifier, load_model
from clinit.headtrain.export.image_files import find_images
from clinit.headtrain.export.model_file import METADATA
from clinit.headtrain.export.onnx_classifier import load_onnx
from clinit.headtrain.export.onnx_file import OnnxCheck, write_onnx
from clinit.headtrain.export.rejection import Rejection
from clinit.headtrain.export.run import Export, export_run
from clinit.headtrain.record.format import read_info
from tests.extract.dataset.made import make_tar


@pytest.fixture(scope="module")
def exported(tiny_onnx: Export) -> Export:
    return tiny_onnx


@pytest.fixture(scope="module")
def file(exported: Export) -> Path:
    return exported.path / "model.onnx"


@pytest.fixture(scope="module")
def model(exported: Export) -> Classifier:
    return load_model(exported.path, device="cpu")


@pytest.fixture
def images(tiny_run: Path) -> list[Path]:
    return find_images([tiny_run.parent / side / "val" for side in ("base", "new")])


def test_both_runtimes_predict_the_same_of_batches_of_any_size(
    file: Path, model: Classifier, images: list[Path], tmp_path: Path
) -> None:
    (tmp_path / "empty.png").touch()
    files = [images[0], tmp_path / "empty.png", *images[1:]]
    reject = Rejection("energy", 1.5)
    expected = list(model.predict(files, reject=reject))
    for batch_size in (1, 7, 64):
        found = list(load_onnx(file).predict(files, batch_size=batch_size, reject=reject))
        assert [each.path for each in found] == files
        for left, right in zip(found, expected, strict=True):
            assert (left.reason, left.unknown) == (right.reason, right.unknown)
            assert (left.score is None) == (right.score is None) == (right.reason is not None)
            assert left.score is None or left.score == pytest.approx(right.score, abs=1e-4)
            assert [guess.name for guess in left.guesses] == [g.name for g in right.guesses]
            for one, other in zip(left.guesses, right.guesses, strict=True):
                assert one.probability == pytest.approx(other.probability, abs=1e-5)


def test_what_is_said_of_the_model_is_in_the_file(file: Path, model: Classifier) -> None:
    assert load_onnx(file).facts == model.facts
    content = file.read_bytes()
    metadata = onnx_file.session_of(content).get_modelmeta().custom_metadata_map
    assert json.loads(metadata[METADATA])["class_names"] == list(model.facts.class_names)
    assert sorted(metadata) == ["clinit_model", "clinit_sha256"]
    # PyTorch notes where in which file each operation was called.
    assert b"site-packages" not in content
    assert b"stack_trace" not in content


def test_it_is_compared_on_the_test_images_of_the_run(exported: Export, tiny_run: Path) -> None:
    assert exported.onnx is not None
    assert (exported.onnx.images, exported.onnx.are_noise) == (20, False)
    assert 0 <= exported.onnx.difference < 1e-4 < exported.onnx.largest
    assert exported.onnx.describe().startswith(
        "onnxruntime and PyTorch agree on 20 images: same class, logits within "
    )


def test_noise_serves_where_the_images_are_gone(
    model: Classifier, small: nn.Module, tmp_path: Path
) -> None:
    network = small.train()
    (tmp_path / "bad.png").touch()
    check = write_onnx(network, model.facts, tmp_path / "x.onnx", [tmp_path / "bad.png"])
    assert (check.images, check.are_noise) == (4, True)
    assert "agree on 4 images of seeded noise" in check.describe()
    assert network.training  # the network itself is not changed


def test_the_caches_say_where_the_test_images_are(
    tiny_run: Path, tmp_path: Path, seal_record: Callable[..., None]
) -> None:
    import shutil

    from clinit.headtrain.export.of_run import images_of
    from clinit.headtrain.record.format import read_record

    found = images_of(read_record(tiny_run))
    assert len(found) == 20
    assert {path.parent.name for path in found} == set("abcde")
    run = Path(shutil.copytree(tiny_run, tmp_path / "run"))
    seal_record(run, base={**read_info(run)["base"], "path": "gone"})
    assert {path.parent.name for path in images_of(read_record(run))} == {"d", "e"}


def test_test_images_in_containers_are_told_not_to_be_among_those_compared(
    tiny_run: Path,
    tmp_path: Path,
    seal_record: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import shutil

    members = [("1.png", (tiny_run.parent / "new" / "val" / "d" / "1.png").read_bytes())]
    make_tar(tmp_path / "shards" / "val.tar", [*members, ("1.txt", b"d")])
    manifest = scan("webdataset", tmp_path / "shards", "val").manifest
    args = {"depths": (1, 1, 1, 1), "dims": (4, 8, 8, 12)}
    weights = tiny_run.parent / "weights.safetensors"
    backbone = BackboneConfig(name="convnextv2_atto", weights=weights, model_args=args)
    cache, config = tmp_path / "cache", ExtractConfig(backbone=backbone, input_size=32)
    list(extract({"val": manifest}, tmp_path / "shards", cache, config))
    run = Path(shutil.copytree(tiny_run, tmp_path / "run"))
    seal_record(run, new={**read_info(run)["new"], "path": str(cache)})

    compared: list[Path] = []

    def write(network: nn.Module, facts: object, path: Path, images: list[Path]) -> OnnxCheck:
        compared.extend(images)
        path.touch()
        return OnnxCheck(images=len(images), are_noise=False, difference=0.0, largest=1.0)

    monkeypatch.setattr("clinit.headtrain.export.run.write_onnx", write)
    exported = export_run(run, tmp_path / "model", onnx=True, remembers=False)
    assert {path.parent.name for path in compared} == set("abc")
    (note,) = [note for note in exported.notes if "tar or Parquet" in note]
    assert note.startswith(f"the test images of {cache} lie in tar or Parquet files: none of them")
    assert "`--check-images FOLDER`" in note
    again = export_run(
        run, tmp_path / "again", onnx=True, remembers=False, check_with=[run / "some.png"]
    )
    assert not any("tar or Parquet" in note for note in again.notes)


@pytest.fixture
def small() -> nn.Module:
    """A network of as many classes as the model, which is written in a moment."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.AvgPool2d(16), nn.Flatten(), nn.Linear(12, 5)).eval()


class Different(nn.Module):
    """The network, and another one where onnxruntime is given it."""

    def __init__(self, network: nn.Module, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.network, self.change = network, change

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.network(images)
        return self.change(logits) if torch.compiler.is_compiling() else logits


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda logits: logits + 1, "logits that differ by 1"),
        (lambda logits: logits[:, :4], r"logits of shape \(4, 4\), not \(4, 5\)"),
        (lambda logits: logits * float("nan"), "logits that differ by nan"),
    ],
)
def test_a_file_that_computes_something_else_is_not_kept(
    model: Classifier,
    small: nn.Module,
    tmp_path: Path,
    change: Callable[[torch.Tensor], torch.Tensor],
    why: str,
) -> None:
    network = Different(small, change)
    with pytest.raises(ModelError, match="does not compute what PyTorch does: " + why) as caught:
        write_onnx(network, model.facts, tmp_path / "x.onnx")
    assert "not kept" in caught.value.remedy
    assert list(tmp_path.iterdir()) == []


def test_another_class_is_a_refusal_however_near(
    model: Classifier, small: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_file, "TOLERANCE", 10.0)
    network = Different(small, lambda logits: -logits)
    with pytest.raises(ModelError, match="another class for 4 of 4 images"):
        write_onnx(network, model.facts, tmp_path / "x.onnx")


@pytest.mark.slow
def test_a_network_without_an_onnx_form_is_told(
    model: Classifier, small: nn.Module, tmp_path: Path
) -> None:
    def fail(logits: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    network = Different(small, fail)
    with pytest.raises(BackboneError, match="PyTorch cannot write convnextv2_atto as ONNX: "):
        write_onnx(network, model.facts, tmp_path / "x.onnx")


def test_a_network_that_one_file_does_not_hold_is_told(
    model: Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_file, "MAX_BYTES", 100)
    with pytest.raises(ModelError, match="GiB of parameters, one ONNX file holds less than 2"):
        write_onnx(model.backbone.network, model.facts, tmp_path / "x.onnx")


def test_a_missing_extra_is_named_with_its_command(
    model: Classifier, file: Path, tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        onnx_file, "find_spec", lambda name: None if name == "onnxruntime" else find(name)
    )
    calls: list[Callable[[], object]] = [
        lambda: load_onnx(file),
        lambda: export_run(tiny_run, tmp_path / "x", onnx=True),
    ]
    for call in calls:
        with pytest.raises(ModelError, match="ONNX needs onnxruntime, which is not") as caught:
            call()
        assert caught.value.remedy == 'Install it: pip install "clinit[onnx]".'
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda content: content[:200], "is not an ONNX model: "),
        (lambda content: b"text", "is not an ONNX model: "),
        (lambda content: content.replace(b'"d"', b'"q"'), "has changed since it was written"),
        (
            lambda content: re.sub(b"clinit_sha256..", b"clinit_sha25x\x12@", content),
            "has changed since it was written",
        ),
        (
            lambda content: content.replace(b"clinit_model", b"clinit_xodel"),
            "does not say what its classes are",
        ),
    ],
)
def test_a_damaged_file_is_refused(
    file: Path, tmp_path: Path, damage: Callable[[bytes], bytes], why: str
) -> None:
    changed = damage(file.read_bytes())
    assert changed != file.read_bytes()
    (tmp_path / "x.onnx").write_bytes(changed)
    with pytest.raises(ModelError, match=r"x\.onnx " + why) as caught:
        load_onnx(tmp_path / "x.onnx")
    assert "clinit export RUN --out FOLDER --onnx" in caught.value.remedy


def test_a_changed_weight_is_found(file: Path, model: Classifier, tmp_path: Path) -> None:
    content = file.read_bytes()
    weight = model.backbone.head.weight.tobytes()
    assert content.count(weight) == 1
    changed = bytearray(content)
    changed[content.index(weight) + 2] ^= 1
    (tmp_path / "x.onnx").write_bytes(changed)
    with pytest.raises(ModelError, match="has changed since it was written"):
        load_onnx(tmp_path / "x.onnx")


def test_a_graph_that_is_not_what_its_description_says_is_refused(
    model: Classifier, small: nn.Module, tmp_path: Path
) -> None:
    names = model.facts.class_names[:4]
    facts = replace(model.facts, class_names=names, tasks=model.facts.tasks[:4])
    write_onnx(small, facts, tmp_path / "x.onnx")
    with pytest.raises(ModelError, match="its description says from") as caught:
        load_onnx(tmp_path / "x.onnx")
    assert "('logits', [5])" in str(caught.value)


def test_files_of_the_other_kind_are_told_apart(exported: Export, file: Path) -> None:
    with pytest.raises(ModelError, match="is an ONNX file, not one of weights") as caught:
        load_model(file)
    assert "load_onnx" in caught.value.remedy
    with pytest.raises(ModelError, match="no model file at nowhere"):
        load_onnx("nowhere")
    with pytest.raises(ModelError, match=r"model\.safetensors is not an ONNX model"):
        load_onnx(exported.path / "model.safetensors")


def test_a_gpu_that_onnxruntime_cannot_use_is_told(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(DeviceError, match="has no CUDA: it was not built for GPUs") as caught:
        load_onnx(file, device="cuda")
    assert "onnxruntime-gpu" in caught.value.remedy


def test_onnx_goes_into_a_folder(tiny_run: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="ONNX needs a folder"):
        export_run(tiny_run, tmp_path / "model.safetensors", onnx=True)


def test_what_onnxruntime_raises_is_told(file: Path, model: Classifier, images: list[Path]) -> None:
    loaded = load_onnx(file)

    class Broken:
        def run(self, *arguments: Any) -> Any:
            raise RuntimeError("no such\noperator")

    broken = replace(loaded, session=Broken())  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="the ONNX graph does not compute: no such operator"):
        list(broken.predict(images[:1]))


def test_the_check_says_what_it_compared() -> None:
    check = OnnxCheck(images=1_234, are_noise=False, difference=2e-6, largest=12.34)
    assert check.describe() == (
        "onnxruntime and PyTorch agree on 1,234 images: same class, logits within 2.0e-06 (the"
        " largest is 12.3)"
    )
    assert np.isfinite(check.difference)
