import base64
import csv
import io
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from clinit.errors import ClinitError
from clinit.headtrain.model.export import Export
from clinit.headtrain.model.network import TimmEngine
from tests.cli.calls import call, checked, done, refused


class WellFormed(HTMLParser):
    """Fails if a tag is not closed by its own; collects addresses and texts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.sources: list[str] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.sources += [given[name] or "" for name in ("src", "href") if name in given]
        if tag not in ("meta", "link", "img", "br", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture
def model(tiny_onnx: Export) -> Path:
    """A model of the classes a to e, which remembers held-out images."""
    return tiny_onnx.path


@pytest.fixture
def images(tiny_run: Path, tmp_path: Path) -> Path:
    """Four images of each class, and as many of no class of the model; one cannot be read."""
    folder = tmp_path / "images"
    for side in ("base", "new"):
        shutil.copytree(tiny_run.parent / side / "val", folder, dirs_exist_ok=True)
    shutil.copytree(folder / "a", folder / "<b>x")
    (folder / "a" / "empty.png").touch()
    return folder


def test_a_model_is_measured_as_it_predicts(model: Path, images: Path, tmp_path: Path) -> None:
    page, table = tmp_path / "page.html", tmp_path / "table.csv"
    written = ("--html", page, "--csv", table)
    result = call("evaluate", model, images, *written, "--json", "--device=cpu")
    assert result.exit_code == 1, "an image cannot be read"
    told = json.loads(result.stdout)
    assert told["images"] == {"known": 20, "strangers": 4}
    assert told["unreadable"] == [{"image": "a/empty.png", "error": "the file is empty"}]
    assert "1 folder not named as a class of the model (<b>x): 4 images" in result.stderr
    seen = call("predict", model, images, "--json", "--device=cpu", "--top=1")
    answers = {each["image"]: each["classes"] for each in json.loads(seen.stdout)}
    with table.open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == len(answers) == 25
    for line in lines:
        guesses = answers[str(images / line["image"])]
        assert line["answer"] == "".join(guess["class"] for guess in guesses)
    rights = [line["answer"] == line["class"] for line in lines if line["right"]]
    assert told["top1"] == pytest.approx(100 * sum(rights) / 20)
    assert set(told["rejection"]["turned_away"]) == {"known", "strangers"}
    text = page.read_text(encoding="utf-8")
    icon, *sources = WellFormed(text).sources
    assert icon == "data:,"
    assert len(sources) == 20 - sum(rights), "a thumbnail for each mistake"
    for source in sources:
        content = base64.b64decode(source.removeprefix("data:image/jpeg;base64,"))
        assert Image.open(io.BytesIO(content)).size == (40, 36)
    assert "<b>x" not in text
    assert not re.search("https?:", text)
    assert text.count("<script") == 2


def test_two_models_answer_the_same_images(
    model: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "list").write_text("a/empty.png\n", encoding="utf-8")
    words = ("-q", "evaluate", model, images, "--json", "--without", tmp_path / "list")
    left = json.loads(done(*words))
    assert (left["images"], left["unreadable"]) == ({"known": 20, "strangers": 4}, [])
    (images / "a" / "empty.png").unlink()
    swapped, other = tmp_path / "swapped", tmp_path / "other"
    done("rename", model, "d=e", "e=d", "--out", swapped)
    done("remove", swapped, "a", "--out", other)
    passes: list[int] = []
    logits = TimmEngine.logits

    def counted(engine: TimmEngine, pixels: Any) -> Any:
        passes.append(len(pixels))
        return logits(engine, pixels)

    monkeypatch.setattr(TimmEngine, "logits", counted)
    told = json.loads(call("-q", "evaluate", other, images, "--device=cpu", "--json").stdout)
    assert sum(passes) == 24, "each image passes the network once"
    against = ("evaluate", model, images, "--against", other, "--device=cpu")
    assert told["against"]["only other"]["images"] == 4
    told = json.loads(checked(call("-q", *against, "--json")))
    shutil.copytree(other, lonely := tmp_path / "far" / "lonely")
    swapped.rename(tmp_path / "hidden")
    assert "not compared with its parent" in call("evaluate", lonely, images, "--device=cpu").stderr
    alone = [json.loads(call("-q", "evaluate", m, images, "--json").stdout) for m in (model, other)]
    rights = [round(each["top1"] * each["images"]["known"] / 100) for each in alone]
    assert told["other"] == str(other)
    of = told["against"]
    assert of["only this"]["images"] == 4
    rights[0] -= of["only this"]["right"]
    assert [of["both"] + of["gained"], of["both"] + of["lost"]] == rights
    assert {each["class"] for each in of["gained_images"] + of["lost_images"]} <= {"d", "e"}
    printed = done(*against, "--html", tmp_path / "page.html")
    assert f"{of['gained']} gained, {of['lost']} lost" in printed
    assert "gained: this may be chance (p = " in printed
    assert f"4 images of 1 class: {of['only this']['right']} right" in printed
    first = of["lost_images"][0]
    assert f"lost: {first['image']} (now {first['answer']})" in printed
    shutil.move(images / "<b>x", images / "AAAAAAAA")
    assert "is now AAAAAAAAA" in done("rename", model, "a=AAAAAAAAA", "--out", tmp_path / "typo")
    assert "AAAAAAAA: is it AAAAAAAAA?" in done("evaluate", tmp_path / "typo", images)
    told = printed.replace(str(model), "").splitlines()
    lines = (each for each in told if not each.startswith(("Note", "lost")))
    assert max(map(len, lines)) <= 80
    WellFormed((tmp_path / "page.html").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("MODEL nowhere", "no folder of images at nowhere"),
        ("MODEL IMAGES/a", "contains images"),
        ("nowhere IMAGES", "no model at nowhere"),
        ("MODEL STRANGE", "of 1 folder (<b>x), none is named as a class"),
        ("MODEL IMAGES --csv x.txt", "--csv needs a file that ends in .csv, got x.txt"),
        ("MODEL IMAGES --html x.csv", "--html needs a file that ends in .html, got x.csv"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(
    model: Path, images: Path, tmp_path: Path, words: str, message: str
) -> None:
    (tmp_path / "strange").mkdir()
    shutil.move(images / "<b>x", tmp_path / "strange")
    places = {"MODEL": model, "IMAGES": images, "STRANGE": tmp_path / "strange"}
    for name, place in places.items():
        words = words.replace(name, str(place))
    result = call("evaluate", *words.split(), "--device=cpu")
    if result.exit_code == 2:
        assert message in " ".join(result.output.split())
    else:
        assert isinstance(refused(result), ClinitError)
        assert message in str(result.exception)
