import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from clinit.cli.export import export
from clinit.errors import ModelError
from clinit.headtrain.record.format import read_record

app = typer.Typer()
app.command()(export)


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def unframed(result: Result) -> str:
    return " ".join(result.output.replace("│", " ").split())


def test_a_folder_says_how_timm_loads_it(tiny_run: Path, tmp_path: Path) -> None:
    result = invoke(tiny_run, "--out", tmp_path / "scenes.v2")
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    start = lines.index("import timm")
    assert lines[start + 1] == (
        f"model = timm.create_model('local-dir:{tmp_path}/scenes.v2', pretrained=True).eval()"
    )
    assert lines[start + 3].startswith("transform = timm.data.create_transform(")
    assert f"Model folder at {tmp_path}/scenes.v2; try it:" in lines
    assert f"clinit predict {tmp_path}/scenes.v2 IMAGE…" in lines
    left = sorted(path.name for path in (tmp_path / "scenes.v2").iterdir())
    assert left == ["README.md", "config.json", "memory.safetensors", "model.safetensors"]
    assert lines[-1] == f"hf upload USER/NAME {tmp_path}/scenes.v2 . --private"
    assert [path.name for path in tmp_path.iterdir()] == ["scenes.v2"]


@pytest.mark.slow
def test_the_onnx_form_is_compared_on_images_that_are_given(tiny_run: Path, tmp_path: Path) -> None:
    images = tiny_run.parent / "new" / "val" / "d"
    result = invoke(tiny_run, "--out", tmp_path / "model", "--onnx", "--check-images", images)
    assert result.exit_code == 0, result.output
    assert "onnxruntime and PyTorch agree on 4 images: same class, logits within" in result.output
    assert (tmp_path / "model" / "model.onnx").is_file()


def test_it_says_what_was_exported_and_how_good_the_run_was(tiny_run: Path, tmp_path: Path) -> None:
    out = tmp_path / "model.safetensors"
    result = invoke(tiny_run, "--out", out)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    last = read_record(tiny_run).evaluations.filter(task=2, iteration=8)
    assert last["total"].sum() == 20
    percent = 5 * int(last["correct"].sum())
    assert lines[0] == ("convnextv2_atto with 5 classes: 3 of the base, 2 that arrived in 2 tasks")
    assert "the backbone as it was extracted with" in lines[1]
    assert lines[2].startswith(f"The run ended with top-1 {percent:.2f} % on 20 test images (")
    assert "of 12 of base classes" in lines[2]
    assert "of 8 of new classes" in lines[2]
    assert lines[3].startswith("Images: resize 36 bicubic antialias, centre crop 32x32, mean 0.485")
    assert lines[-2] == f"Model file at {out}; try it:"
    assert lines[-1] == f"clinit predict {out} IMAGE…"


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("m.safetensors", ("--onnx",), "--onnx writes into a folder: give --out one, not"),
        ("m", ("--check-images", "."), "--check-images means nothing without --onnx"),
        ("m", ("--new", ".", "--no-memory", "--no-temperature"), "--new means nothing where"),
        ("h.npz", ("--weights", "w"), "--weights means nothing where the head alone is written"),
        ("h.npz", ("--base", ".", "--no-temperature"), "--base means nothing where no feature"),
        ("h", ("--head-only",), "--out is a file that ends in .npz or .safetensors"),
        ("model.pth", (), "--out is a folder, or a file that ends in .safetensors"),
        ("model.ONNX", (), "--out is a folder, or a file that ends in .safetensors"),
        ("m.NPZ", (), "--out is a folder, or a file that ends in .safetensors"),
    ],
)
def test_options_that_mean_nothing_are_refused(
    tiny_run: Path, tmp_path: Path, name: str, options: tuple[str, ...], message: str
) -> None:
    result = invoke(tiny_run, "--out", tmp_path / name, *options)
    assert result.exit_code == 2
    assert message in unframed(result)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["head.npz", "model", "."])
def test_nothing_is_written_into_the_record(tiny_run: Path, name: str) -> None:
    """A later report would say of the record that it holds files that are not of it."""
    before = sorted(tiny_run.iterdir())
    result = invoke(tiny_run, "--out", tiny_run / name)
    assert result.exit_code == 2
    assert "--out is a place outside the run record" in unframed(result)
    assert sorted(tiny_run.iterdir()) == before


def test_a_run_without_test_images_gives_a_model_and_a_head(
    tiny_run: Path, tmp_path: Path, without_test_images: Callable[[Path], None]
) -> None:
    run = shutil.copytree(tiny_run, tmp_path / "run")
    without_test_images(run)
    out = tmp_path / "model.safetensors"
    assert "no test image: its accuracy is unknown" in invoke(run, "--out", out).output
    assert isinstance(invoke(run, "--out", out).exception, ModelError)  # it is there
    result = invoke(run, "--out", tmp_path / "h.npz")
    assert "A head of 5 classes, 2 of which arrived later, on 12 features" in result.output
    assert f"clinit predict {tmp_path / 'h.npz'} FEATURES.npy" in result.output
