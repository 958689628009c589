import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from clinit.errors import ModelError
from clinit.headtrain.protocol.record.format import read_record
from tests.cli.calls import call, unframed
from tests.snapshots import check_snapshot


def invoke(*words: object) -> Result:
    return call("export", *words)


def test_the_output_names_what_was_exported_and_how_it_is_loaded(
    tiny_run: Path, tmp_path: Path
) -> None:
    folder, file = tmp_path / "scenes.v2", tmp_path / "model.safetensors"
    result = invoke(tiny_run, "--out", folder)
    assert result.exit_code == 0, result.output
    check_snapshot("export", result.stdout, tmp_path)
    left = sorted(path.name for path in folder.iterdir())
    assert left == ["README.md", "config.json", "memory.safetensors", "model.safetensors"]
    assert [path.name for path in tmp_path.iterdir()] == ["scenes.v2"]
    result = invoke(tiny_run, "--out", file)
    assert f"Next: clinit predict {file} PHOTOGRAPH…" in result.stdout.splitlines()
    last = read_record(tiny_run).evaluations.filter(task=2, iteration=8)
    percent = 5 * int(last["correct"].sum())
    assert f"The run ended with top-1 {percent:.2f} % on 20 test images" in result.stdout


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("m.safetensors", ("--onnx",), "--onnx writes into a folder: --out must be a folder, got"),
        ("h.npz", ("--weights", "w"), "--weights has no effect if only the head"),
        ("model.pth", (), "--out must be a folder, or a file that ends in"),
    ],
)
def test_options_that_mean_nothing_are_refused(
    tiny_run: Path, tmp_path: Path, name: str, options: tuple[str, ...], message: str
) -> None:
    result = invoke(tiny_run, "--out", tmp_path / name, *options)
    assert result.exit_code == 2
    assert message in unframed(result)
    assert list(tmp_path.iterdir()) == []


def test_a_run_without_test_images_gives_a_model_and_a_head(
    tiny_run: Path, tmp_path: Path, without_test_images: Callable[[Path], None]
) -> None:
    run = shutil.copytree(tiny_run, tmp_path / "run")
    without_test_images(run)
    out = tmp_path / "model.safetensors"
    assert "no test images, so its accuracy is unknown" in invoke(run, "--out", out).output
    assert isinstance(invoke(run, "--out", out).exception, ModelError)  # it is there
    result = invoke(run, "--out", tmp_path / "h.npz")
    assert "A head on 12 features of convnextv2_atto: 5 classes, 3 of the base, 2" in result.output
    assert f"clinit predict {tmp_path / 'h.npz'} FEATURES…" in result.output
