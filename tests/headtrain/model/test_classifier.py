import json
import os
import pickle
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import clinit
from clinit.errors import (
    BackboneError,
    ClinitError,
    DeviceError,
    ImageError,
    MachineError,
    ModelError,
)
from clinit.extract.cache.head import read_head
from clinit.extract.cache.read import open_cache
from clinit.extract.work.loader import load_batches
from clinit.files.documents import content_sha256
from clinit.headtrain.model.export import export_run
from clinit.headtrain.model.model_file import ModelFacts, read_facts, write_model
from clinit.headtrain.model.predict import Classifier, Prediction, find_images, load_model
from clinit.headtrain.record.format import read_record


@pytest.fixture(scope="module")
def model_file(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_run(tiny_run, tmp_path_factory.mktemp("model") / "model.safetensors").path


@pytest.fixture(scope="module")
def model(model_file: Path) -> Classifier:
    return load_model(model_file, device="cpu")


@pytest.fixture
def images(tiny_run: Path) -> list[Path]:
    return find_images([tiny_run.parent / "base" / "val", tiny_run.parent / "new" / "val"])


def rewrite(model: Classifier, path: Path, **changes: Any) -> Path:
    """Write the model file that says something else of itself."""
    facts = {name: getattr(model.facts, name) for name in ModelFacts.__dataclass_fields__}
    write_model(model.backbone.network, ModelFacts(**{**facts, **changes}), path)
    return path


def test_predictions_are_right_as_often_as_the_run_was_at_its_end(
    model: Classifier, tiny_run: Path, images: list[Path]
) -> None:
    predictions = list(model.predict(images, top=1, batch_size=3))
    found = dict.fromkeys(model.facts.class_names, 0)
    for prediction in predictions:
        found[prediction.path.parent.name] += (
            prediction.guesses[0].name == prediction.path.parent.name
        )
    record = read_record(tiny_run)
    last = record.evaluations.filter(task=2, iteration=8).join(record.classes, on="row")
    assert found == dict(last.select("name", "correct").iter_rows())
    assert 0 < sum(found.values()) < len(images)  # neither is a matter of course


def test_a_cached_image_gets_the_logits_of_its_features(model: Classifier, tiny_run: Path) -> None:
    split = open_cache(tiny_run.parent / "caches" / "new").split("val")
    head = read_head(tiny_run / "head.safetensors")
    features = split.load().features.astype(np.float32)
    logits = torch.from_numpy(features @ head.weight.T + head.bias)
    paths = [tiny_run.parent / "new" / path for path in split.manifest.table["path"]]
    for prediction, expected in zip(model.predict(paths), logits.softmax(1), strict=True):
        assert [guess.row for guess in prediction.guesses] == expected.argsort(
            descending=True
        ).tolist()
        for guess in prediction.guesses:
            assert guess.probability == pytest.approx(float(expected[guess.row]), abs=2e-3)


def test_probabilities_fall_and_sum_to_one_over_all_classes(
    model: Classifier, images: list[Path]
) -> None:
    for prediction in model.predict(images, top=99):
        probabilities = [guess.probability for guess in prediction.guesses]
        assert len(probabilities) == 5
        assert probabilities == sorted(probabilities, reverse=True)
        assert sum(probabilities) == pytest.approx(1, abs=1e-5)


def test_each_class_says_when_it_arrived(
    model: Classifier, tiny_run: Path, images: list[Path]
) -> None:
    (prediction,) = model.predict(images[:1])
    tasks = {guess.name: guess.task for guess in prediction.guesses}
    classes = read_record(tiny_run).classes
    assert tasks == dict(classes.select("name", "task").iter_rows())
    assert [tasks[name] for name in "abc"] == [0, 0, 0]
    assert sorted(tasks[name] for name in "de") == [1, 2]


def test_batches_do_not_change_what_is_seen(model: Classifier, images: list[Path]) -> None:
    one = list(model.predict(images, batch_size=1))
    for batch_size in (2, 7, 100):
        for first, second in zip(one, model.predict(images, batch_size=batch_size), strict=True):
            assert (first.path, first.reason) == (second.path, second.reason)
            for left, right in zip(first.guesses, second.guesses, strict=True):
                assert left.name == right.name
                assert left.probability == pytest.approx(right.probability, abs=1e-5)


@pytest.mark.parametrize("batch_size", [1, 2, 3, 64])
def test_bad_images_keep_their_place_and_say_why(
    model: Classifier, images: list[Path], tmp_path: Path, batch_size: int
) -> None:
    (tmp_path / "empty.png").touch()
    (tmp_path / "cut.png").write_bytes(images[0].read_bytes()[:200])
    (tmp_path / "text.jpg").write_text("no image")
    good = images[:2]
    mixed = [
        *(tmp_path / "gone.png", good[0], tmp_path / "empty.png", tmp_path / "no" / "where.png"),
        *(tmp_path / "cut.png", good[1], tmp_path, tmp_path / "text.jpg", tmp_path / ("x" * 300)),
    ]
    done: list[int] = []
    found = list(model.predict(mixed, batch_size=batch_size, on_images=done.append))
    assert [prediction.path for prediction in found] == mixed
    reasons = {prediction.path.name: prediction.reason for prediction in found}
    assert reasons["gone.png"] == reasons["where.png"] == "the file is missing"
    assert reasons["x" * 300] == "the file is missing"
    assert reasons["empty.png"] == "the file is empty"
    assert reasons[tmp_path.name] == "cannot be read: Is a directory"
    for name in ("cut.png", "text.jpg"):
        assert reasons[name]
    alone = list(model.predict(good, batch_size=1))
    for prediction, expected in zip((found[1], found[5]), alone, strict=True):
        assert prediction.reason is None
        assert [g.name for g in prediction.guesses] == [g.name for g in expected.guesses]
    assert all(not each.guesses for each in found if each.reason is not None)
    assert done == sorted(done)
    assert done[-1] == len(mixed)


def test_a_file_that_may_not_be_read_does_not_stop_the_others(
    model: Classifier, images: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "secret.png"
    secret.write_bytes(images[0].read_bytes())
    read = Path.read_bytes

    def forbidden(path: Path) -> bytes:
        if path == secret:
            raise PermissionError(13, "Permission denied")
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", forbidden)
    reasons = [each.reason for each in model.predict([images[0], secret, images[1]])]
    assert reasons == [None, "no permission to read the file", None]


def test_want_of_memory_is_no_bad_image(
    model: Classifier, images: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **kwargs: object) -> object:
        raise MemoryError

    monkeypatch.setattr("clinit.extract.work.loader.decode", fail)
    with pytest.raises(MachineError, match="not enough memory to decode"):
        list(model.predict(images[:1]))


def test_no_image_is_no_prediction(model: Classifier) -> None:
    assert list(model.predict([])) == []


def test_a_link_may_lead_anywhere(model: Classifier, images: list[Path], tmp_path: Path) -> None:
    (tmp_path / "link.png").symlink_to(images[0])
    (found,) = model.predict([tmp_path / "link.png"])
    assert found.reason is None


def test_images_are_named_by_relative_paths_and_text_too(
    model: Classifier, images: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(images[0].parent)
    (found,) = model.predict([images[0].name])
    assert found == Prediction(Path(images[0].name), found.guesses, None)
    assert found.guesses


@pytest.mark.parametrize("arguments", [{"top": 0}, {"batch_size": 0}])
def test_nonsense_numbers_are_refused(model: Classifier, arguments: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        list(model.predict([], **arguments))  # type: ignore[arg-type]


def test_folders_are_searched_in_order_and_files_are_taken_as_they_are(tmp_path: Path) -> None:
    names = (
        "b/2.JPG",
        "b/1.png",
        "a/x.jpeg",
        "a/.hidden.png",
        ".git/3.png",
        "b/notes.txt",
        "z.gif",
    )
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = find_images([tmp_path / "b" / "notes.txt", tmp_path])
    relative = [str(path.relative_to(tmp_path)) for path in found]
    assert relative == ["b/notes.txt", "z.gif", "a/x.jpeg", "b/1.png", "b/2.JPG"]


def test_a_folder_without_an_image_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ImageError, match="no image in ") as caught:
        find_images([tmp_path])
    assert ".jpg, .jpeg, .png" in caught.value.remedy


def test_a_folder_that_cannot_be_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(path: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", denied)
    with pytest.raises(ImageError, match=r"cannot read the folder .*: Permission denied"):
        find_images([tmp_path])


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"loss": "ce", "method": "rehearsal"}, None),
        ({"loss": "sqen"}, None),
        ({}, None),
        ({"loss": "mse", "method": "rehearsal"}, "trained with squared error"),
        ({"loss": "ce", "method": "ridge"}, r"solved \(ridge\)"),
    ],
)
def test_scores_that_are_no_probabilities_are_pointed_out(
    model: Classifier, tmp_path: Path, config: dict[str, str], words: str | None
) -> None:
    path = rewrite(model, tmp_path / "model.safetensors", record={"id": "x", "config": config})
    caution = load_model(path, device="cpu").caution
    if words is None:
        assert caution is None
    else:
        assert caution is not None
        assert re.search(words, caution)


def test_images_that_the_network_does_not_take_are_told(
    model: Classifier, tiny_run: Path, tmp_path: Path
) -> None:
    transform = replace(model.facts.transform, crop=(3, 32))
    small = Classifier(replace(model.facts, transform=transform), model.backbone)
    image = next((tiny_run.parent / "base").rglob("*.png"))
    with pytest.raises(ModelError, match="does not take the images of 3 x 32 pixels that its file"):
        list(small.predict([image]))


def test_load_model_is_a_public_function(model_file: Path) -> None:
    assert clinit.load_model is load_model
    assert clinit.load_model(str(model_file), device="cpu").facts.num_classes == 5


def test_weights_that_have_changed_are_found(model_file: Path, tmp_path: Path) -> None:
    damaged = bytearray(model_file.read_bytes())
    damaged[-5] ^= 1
    (tmp_path / "model.safetensors").write_bytes(damaged)
    with pytest.raises(ModelError, match="are not those that were exported: SHA-256") as caught:
        load_model(tmp_path / "model.safetensors", device="cpu")
    assert "Export the run again" in caught.value.remedy


def test_a_file_of_plain_weights_is_refused(model_file: Path, tmp_path: Path) -> None:
    save_file(load_file(model_file), tmp_path / "plain.safetensors")
    with pytest.raises(ModelError, match="does not say what its classes are") as caught:
        load_model(tmp_path / "plain.safetensors")
    assert "`clinit export RUN --out FILE`" in caught.value.remedy


def test_what_is_no_model_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no model file at "):
        load_model(tmp_path / "absent.safetensors")
    (tmp_path / "text.safetensors").write_text("no tensors")
    with pytest.raises(ModelError, match=r"text\.safetensors is not a model file: "):
        load_model(tmp_path / "text.safetensors")
    with pytest.raises(ModelError, match="is a folder, not a model file"):
        read_facts(tmp_path)


def described(change: Callable[[dict[str, Any]], object]) -> Callable[[str], str]:
    """Change the description of a model, and seal it again as an honest writer would."""

    def changed(text: str) -> str:
        content: dict[str, Any] = json.loads(text)
        del content["sha256"]
        change(content)
        return json.dumps({**content, "sha256": content_sha256(content)})

    return changed


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: "[]", "is damaged: it holds [] instead of fields"),
        (lambda text: "{", "is damaged: Expecting property name"),
        (lambda text: "[" * 100_000, "is damaged: it is nested too deeply"),
        (
            lambda text: text.replace('"d"', '"q"'),
            "is damaged: it has changed since it was written",
        ),
        (
            described(lambda content: content.update(format="clinit-model/9")),
            "is not the description of a model: its format is 'clinit-model/9', expected",
        ),
        (described(lambda content: content.pop("tasks")), "is damaged: it lacks `tasks`"),
        (
            described(lambda content: content.update(autocast="x")),
            "is damaged: autocast is 'x', expected another value",
        ),
        (
            described(lambda content: content.update(tasks=[0.5])),
            "is damaged: tasks[0] is 0.5, expected `int`, got `float`",
        ),
        (
            described(lambda content: content.update(record={"config": 3})),
            "is damaged: record.config is 3, expected `object | null`, got `int`",
        ),
        (
            described(lambda content: content.update(record={"config": {"method": []}})),
            "is damaged: record.config.method is [], expected `str`, got `array`",
        ),
        (
            described(lambda content: content["transform"].update(resize=True)),
            "is damaged: transform.resize is True, expected `int | array`, got `bool`",
        ),
        (
            described(lambda content: content["history"][0].update(action="sold")),
            "is damaged: history[0].action is 'sold', expected another value",
        ),
        (
            described(lambda content: content["history"][0].update(accuracy={"new": [1]})),
            "is damaged: history[0].accuracy[...]: expected `object`, got `array`",
        ),
        (
            described(lambda content: content["transform"].update(std=[0, 1, 1])),
            "is damaged: std must be three positive numbers",
        ),
    ],
)
def test_a_file_of_another_layout_is_refused(
    model_file: Path, tmp_path: Path, change: Callable[[str], str], message: str
) -> None:
    with safe_open(model_file, framework="numpy") as file:
        text = file.metadata()["clinit_model"]
    path = tmp_path / "other.safetensors"
    save_file(load_file(model_file), path, metadata={"clinit_model": change(text)})
    with pytest.raises(ModelError) as caught:
        load_model(path)
    assert str(caught.value).startswith(f"the description in {path} {message}")


def test_a_model_of_an_earlier_version_is_read(model_file: Path, tmp_path: Path) -> None:
    with safe_open(model_file, framework="numpy") as file:
        content = json.loads(file.metadata()["clinit_model"])
    del content["sha256"], content["history"]
    text = json.dumps({**content, "format": "clinit-model/1"})
    path = tmp_path / "older.safetensors"
    save_file(load_file(model_file), path, metadata={"clinit_model": text})
    assert load_model(path).facts == replace(load_model(model_file).facts, history=())


class _Evil:
    """Unpickled, it leaves a file behind."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.trace,))


@pytest.mark.parametrize(
    "argument", ["checkpoint_path", "pretrained_cfg", "cache_dir", "model_name", "features_only"]
)
def test_code_that_a_model_file_names_is_not_run(
    model: Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argument: str
) -> None:
    (tmp_path / "evil.pth").write_bytes(pickle.dumps(_Evil(tmp_path / "exploded")))
    arguments = {**model.facts.model_args, argument: str(tmp_path / "evil.pth")}
    path = rewrite(model, tmp_path / "model.safetensors", model_args=arguments)

    def never(*args: object, **kwargs: object) -> None:
        raise AssertionError("called")

    monkeypatch.setattr(timm, "create_model", never)
    monkeypatch.setattr(timm.models, "load_state_dict", never)
    text = f"asks for what no model file may ask for: the model argument '{argument}'"
    with pytest.raises(ModelError, match=text) as caught:
        load_model(path, device="cpu")
    assert str(caught.value).startswith(f"{path} ")
    assert caught.value.remedy.startswith("Do not use this file.")
    assert not (tmp_path / "exploded").exists()


def test_a_model_file_that_asks_for_a_huge_network_is_refused(
    model: Classifier, tmp_path: Path
) -> None:
    arguments = {**model.facts.model_args, "dims": (4, 8, 8, 3_000)}
    path = rewrite(model, tmp_path / "model.safetensors", model_args=arguments)
    with pytest.raises(BackboneError, match="more than 4 times what its weights hold"):
        load_model(path, device="cpu")


def test_a_model_file_names_a_model_of_timms_own(model: Classifier, tmp_path: Path) -> None:
    path = rewrite(model, tmp_path / "model.safetensors", backbone="local-dir:/tmp/evil")
    with pytest.raises(BackboneError, match="has no model 'local-dir:/tmp/evil'"):
        load_model(path, device="cpu")


def test_facts_name_a_task_for_every_class(model: Classifier, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="2 tasks for 5 class names"):
        rewrite(model, tmp_path / "model.safetensors", tasks=(0, 1))


def test_a_full_disk_leaves_no_file(
    model: Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(ClinitError, match="No space left on device"):
        rewrite(model, tmp_path / "model.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_a_device_that_is_not_there_is_refused(
    model_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceError, match="PyTorch finds no CUDA device"):
        load_model(model_file, device="cuda")


def test_a_squashing_transform_comes_back_from_the_file(model: Classifier, tmp_path: Path) -> None:
    transform = replace(model.facts.transform, resize=(48, 40))
    path = rewrite(model, tmp_path / "model.safetensors", transform=transform)
    assert load_model(path, device="cpu").facts.transform == transform


@pytest.mark.gpu
def test_the_gpu_sees_what_the_cpu_sees(
    model_file: Path, model: Classifier, images: list[Path]
) -> None:
    on_gpu = load_model(model_file, device="cuda")
    for found, expected in zip(on_gpu.predict(images), model.predict(images), strict=True):
        for left, right in zip(found.guesses, expected.guesses, strict=True):
            assert left.probability == pytest.approx(right.probability, abs=1e-2)


def test_pictures_of_any_mode_are_read(model: Classifier, tmp_path: Path) -> None:
    for mode in ("L", "RGBA", "P", "CMYK"):
        suffix = "jpg" if mode == "CMYK" else "png"
        Image.new(mode, (40, 30)).save(tmp_path / f"{mode}.{suffix}")
    assert [each.reason for each in model.predict(find_images([tmp_path]))] == [None] * 4


@pytest.mark.parametrize(("asked", "workers"), [(None, 3), (1, 1)])
def test_as_many_threads_decode_as_the_process_may_use(
    model: Classifier,
    images: list[Path],
    monkeypatch: pytest.MonkeyPatch,
    asked: int | None,
    workers: int,
) -> None:
    used: list[int] = []

    def spy(*arguments: Any, **options: Any) -> Any:
        used.append(options["workers"])
        return load_batches(*arguments, **options)

    monkeypatch.setattr("clinit.headtrain.model.predict.load_batches", spy)
    monkeypatch.setattr("clinit.headtrain.model.predict.cpu_count", lambda: 3)
    assert len(list(model.predict(images, workers=asked))) == len(images)
    assert used == [workers]
