"""The ONNX form of a model: it computes the same, or is not kept."""

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import nn

from clinit.errors import BackboneError, ModelError
from clinit.headtrain.model import onnx as onnx_file
from clinit.headtrain.model.export import Export, export_model
from clinit.headtrain.model.facts import METADATA
from clinit.headtrain.model.model import Model, load_model
from clinit.headtrain.model.onnx import write_onnx
from clinit.headtrain.model.predict import Rejection
from tests.docs.pages import ROOT, blocks_of


@pytest.fixture(scope="module")
def file(tiny_onnx: Export) -> Path:
    return tiny_onnx.path / "model.onnx"


def test_both_runtimes_predict_the_same_of_batches_of_any_size(
    file: Path, model: Model, images: list[Path], tmp_path: Path
) -> None:
    (tmp_path / "empty.png").touch()
    files = [images[0], tmp_path / "empty.png", *images[1:]]
    reject = Rejection("energy", 1.5)
    expected = model.predict(files, reject=reject)
    for batch_size in (1, 7, 64):
        found = load_model(file).predict(files, batch_size=batch_size, reject=reject)
        for left, right in zip(found, expected, strict=True):
            assert (left.path, left.reason) == (right.path, right.reason)
            assert left.unknown == right.unknown
            assert left.score == (right.score and pytest.approx(right.score, abs=1e-4))
            assert [guess.name for guess in left.guesses] == [g.name for g in right.guesses]
            for one, other in zip(left.guesses, right.guesses, strict=True):
                assert one.probability == pytest.approx(other.probability, abs=1e-5)


def test_the_description_of_the_model_is_in_the_file(file: Path, model: Model) -> None:
    assert load_model(file).facts == model.facts
    content = file.read_bytes()
    metadata = onnx_file.session_of(content).get_modelmeta().custom_metadata_map
    assert {METADATA, "clinit_sha256"} < {*metadata}
    # PyTorch notes where in which file each operation was called.
    assert b"site-packages" not in content
    assert b"stack_trace" not in content


def test_the_program_of_the_page_answers_as_the_model(
    file: Path,
    model: Model,
    images: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (program,) = (
        block.text
        for block in blocks_of(ROOT / "docs" / "add-classes.md")
        if "Session" in block.text
    )
    (tmp_path / "scenes-onnx").mkdir()
    (tmp_path / "scenes-onnx" / "model.onnx").symlink_to(file)
    with Image.open(images[0]) as image:
        image.resize((70, 45)).save(tmp_path / "horn.jpg")
    monkeypatch.chdir(tmp_path)
    exec(program, {})
    name, chance, is_unknown = capsys.readouterr().out.split()
    for reader in (model, load_model(file)):
        (answer,) = reader.predict("horn.jpg", reject=Rejection.at_rate(model, "energy"))
        assert (name, is_unknown) == (answer.guesses[0].name, str(answer.unknown))
        assert float(chance) == pytest.approx(answer.guesses[0].probability, abs=1e-2)


def test_it_is_compared_on_noise(
    tiny_onnx: Export, tmp_path: Path, model: Model, small: nn.Module
) -> None:
    found = re.findall(r"within (\S+) \(the largest is ([\d.]+)", str(tiny_onnx.onnx))
    ((difference, largest),) = found
    assert 0 <= float(difference) < 1e-4 < float(largest)
    network = small.train()
    assert "agree on 4 images of noise" in write_onnx(network, model, "", tmp_path / "x.onnx")
    assert network.training  # the network itself is not changed


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


def no_such_operator(logits: torch.Tensor) -> torch.Tensor:
    raise NotImplementedError


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "kind", "why"),
    [
        (lambda logits: logits + 1, ModelError, "differ by 1"),
        (lambda logits: logits[:, :4], ModelError, r"shape \(4, 4\) and \(4, 5\)"),
        (lambda logits: logits * float("nan"), ModelError, "differ by nan"),
        (lambda logits: -logits, ModelError, "predicted class for 4 images"),
        (no_such_operator, BackboneError, "cannot write convnextv2_atto as ONNX: "),
    ],
)
def test_a_file_that_computes_something_else_is_not_kept(
    model: Model,
    small: nn.Module,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[torch.Tensor], torch.Tensor],
    kind: type[Exception],
    why: str,
) -> None:
    if "class" in why:  # however near the logits are
        monkeypatch.setattr(onnx_file, "TOLERANCE", 10.0)
    with pytest.raises(kind, match=why):
        write_onnx(Different(small, change), model, "", tmp_path / "x.onnx")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_extra_is_named_with_its_command(
    file: Path, tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        onnx_file, "find_spec", lambda name: None if name == "onnxruntime" else find(name)
    )
    out = tmp_path / "x"
    for call in (lambda: load_model(file), lambda: export_model(tiny_run, out, onnx=True)):
        with pytest.raises(ModelError, match="needed for ONNX: onnxruntime") as caught:
            call()
        assert 'pip install "clinit[onnx]"' in caught.value.remedy
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("pattern", "new", "why"),
    [
        (b"(?s)^(.{200}).*", rb"\1", "is not an ONNX model: "),
        (b'"d"', b'"q"', "has changed since it was written"),
        (b"clinit_sha256..", b"clinit_sha25x\x12@", "has changed since it was written"),
        (b"clinit_model", b"clinit_xodel", "does not name its classes"),
    ],
)
def test_a_damaged_file_is_refused(
    file: Path, tmp_path: Path, pattern: bytes, new: bytes, why: str
) -> None:
    (tmp_path / "x.onnx").write_bytes(re.sub(pattern, new, file.read_bytes()))
    with pytest.raises(ModelError, match=r"x\.onnx " + why) as caught:
        load_model(tmp_path / "x.onnx")
    assert "clinit export MODEL --out FOLDER --onnx" in caught.value.remedy
