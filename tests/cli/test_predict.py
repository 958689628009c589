import csv
import json
import math
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import typer
from PIL import Image
from rich.console import Console
from typer.testing import CliRunner, Result

from clinit.cli import predict_output as predict_table
from clinit.cli.predict import predict
from clinit.cli.predict_output import COLUMNS, OF_REJECTION
from clinit.errors import ImageError, ModelError
from clinit.extract.cache.features import FeatureSet
from clinit.extract.cache.read import open_cache
from clinit.headtrain.model.edit import open_model
from clinit.headtrain.model.export import Export, export_run
from clinit.headtrain.model.folder import MEMORY_FILE, write_model_folder
from clinit.headtrain.model.memory import Memory, write_memory
from clinit.headtrain.model.model_file import ModelFacts, write_model
from clinit.headtrain.model.predict import Rejection, find_images, load_model

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
    monkeypatch.setattr(predict_table, "out", Console(width=width, highlight=False))
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


def test_a_model_behind_the_images_is_asked_about(model: Path, images: list[Path]) -> None:
    for first in (images[0], images[0].parent):
        result = invoke(first, images[-1], model)
        assert str(result.exception) == (
            f"{first} is not a model, but {model} is one: are they swapped?"
        )
        assert getattr(result.exception, "remedy", "").startswith("Give the model first:")


def test_a_csv_file_has_its_ending(model: Path, images: list[Path]) -> None:
    result = invoke(model, images[0], "--csv", model)
    assert result.exit_code == 2
    assert "--csv is the file to write, .csv" in " ".join(result.output.split())


@pytest.fixture(scope="module")
def remembering(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder that remembers held-out features of its classes."""
    out = tmp_path_factory.mktemp("model") / "remembering"
    network = load_model(
        export_run(tiny_run, out.with_name("plain"), remembers=False).path, device="cpu"
    )
    opened = open_model(out.with_name("plain"), device="cpu")
    rows = [
        open_cache(tiny_run.parent / "caches" / side).split("val").load()
        for side in ("base", "new")
    ]
    names = network.facts.class_names
    labels = [names.index(each.class_names[label]) for each in rows for label in each.labels]
    features = np.concatenate([each.features for each in rows])
    held_out = FeatureSet(features, np.array(labels), names)
    memory = Memory.of(held_out, opened.depends_on, held_out=held_out)
    extra = {MEMORY_FILE: lambda path: write_memory(memory, path)}
    write_model_folder(out, network.backbone.network, network.facts, extra=extra)
    return out


def scores_of(folder: Path, images: list[Path]) -> list[float]:
    rejection = Rejection("energy", 0.0)
    found = load_model(folder, device="cpu").predict(images, reject=rejection)
    return [each.score or math.nan for each in found]


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
    assert len({each["threshold"] for each in shown}) == 1
    for each in shown:
        assert each["unknown"] == (each["score"] < each["threshold"])
        assert len(each["classes"]) == 5


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("top", [1, 3])
def test_unknown_images_are_marked_with_score_and_threshold(
    remembering: Path,
    images: list[Path],
    monkeypatch: pytest.MonkeyPatch,
    width: int,
    top: int,
) -> None:
    monkeypatch.setattr(predict_table, "out", Console(width=width, highlight=False))
    scores = scores_of(remembering, images)
    threshold = sorted(scores)[3] - 1e-4
    options = ("--reject", "energy", "--threshold", threshold, "--top", top)
    result = invoke(remembering, *images, *options)
    assert result.exit_code == 0
    assert max(map(len, result.stdout.splitlines()[1:])) <= width
    for score in scores:
        assert (f"unknown (score {score:.4g})" in result.stdout) == (score < threshold)
    assert result.stdout.count(" %") == top * (len(images) - 3)
    assert f"3 of 8 images unknown: their score is below {threshold:.6g}" in result.stderr


def test_one_unknown_image_is_unknown(remembering: Path, images: list[Path]) -> None:
    result = invoke(remembering, images[0], "--reject", "max-logit", "--threshold", 1e6)
    assert result.exit_code == 0
    assert "unknown (score " in result.stdout
    assert "base" not in result.stdout.splitlines()[-1]


def test_the_default_share_is_told_with_the_number_of_held_out_images(
    remembering: Path, images: list[Path]
) -> None:
    result = invoke(remembering, *images, "--reject", "max-logit")
    told = " ".join(result.stderr.split())
    assert "below which at most 5 % of 20 held-out images are" in told


def test_csv_and_parquet_say_which_images_are_unknown(
    remembering: Path, images: list[Path], tmp_path: Path
) -> None:
    threshold = sorted(scores_of(remembering, images))[3] - 1e-4
    files = ("--csv", tmp_path / "out.csv", "--parquet", tmp_path / "out.parquet")
    rejecting = ("--reject", "energy", "--threshold", threshold)
    result = invoke(remembering, *images, tmp_path / "gone.png", *files, "--top", 2, *rejecting)
    assert result.exit_code == 1
    assert f"9 images at {tmp_path / 'out.csv'} and {tmp_path / 'out.parquet'}" in result.stdout
    table = pl.read_parquet(tmp_path / "out.parquet")
    assert table.columns == [*COLUMNS, *OF_REJECTION]
    assert table.height == 17
    assert table.filter(unknown=True)["image"].n_unique() == 3
    last = table.row(-1, named=True)
    assert (last["error"], last["unknown"], last["score"]) == ("the file is missing", None, None)
    assert table["threshold"].unique().to_list() == [pytest.approx(threshold)]
    assert table.group_by("image").agg(pl.col("probability").sum())["probability"].max() <= 1
    with (tmp_path / "out.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    for line, row in zip(lines, table.iter_rows(named=True), strict=True):
        assert list(line) == table.columns
        assert line["image"] == row["image"]
        assert line["unknown"] == ("" if row["unknown"] is None else str(row["unknown"]))
        for name in ("probability", "score"):
            number = float(line[name]) if line[name] else None
            assert number == (row[name] and pytest.approx(row[name], rel=1e-5))


def test_without_rejection_the_tables_have_no_columns_of_it(
    model: Path, images: list[Path], tmp_path: Path
) -> None:
    invoke(model, images[0], "--parquet", tmp_path / "out.parquet")
    assert pl.read_parquet(tmp_path / "out.parquet").columns == list(COLUMNS)
    assert pl.read_parquet(tmp_path / "out.parquet").schema["probability"] == pl.Float64


@pytest.mark.parametrize("kind", ["file", "folder", "onnx"])
def test_a_model_that_remembers_nothing_asks_for_a_memory_or_a_threshold(
    model: Path, remembering: Path, images: list[Path], tmp_path: Path, kind: str
) -> None:
    path = {"file": model, "folder": remembering.with_name("plain"), "onnx": tmp_path / "x.onnx"}
    path["onnx"].touch()  # it is refused by its name
    result = invoke(path[kind], images[0], "--reject", "energy")
    assert isinstance(result.exception, ModelError)
    assert "remembers no image of its classes" in str(result.exception)
    assert "`clinit remember MODEL IMAGES --out NEW`" in result.exception.remedy
    assert "--threshold VALUE" in result.exception.remedy


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--threshold", 1), "--threshold means nothing without --reject"),
        (("--reject-rate", 0.1), "--reject-rate means nothing without --reject"),
        (
            ("--reject", "energy", "--reject-rate", 0.1, "--threshold", 1),
            "--reject-rate and --threshold exclude one another",
        ),
        (("--reject", "energy", "--threshold", "nan"), "--threshold must be a finite number"),
        (("--parquet", "out.csv"), "--parquet is the file to write, .parquet, got out.csv"),
    ],
)
def test_options_that_mean_nothing_are_refused(
    model: Path, images: list[Path], options: tuple[object, ...], message: str
) -> None:
    result = invoke(model, images[0], *options)
    assert result.exit_code == 2
    assert message in " ".join(result.output.replace("│", " ").split())


@pytest.mark.slow
def test_an_onnx_file_and_a_folder_name_the_same(tiny_onnx: Export, images: list[Path]) -> None:
    folder = tiny_onnx.path
    reject = ("--reject", "energy", "--threshold", 0, "--json")
    by_torch, by_onnx = (
        json.loads(invoke(path, *images, *reject).stdout)
        for path in (folder, folder / "model.onnx")
    )
    for left, right in zip(by_torch, by_onnx, strict=True):
        assert left["image"] == right["image"]
        assert [each["class"] for each in left["classes"]] == [c["class"] for c in right["classes"]]
        assert left["score"] == pytest.approx(right["score"], abs=1e-4)
