"""What a model says of images, and when an image is of none of its classes."""

import io
import math
from dataclasses import replace
from pathlib import Path
from unittest.mock import ANY

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.special import logsumexp, softmax

from clinit.errors import ImageError, ModelError
from clinit.extract.cache.features import FeatureSet
from clinit.extract.cache.head import Head, read_head
from clinit.extract.cache.read import open_cache
from clinit.headtrain.model.memory import Memory
from clinit.headtrain.model.model import Model, load_model
from clinit.headtrain.model.network import engine_of
from clinit.headtrain.model.predict import RULES, Rejection, find_images, predict, scores
from clinit.headtrain.model.reading import Reading
from clinit.headtrain.protocol.record.format import read_record
from tests.files.test_paths import without_rights


def test_a_cached_image_gets_the_logits_of_its_features(model: Model, tiny_run: Path) -> None:
    split = open_cache(tiny_run.parent / "caches" / "new").split("val")
    head = read_head(tiny_run / "head.safetensors")
    logits = torch.from_numpy(split.load().features.astype(np.float32) @ head.weight.T + head.bias)
    paths = [tiny_run.parent / "new" / path for path in split.manifest.table["path"]]
    tasks = dict(read_record(tiny_run).classes.select("name", "task").iter_rows())
    for prediction, expected in zip(model.predict(paths), logits.softmax(1), strict=True):
        rows = [guess.row for guess in prediction.guesses]
        assert rows == expected.argsort(descending=True).tolist()
        for guess in prediction.guesses:
            assert guess.probability == pytest.approx(float(expected[guess.row]), abs=2e-3)
            assert guess.task == tasks[guess.name]


def test_a_compiled_network_gives_the_logits_of_the_plain_one(model: Model) -> None:
    engine = engine_of(model)
    batch = torch.randint(256, (3, 3, *engine.transform.crop), dtype=torch.uint8)
    compiled = replace(engine.backbone, program=engine.backbone.forward)  # without a compiler
    found = replace(engine, backbone=compiled).logits(batch)
    torch.testing.assert_close(found, engine.logits(batch))


@pytest.mark.parametrize("batch_size", [1, 3, 64])
def test_bad_images_keep_their_place_and_say_why(
    model: Model, images: list[Path], tmp_path: Path, batch_size: int
) -> None:
    (tmp_path / "empty.png").touch()
    (tmp_path / "cut.png").write_bytes(images[0].read_bytes()[:200])
    (tmp_path / "text.jpg").write_text("no image")
    (tmp_path / "link.png").symlink_to(images[1])
    (tmp_path / "closed").mkdir()
    names = ["gone.png", "empty.png", "no/where.png", "cut.png", ".", "text.jpg", "x" * 300]
    mixed = [tmp_path / name for name in (*names, "closed/a.png")]
    mixed[1:1], mixed[5:5] = [images[0]], [tmp_path / "link.png"]
    done: list[int] = []
    reading = Reading(batch_size=batch_size, on_images=done.append)
    with without_rights(tmp_path / "closed"):
        found = predict(model, mixed, top=99, reading=reading)
    assert [prediction.path for prediction in found] == mixed
    reasons = [each.reason and each.reason.split(". Did")[0] for each in found]
    missing, good = "the file is missing", None
    assert reasons[:4] == [missing, good, "the file is empty", missing]
    assert reasons[5:7] == [good, "cannot be read: Is a directory"]
    assert reasons[4]
    assert reasons[7]
    assert reasons[8:] == [missing, "no permission to read the file"]
    for place, image in ((1, images[0]), (5, images[1])):
        guesses = found[place].guesses
        (alone,) = model.predict(image, batch_size=1)
        assert [each.name for each in guesses] == [each.name for each in alone.guesses]
        probabilities = [each.probability for each in guesses]
        assert probabilities == pytest.approx([e.probability for e in alone.guesses], abs=1e-5)
        assert probabilities == sorted(probabilities, reverse=True)
        assert sum(probabilities) == pytest.approx(1, abs=1e-5)
    assert all(not each.guesses for each in found if each.reason is not None)
    assert (done, done[-1]) == (sorted(done), len(mixed))


def test_a_folder_without_an_image_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ImageError, match="no image in ") as caught:
        find_images([tmp_path])
    assert ".jpg, .jpeg, .png" in caught.value.remedy

    denied = pytest.raises(ImageError, match=r"cannot read the folder .*: Permission denied")
    with without_rights(tmp_path), denied:
        find_images([tmp_path])


NAMES = ("a", "b", "c")


def remembering(rows: int) -> Model:
    """Return a head with a memory of that many held-out rows."""
    rng = np.random.default_rng(1)

    def draw(count: int) -> FeatureSet:
        features = rng.normal(size=(count, 4)).astype(np.float16)
        return FeatureSet(features, rng.integers(0, 3, count), NAMES)

    weight, bias = rng.normal(size=(3, 4)), rng.normal(size=3)
    head = Head(weight.astype(np.float32), bias.astype(np.float32), NAMES)
    return replace(Model(head), memory=Memory.of(draw(30), {}, held_out=draw(rows)))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("rate", [0.0, 0.05, 0.333, 0.99])
@pytest.mark.parametrize("rows", [1, 10, 999])
def test_the_threshold_turns_away_the_share_of_held_out_images_that_is_allowed(
    rule: str, rate: float, rows: int
) -> None:
    model = remembering(rows)
    found = Rejection.at_rate(model, rule, rate)
    features = model.memory.held_out.features.astype(np.float64)
    logits = features @ model.head.weight.T.astype(np.float64) + model.head.bias
    expected = {
        "energy": logsumexp(logits, axis=1),
        "max-logit": logits.max(axis=1),
        "probability": softmax(logits, axis=1).max(axis=1),
    }
    told = expected[rule]
    assert found.threshold == pytest.approx(sorted(told)[math.floor(rate * rows)], rel=1e-5)
    assert (told < found.threshold - 1e-5).sum() == math.floor(rate * rows) <= rate * rows
    np.testing.assert_allclose(scores(rule, logits, "softmax"), told, rtol=1e-5)


@pytest.mark.untyped
def test_nonsense_is_refused(model: Model) -> None:
    for rule, threshold in (("softmax", 0.0), ("energy", math.nan)):
        with pytest.raises(ValueError, match=r"must be"):
            Rejection(rule, threshold)
    with pytest.raises(ValueError, match=r"rate must lie in \[0, 1\)"):
        Rejection.at_rate(remembering(3), "energy", math.nan)
    with pytest.raises(ValueError, match="rule must be one of"):
        Rejection.at_rate(remembering(3), "margin")
    with pytest.raises(TypeError, match="reject takes a Rejection"):
        remembering(3).predict(np.zeros((1, 4)), reject=0.5)  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="remembers no image"):
        Rejection.at_rate(remembering(0), "energy", 0.05)


def test_one_image_is_computed_at_once_in_any_form(
    model: Model, images: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = predict(model, images)
    monkeypatch.setattr("clinit.extract.work.pipeline.Decoder", None)
    image = Image.open(images[0])
    pixels = np.asarray(image.convert("RGB"))
    forms = [images[0], str(images[0]), [images[0]], image, pixels, torch.from_numpy(pixels.copy())]
    for found in [model.predict(form) for form in forms] + [model.predict([image, pixels])[1:]]:
        (one,) = found
        assert [each.name for each in one.guesses] == [each.name for each in expected[0].guesses]
        assert one.guesses[0].probability == pytest.approx(expected[0].guesses[0].probability)
    assert model.predict(np.asarray(image.convert("L"))) == model.predict(image.convert("L"))
    nothing, cut = image.crop((5, 5, 5, 9)), Image.open(io.BytesIO(images[0].read_bytes()[:-40]))
    reasons = [each.reason for each in model.predict([cut, pixels, nothing])]
    assert reasons == [ANY, None, "no pixels: 0 x 4"]
    assert "truncated" in reasons[0]
    (gone,) = model.predict(images[0].with_name(f"{images[0].stem}x.png"))
    assert gone.reason == f"the file is missing. Did you mean {images[0]}?"
    for wrong in (pixels.astype(np.float32), pixels[..., :2], 5):
        with pytest.raises(ValueError, match="expected an image file"):
            model.predict(wrong)


def test_a_network_classifies_features_of_its_own_too(model: Model, tiny_run: Path) -> None:
    cache = tiny_run.parent / "caches" / "new"
    split = open_cache(cache).split("val")
    paths = [tiny_run.parent / "new" / path for path in split.manifest.table["path"]]
    for one, other in zip(model.predict(cache / "val"), model.predict(paths), strict=True):
        assert one.guesses[0].name == other.guesses[0].name
    assert model.rename({"d": "D", "e": "E"}).add(cache).change.images == {"d": 6, "e": 6}


def test_the_head_of_a_model_classifies_features_of_its_network(
    model: Model, tiny_run: Path, tmp_path: Path
) -> None:
    cache, out = tiny_run.parent / "caches" / "new", tmp_path / "head.npz"
    assert model.memory is not None
    model.export(out)
    head = load_model(out)
    assert head.memory is not None
    assert [each.guesses for each in head.predict(cache)] == [
        each.guesses for each in model.predict(cache)
    ]
    assert head.remove(["d", "e"]).add(cache).change.classes == ("d", "e")
