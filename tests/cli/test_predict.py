import csv
import json
from pathlib import Path

import pytest
import typer
from PIL import Image
from rich.console import Console
from typer.testing import CliRunner, Result

from clinit.cli import predict as command
from clinit.cli.predict import COLUMNS, predict
from clinit.errors import ImageError, ModelError
from clinit.headtrain.export.classifier import find_images, load_model
from clinit.headtrain.export.model_file import ModelFacts, write_model
from clinit.headtrain.export.run import export_run

app = typer.Typer()
app.command()(predict)


@pytest.fixture(scope="module")
def model(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_run(tiny_run, tmp_path_factory.mktemp("model") / "model.safetensors").path


@pytest.fixture
def images(tiny_run: Path) -> list[Path]:
    return find_images([tiny_run.parent / "new" / "val"])


def invoke(*arguments: object) -> Result:
    words = [*map(str, arguments), "--device", "cpu"]
    return CliRunner().invoke(app, words)


def test_one_image_has_its_path_above_a_table_of_its_classes(
    model: Path, images: list[Path]
) -> None:
    result = invoke(model, images[0])
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0] == str(images[0])
    assert lines[1].split() == ["class", "probability", "since"]
    (expected,) = load_model(model, device="cpu").predict(images[:1])
    for line, guess in zip(lines[3:], expected.guesses, strict=True):
        since = f"task {guess.task}" if guess.task else "base"
        percent = f"{100 * guess.probability:.1f} %"
        assert line.split() == [guess.name, *percent.split(), *since.split()]


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("top", [1, 3])
def test_several_images_fit_the_width_and_lose_nothing(
    model: Path, images: list[Path], monkeypatch: pytest.MonkeyPatch, width: int, top: int
) -> None:
    monkeypatch.setattr(command, "out", Console(width=width, highlight=False))
    result = invoke(model, *images, images[0].parents[2] / "train" / "d" / "0.png", "--top", top)
    lines = result.output.splitlines()
    assert max(map(len, lines[1:])) <= width
    assert lines[0] == str(images[0].parents[2])  # the common folder, as it was given
    joined = "".join(result.output.split())
    for path in (*images, Path("train/d/0.png")):
        assert "/".join(path.parts[-3:]) in joined
    assert result.output.count(" %") == top * (len(images) + 1)


def test_folders_are_searched(model: Path, images: list[Path]) -> None:
    by_folder = invoke(model, images[0].parents[1], "--json")
    by_name = invoke(model, *images, "--json")
    assert by_folder.output == by_name.output
    assert len(json.loads(by_folder.output)) == len(images) == 8


def test_json_holds_all_and_nothing_else(model: Path, images: list[Path]) -> None:
    (shown,) = json.loads(invoke(model, images[0], "--json", "--top", 2).output)
    (expected,) = load_model(model, device="cpu").predict(images[:1], top=2)
    assert shown == {
        "image": str(images[0]),
        "error": None,
        "classes": [
            {"class": g.name, "title": g.title, "probability": g.probability, "task": g.task}
            for g in expected.guesses
        ],
    }


def test_csv_has_a_line_an_image_and_class(model: Path, images: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    result = invoke(model, *images[:2], tmp_path / "gone.png", "--csv", out, "--top", 2)
    assert result.exit_code == 1
    assert result.stdout == f"3 images at {out}\n"
    with out.open(newline="") as file:
        header, *rows = csv.reader(file)
    assert tuple(header) == COLUMNS
    assert [row[:2] for row in rows] == [
        *[[str(images[0]), "1"], [str(images[0]), "2"], [str(images[1]), "1"]],
        *[[str(images[1]), "2"], [str(tmp_path / "gone.png"), ""]],
    ]
    assert rows[-1][2:] == ["", "", "", "", "the file is missing"]
    (expected,) = load_model(model, device="cpu").predict(images[:1], top=1)
    assert rows[0][2] == expected.guesses[0].name
    assert float(rows[0][4]) == pytest.approx(expected.guesses[0].probability, rel=1e-5)


def test_a_bad_image_is_reported_the_others_are_shown_and_the_code_is_1(
    model: Path, images: list[Path], tmp_path: Path
) -> None:
    (tmp_path / "empty[bold].png").touch()
    result = invoke(model, tmp_path / "empty[bold].png", images[0])
    assert result.exit_code == 1
    assert str(images[0]) in result.stdout
    assert "empty" not in result.stdout
    assert "Warning: 1 of 2 images cannot be read:" in result.stderr
    assert f"{tmp_path / 'empty[bold].png'}: the file is empty" in result.stderr


def test_an_image_above_the_limit_is_reported_and_the_others_are_shown(
    model: Path, images: list[Path], tmp_path: Path
) -> None:
    Image.new("RGB", (50, 50)).save(tmp_path / "large.png")
    result = invoke(model, tmp_path / "large.png", images[0], "--max-pixels", 2000)
    assert result.exit_code == 1
    assert str(images[0]) in result.stdout
    reason = "too large: 50 x 50 pixels, more than the 2,000 of --max-pixels"
    assert f"{tmp_path / 'large.png'}: {reason}" in result.stderr


def test_names_that_are_not_utf8_are_shown(model: Path, images: list[Path], tmp_path: Path) -> None:
    odd = tmp_path / b"caf\xe9.png".decode("utf-8", "surrogateescape")
    odd.write_bytes(images[0].read_bytes())
    for options in ((), ("--json",), ("--csv", tmp_path / "out.csv")):
        result = invoke(model, odd, *options)
        assert result.exit_code == 0, result.output
        written = (tmp_path / "out.csv").read_text() if "--csv" in options else result.output
        assert r"caf\xe9.png" in written.replace(r"\\", "\\")


def test_classes_of_imagenet_are_shown_in_words(
    model: Path, images: list[Path], tmp_path: Path
) -> None:
    loaded = load_model(model, device="cpu")
    facts = {name: getattr(loaded.facts, name) for name in ModelFacts.__dataclass_fields__}
    facts["class_names"] = ("n02979186", *loaded.facts.class_names[1:])
    write_model(loaded.backbone.network, ModelFacts(**facts), tmp_path / "words.safetensors")
    result = invoke(tmp_path / "words.safetensors", images[0])
    assert "cassette player (n02979186)" in result.output


def test_a_head_of_squared_error_is_noted(model: Path, images: list[Path], tmp_path: Path) -> None:
    loaded = load_model(model, device="cpu")
    facts = {name: getattr(loaded.facts, name) for name in ModelFacts.__dataclass_fields__}
    facts["record"] = {"config": {"loss": "mse"}}
    write_model(loaded.backbone.network, ModelFacts(**facts), tmp_path / "mse.safetensors")
    result = invoke(tmp_path / "mse.safetensors", images[0])
    assert "Note: the head was trained with squared error" in result.stderr


def test_a_folder_without_images_and_a_wrong_model_are_errors(
    model: Path, images: list[Path], tmp_path: Path
) -> None:
    assert isinstance(invoke(model, tmp_path).exception, ImageError)
    assert isinstance(invoke(images[0], images[0]).exception, ModelError)


def test_a_csv_file_has_its_ending(model: Path, images: list[Path]) -> None:
    result = invoke(model, images[0], "--csv", model)
    assert result.exit_code == 2
    assert "--csv is the file to write, .csv" in " ".join(result.output.split())
