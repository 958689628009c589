import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from rich.console import Console
from typer.testing import Result

from clinit.cli.commands import predict as predict_output
from clinit.cli.commands.predict import COLUMNS, OF_REJECTION
from clinit.headtrain.model.export import Export
from clinit.headtrain.model.facts import ModelFacts
from clinit.headtrain.model.model import load_model
from clinit.headtrain.model.predict import Guess, Prediction, find_images, near
from tests.cli.calls import call, unframed
from tests.snapshots import check_snapshot


@pytest.fixture
def remembering(tiny_onnx: Export) -> Path:
    """A model folder that remembers held-out features of its classes."""
    return tiny_onnx.path


@pytest.fixture
def model(remembering: Path) -> Path:
    """The same as a file, which remembers nothing."""
    return remembering / "model.safetensors"


@pytest.fixture
def images(tiny_run: Path) -> list[Path]:
    return find_images([tiny_run.parent / "new" / "val"])


def invoke(*words: object) -> Result:
    return call("predict", *words, "--device", "cpu")


def test_a_table_has_a_line_for_each_class(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def seen(name: str, *chances: float, **more: Any) -> Prediction:
        named = [("n02979186", "cassette player"), ("a[b]", "a[b]"), ("x" * 90, "x" * 90)]
        guesses = tuple(
            Guess(*names, chance, row, row)
            for row, (names, chance) in enumerate(zip(named, chances, strict=False))
        )
        return Prediction(Path(name), guesses, **more)

    monkeypatch.setattr(predict_output, "out", Console(width=80, highlight=False))
    images = [seen("a/b/1.png", 0.9, 0.06, 0.04), seen("a/c.png", 0.5, score=-2.5, unknown=True)]
    rows = [seen("x.npy", 0.75, row=row) for row in range(22)]
    facts = ModelFacts(class_names=(), tasks=())
    predict_output._show(images, "image", facts)
    predict_output._show(images[:1], "image", replace(facts, record={"config": {"loss": "mse"}}))
    predict_output._show(rows, "row", facts)
    shown = capsys.readouterr()
    check_snapshot("predict", shown.out)
    assert "Note: 2 more rows" in shown.err
    assert "Note: the head was trained with squared error" in shown.err


def test_a_missing_image_is_answered_by_an_image_and_a_long_path_keeps_its_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").mkdir()
    for name in ("wheer.txt", "where.jpg"):
        (tmp_path / name).touch()
    assert near(tmp_path / "wheer.jpg", "Give.").endswith("/where.jpg?")
    assert near(tmp_path / "othre", "Give.").endswith("/other?")
    assert near(tmp_path / "othre.tif", "Give.") == "Give."
    monkeypatch.setattr(predict_output, "out", Console(width=80))
    assert predict_output._shortened("a/b.jpg") == "a/b.jpg"
    assert predict_output._shortened(f"{'ab/' * 20}c.jpg") == "ab/ab/a…ab/ab/ab/ab/ab/c.jpg"


def test_bad_images_are_reported_the_others_are_shown_and_the_code_is_1(
    model: Path, images: list[Path], tmp_path: Path
) -> None:
    (tmp_path / "empty[bold].png").touch()
    Image.new("RGB", (50, 50)).save(tmp_path / "large.png")
    bad = (tmp_path / "empty[bold].png", tmp_path / "large.png")
    result = invoke(model, *bad, images[0], "--max-pixels", 2000)
    assert result.exit_code == 1
    assert str(images[0]) in result.stdout
    assert "empty" not in result.stdout
    assert "Warning: 2 of 3 images cannot be read:" in result.stderr
    assert f"{tmp_path / 'empty[bold].png'}: the file is empty" in result.stderr
    assert "large.png: too large: 50 x 50 pixels" in result.stderr


def test_the_share_of_held_out_images_that_is_allowed_is_unknown(
    remembering: Path, tiny_run: Path
) -> None:
    images = [tiny_run.parent / side / "val" for side in ("base", "new")]  # what was held out
    result = invoke(remembering, *images, "--reject", "energy", "--reject-rate", 0.25, "--json")
    assert result.exit_code == 0, result.output
    shown = json.loads(result.stdout)
    assert len(shown) == 20
    # Held-out features are in float16: the score at the threshold itself may fall on either side.
    assert sum(each["unknown"] for each in shown) in (5, 6)
    told = " ".join(invoke(remembering, *images, "--reject", "max-logit").stderr.split())
    assert "at most 5 % of tested images score lower; `clinit" in told


def test_csv_has_a_line_an_image_and_class(
    remembering: Path, images: list[Path], tmp_path: Path
) -> None:
    options = ("--csv", tmp_path / "out.csv", "--top", 2, "--json")
    rejecting = ("--reject", "energy", "--reject-rate", 0.5)
    result = invoke(remembering, *images, tmp_path / "gone.png", *options, *rejecting)
    assert result.exit_code == 1
    with (tmp_path / "out.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert list(lines[0]) == [*COLUMNS, *OF_REJECTION, "model"]
    assert (lines[-1]["error"], lines[-1]["unknown"]) == ("the file is missing", "")
    shown = json.loads(result.stdout)
    unknown = {each["image"] for each in shown if each["unknown"]}
    assert unknown == {line["image"] for line in lines if line["unknown"] == "True"}
    for each in shown[:-1]:
        assert each["unknown"] == (each["score"] < each["threshold"])
    model = load_model(remembering, device="cpu")
    assert {each["model"] for each in (*lines, *shown)} == {model.facts.digest[:12]}
    expected = model.predict(images, top=2)
    for one, other in zip(shown, expected, strict=False):
        assert one["image"] == str(other.path)
        assert [guess["class"] for guess in one["classes"]] == [g.name for g in other.guesses]
    told = [(each, guess) for each in shown for guess in each["classes"]]
    for line, (each, guess) in zip(lines, told, strict=False):
        assert (line["image"], line["class"]) == (each["image"], guess["class"])
        for name, value in (("probability", guess["probability"]), ("score", each["score"])):
            assert float(line[name]) == pytest.approx(value, rel=1e-5)
    assert len(lines) == len(told) + 1 == 17
    said = invoke(remembering, images[0], "--csv", tmp_path / "plain.csv").stdout
    assert f"of 1 image to {tmp_path / 'plain.csv'}" in said


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--reject-rate", 0.1), "--reject-rate has no effect without --reject"),
        (("--csv", "out.txt"), "--csv needs a file that ends in .csv, got out.txt"),
    ],
)
def test_options_that_mean_nothing_are_refused(
    model: Path, images: list[Path], options: tuple[object, ...], message: str
) -> None:
    result = invoke(model, images[0], *options)
    assert result.exit_code == 2
    assert message in unframed(result)
