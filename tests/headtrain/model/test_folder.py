"""Model folders: what is in them, what timm and the Hub read of them, and what is refused."""

from __future__ import annotations

import json
import pickle
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import timm.data
import torch
from huggingface_hub import ModelCard
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from clinit.errors import BackboneError, ClinitError, ModelError
from clinit.extract.cache.head import Top1
from clinit.extract.network.transform import Transform, make_transform
from clinit.files.documents import content_sha256
from clinit.headtrain.model.export import Export, export_run
from clinit.headtrain.model.folder import card, data_config, read_model, write_model_folder
from clinit.headtrain.model.model import open_model
from clinit.headtrain.model.model_file import Change, ModelFacts, read_facts, write_model
from clinit.headtrain.model.predict import Classifier, find_images, load_model
from clinit.headtrain.record.format import read_record

HOSTILE_NAMES = ("a [b](c)", "line\nbreak | <b>", "🦜 ---", "d", 'quote"\\')
HOSTILE = (
    "</details>\n---\nlicense: mit | [x](http://evil) `<script>` **b** ![i](y) 🦜 \u202e\udcff"
)


@pytest.fixture(scope="module")
def folder(tiny_onnx: Export) -> Path:
    return tiny_onnx.path


@pytest.fixture(scope="module")
def model(folder: Path) -> Classifier:
    return load_model(folder, device="cpu")


@pytest.fixture(scope="module")
def facts(model: Classifier) -> ModelFacts:
    return model.facts


def edit_config(folder: Path, tmp_path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """Return a copy of the model folder whose config.json says something else."""
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "model.safetensors").symlink_to(folder / "model.safetensors")
    content = json.loads((folder / "config.json").read_text())
    change(content)
    (copy / "config.json").write_text(json.dumps(content))
    return copy


MODELS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("convnextv2_atto", {"depths": (1, 1, 1, 1), "dims": (4, 8, 8, 12)}),
    (
        "vit_tiny_patch16_224",
        {"dynamic_img_size": True, "img_size": 64, "patch_size": 8, "embed_dim": 12, "depth": 1}
        | {"num_heads": 2},
    ),
)


@pytest.mark.slow
def test_a_process_with_timm_alone_predicts_from_the_folder(
    make_run: Callable[..., Path], tmp_path: Path
) -> None:
    code = ["import json, sys, timm, timm.data, torch", "from PIL import Image", "found = []"]
    expected = []
    for name, arguments in MODELS:
        run = make_run(tmp_path / f"it's {name}", name, **arguments)
        exported = export_run(run, tmp_path / f"it's {name}" / "a [model]")
        images = find_images([run.parent / "new" / "val"])
        predictions = load_model(exported.path, device="cpu").predict(images)
        expected.append([each.guesses[0].name for each in predictions])
        code += [
            f"model = {exported.facts.loading_line(exported.path)}.eval()",
            "config = timm.data.resolve_model_data_config(model)",
            "transform = timm.data.create_transform(**config)",
            f"images = [transform(Image.open(path)) for path in {list(map(str, images))!r}]",
            "with torch.inference_mode(): rows = model(torch.stack(images)).argmax(1)",
            "found.append([model.pretrained_cfg['label_names'][row] for row in rows])",
        ]
    code += ["assert not [name for name in sys.modules if name.startswith('clinit')]"]
    code += ["print(json.dumps(found))"]
    done = subprocess.run(
        [sys.executable, "-I", "-c", "\n".join(code)], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == expected


def test_the_configuration_is_what_timm_keeps_of_a_model(folder: Path, facts: ModelFacts) -> None:
    network = timm.create_model(f"local-dir:{folder}", pretrained=True)
    assert network.pretrained_cfg["label_names"] == list(facts.class_names)
    assert network.pretrained_cfg["label_descriptions"]["d"] == "d"
    found = timm.data.resolve_model_data_config(network)
    assert found == {
        "input_size": [3, 32, 32],
        "interpolation": "bicubic",
        "mean": [0.485, 0.456, 0.406],
        "std": [0.229, 0.224, 0.225],
        "crop_pct": 0.88,
        "crop_mode": "center",
    }
    assert make_transform("timm", found) == facts.transform
    assert "license" not in network.pretrained_cfg  # weights of a file are under any licence
    assert "url" not in (folder / "config.json").read_text()


@pytest.mark.parametrize("kind", ["timm", "paper"])
@pytest.mark.parametrize(
    "config",
    [
        {"input_size": (3, side, side), "crop_pct": fraction, "crop_mode": mode}
        for side, fraction in ((224, 0.9), (224, 0.875), (288, 0.95), (299, 0.8975), (64, 1.0))
        for mode in ("center", "squash")
    ],
)
def test_timms_words_make_the_same_transform_again(kind: str, config: dict[str, Any]) -> None:
    moments = {"mean": (0.5, 0.4, 0.3), "std": (0.2, 0.3, 0.4), "interpolation": "bicubic"}
    transform = make_transform(kind, {**config, **moments})
    assert make_transform("timm", data_config(transform)) == transform


@pytest.mark.parametrize("resize", [36, (40, 35)])
def test_timms_transform_of_a_tensor_gives_the_same_pixels_of_an_image_almost_the_same(
    resize: int | tuple[int, int],
) -> None:
    crop = (32, 28) if isinstance(resize, tuple) else (32, 32)
    transform = Transform(resize, crop, "bicubic", (0.5,) * 3, (0.25,) * 3)
    theirs = timm.data.create_transform(**data_config(transform))
    pixels = np.random.default_rng(0).integers(0, 256, (70, 90, 3), dtype=np.uint8)
    ours = transform.normalise(transform.to_input(torch.from_numpy(pixels).permute(2, 0, 1))[None])
    grey_level = 1 / 255 / 0.25
    found = theirs(Image.fromarray(pixels))
    assert found.shape == ours[0].shape
    assert (found - ours[0]).abs().max() <= 1.01 * grey_level


@pytest.mark.parametrize("change", [{"crop": (32, 24)}, {"resize": (500, 33)}])
def test_a_transform_that_timm_has_no_words_for_is_exported_to_a_file_only(
    model: Classifier, tmp_path: Path, change: dict[str, Any]
) -> None:
    facts = replace(model.facts, transform=replace(model.facts.transform, **change))
    with pytest.raises(ModelError, match="timm has no words for what the images go") as caught:
        write_model_folder(tmp_path / "model", model.backbone.network, facts)
    assert "--out FILE.safetensors" in caught.value.remedy
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda content: content.update(architecture="resnet18"), "architecture"),
        (lambda content: content["label_names"].reverse(), "label_names"),
        (lambda content: content.update(model_args={"checkpoint_path": "/x"}), "model_args"),
        (lambda content: content["pretrained_cfg"].update(mean=[0, 0, 0]), "pretrained_cfg.mean"),
        (lambda content: content.update(pretrained_cfg=[]), "pretrained_cfg"),
        # What timm alone reads:
        (lambda content: content.update(num_features=3), "num_features"),
        (lambda content: content["label_descriptions"].popitem(), "label_descriptions.e"),
    ],
)
def test_a_configuration_that_disagrees_with_the_model_file_is_refused(
    folder: Path, tmp_path: Path, change: Callable[[dict[str, Any]], object], field: str
) -> None:
    copy = edit_config(folder, tmp_path, change)
    with pytest.raises(ModelError, match=f"disagree about {field}"):
        load_model(copy, device="cpu")


@pytest.mark.parametrize(
    "text", [b"[" * 100_000, b"{", b"\xff", b"{" + b" " * 2**24 + b"}", b"3", None]
)
def test_a_damaged_configuration_is_refused(
    folder: Path, tmp_path: Path, text: bytes | None
) -> None:
    copy = edit_config(folder, tmp_path, lambda content: None)
    (copy / "config.json").unlink()
    if text is not None:
        (copy / "config.json").write_bytes(text)
    with pytest.raises(ModelError, match=r"config\.json") as caught:
        load_model(copy)
    assert str(copy / "model.safetensors") in caught.value.remedy


def test_a_folder_of_an_earlier_version_may_say_more_to_timm(
    folder: Path, tmp_path: Path, model: Classifier
) -> None:
    copy = edit_config(folder, tmp_path, lambda content: content.update(num_features=3))
    (copy / "notes.txt").write_text("mine")
    (copy / "pytorch_model.bin").write_bytes(b"not unpickled")
    facts = replace(model.facts, timm=None)
    (copy / "model.safetensors").unlink()
    write_model(model.backbone.network, facts, copy / "model.safetensors")
    assert load_model(copy, device="cpu").facts.num_classes == 5


@pytest.mark.parametrize("replacements", [1, 2])
def test_a_model_that_is_replaced_while_it_is_read_is_read_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replacements: int
) -> None:
    place, readings = Path(shutil.copytree(folder, tmp_path / "model")), 0

    def half(path: Path) -> ModelFacts:
        nonlocal readings
        readings += 1
        if readings > replacements:
            return read_facts(path)
        place.rename(tmp_path / str(readings))  # which keeps its inode
        shutil.copytree(folder, place)
        raise BackboneError("size mismatch", remedy="")

    monkeypatch.setattr("clinit.headtrain.model.folder.read_facts", half)
    if replacements == 2:
        with pytest.raises(ModelError, match="was replaced"):
            read_model(place)
    else:
        assert read_model(place).memory is not None
    assert readings == 2


def test_names_of_all_kinds_come_back_and_nothing_is_overwritten(
    model: Classifier, tmp_path: Path
) -> None:
    facts, network = replace(model.facts, class_names=HOSTILE_NAMES), model.backbone.network
    write_model_folder(tmp_path / "model", network, facts)
    assert load_model(tmp_path / "model", device="cpu").facts.class_names == HOSTILE_NAMES
    built = timm.create_model(f"local-dir:{tmp_path / 'model'}", pretrained=True)
    assert built.pretrained_cfg["label_names"] == list(HOSTILE_NAMES)
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("nowhere")
    for name in ("folder", "link"):
        with pytest.raises(ModelError, match=r"never replaced: it is (no model|a link)"):
            write_model_folder(tmp_path / name, network, facts, overwrite=True)


def test_a_folder_is_written_whole_or_not_at_all(model: Classifier, tmp_path: Path) -> None:
    def fail(path: Path) -> None:
        path.write_text("half")
        raise OSError(28, "No space left on device")

    network = load_model(model.backbone.config.weights or "", device="cpu").backbone.network
    with pytest.raises(ClinitError, match="No space left on device"):
        write_model_folder(tmp_path / "other", network, model.facts, extra={"x": fail})
    deeper = replace(model.facts, model_args={"depths": (1, 1, 1, 2), "dims": (4, 8, 8, 12)})
    with pytest.raises(ModelError, match="does not build the same convnextv2_atto"):
        write_model_folder(tmp_path / "model", network, deeper)
    network.get_classifier().register_forward_hook(  # type: ignore[operator]
        lambda module, inputs, output: output + 1
    )
    with pytest.raises(ModelError, match=r"does not build the same convnextv2_atto .* differ by"):
        write_model_folder(tmp_path / "model", network, model.facts)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "memory.safetensors"])
def test_a_damaged_folder_is_read_as_it_was_or_not_at_all(
    folder: Path, tmp_path: Path, name: str
) -> None:
    def content(path: Path) -> list[Any]:
        model = open_model(path, device="cpu")
        assert model.memory is not None
        tensors = {name: tensor.tobytes() for name, tensor in model.memory.tensors().items()}
        told = [getattr(model.memory, each) for each in ("class_names", "averaged", "freedom")]
        return [model.facts, model.head.weight.tobytes(), told, model.memory.backbone, tensors]

    own = Path(shutil.copytree(folder, tmp_path / "model"))
    written, expected = (own / name).read_bytes(), content(folder)
    places = [0, 8, *np.linspace(9, len(written) - 1, num=9).astype(int).tolist()]
    flipped = [
        written[:place] + bytes([written[place] ^ (1 << number % 8)]) + written[place + 1 :]
        for number, place in enumerate(places)
    ]
    damaged = [*flipped, *(written[:length] for length in (0, 8, len(written) // 2))]
    refused = 0
    for each in damaged:
        (own / name).write_bytes(each)
        try:
            assert content(own) == expected
        except ClinitError:
            refused += 1
    assert refused >= len(damaged) // 2  # white space says nothing


def rewrite(model: Classifier, path: Path, **changes: Any) -> Path:
    """Write the model file that says something else of itself."""
    write_model(model.backbone.network, replace(model.facts, **changes), path)
    return path


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
        (lambda text: "[]", "it holds [] instead of fields"),
        (lambda text: "{", "Expecting property name"),
        (lambda text: text.replace('"d"', '"q"'), "it has changed since it was written"),
        (described(lambda content: content.update(format="clinit-model/9")), "clinit-model/9"),
        (described(lambda content: content.pop("tasks")), "it lacks `tasks`"),
        (described(lambda content: content.update(tasks=[0])), "1 tasks for 5 class names"),
        (described(lambda content: content.update(autocast="x")), "autocast is 'x'"),
        (described(lambda content: content.update(tasks=[0.5])), "tasks[0] is 0.5"),
        (described(lambda content: content.update(record={"config": 3})), "record.config is 3"),
        (described(lambda content: content.update(model_args=[])), "model_args is []"),
        (described(lambda content: content["history"][0].update(action="sold")), "is 'sold'"),
        (described(lambda content: content["transform"].update(std=[0, 1, 1])), "std must be"),
    ],
)
def test_a_description_of_another_layout_is_refused(
    folder: Path, tmp_path: Path, change: Callable[[str], str], message: str
) -> None:
    file = folder / "model.safetensors"
    with safe_open(file, framework="numpy") as opened:
        text = opened.metadata()["clinit_model"]
    path = tmp_path / "other.safetensors"
    save_file(load_file(file), path, metadata={"clinit_model": change(text)})
    with pytest.raises(ModelError, match=re.escape(message)) as caught:
        load_model(path)
    assert str(caught.value).startswith(f"the description in {path} is ")


def test_a_model_of_an_earlier_version_is_read(folder: Path, tmp_path: Path) -> None:
    file = folder / "model.safetensors"
    with safe_open(file, framework="numpy") as opened:
        content = json.loads(opened.metadata()["clinit_model"])
    del content["sha256"], content["history"]
    text = json.dumps({**content, "format": "clinit-model/1"})
    path = tmp_path / "older.safetensors"
    save_file(load_file(file), path, metadata={"clinit_model": text})
    assert load_model(path).facts == replace(read_facts(file), history=())


class _Evil:
    """Unpickled, it leaves a file behind."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.trace,))


@pytest.mark.parametrize("argument", ["checkpoint_path", "pretrained_cfg", "cache_dir"])
def test_code_that_a_model_file_names_is_not_run(
    model: Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argument: str
) -> None:
    (tmp_path / "evil.pth").write_bytes(pickle.dumps(_Evil(tmp_path / "exploded")))
    arguments = {**model.facts.model_args, argument: str(tmp_path / "evil.pth")}
    path = rewrite(model, tmp_path / "model.safetensors", model_args=arguments)

    def never(*args: object, **kwargs: object) -> None:
        raise AssertionError("called")

    monkeypatch.setattr(timm, "create_model", never)
    with pytest.raises(ModelError, match=argument) as caught:
        load_model(path, device="cpu")
    assert caught.value.remedy.startswith("Do not use this file.")
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model_args": {"depths": (1, 1, 1, 1), "dims": (4, 8, 8, 3_000)}},
            "more than 4 times what its weights hold",
        ),
        ({"backbone": "local-dir:/tmp/evil"}, "has no model 'local-dir:/tmp/evil'"),
    ],
)
def test_a_model_file_that_asks_for_another_network_is_refused(
    model: Classifier, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    path = rewrite(model, tmp_path / "model.safetensors", **changes)
    with pytest.raises(BackboneError, match=message):
        load_model(path, device="cpu")


def test_what_is_no_model_file_is_refused(folder: Path, tiny_run: Path, tmp_path: Path) -> None:
    file = folder / "model.safetensors"
    damaged = bytearray(file.read_bytes())
    damaged[-5] ^= 1
    (tmp_path / "damaged.safetensors").write_bytes(damaged)
    save_file(load_file(file), tmp_path / "plain.safetensors")
    (tmp_path / "text.safetensors").write_text("no tensors")
    for path, message in (
        (tmp_path / "damaged.safetensors", "are not those that were exported: SHA-256"),
        (tmp_path / "plain.safetensors", "does not name its classes"),
        (tmp_path / "absent.safetensors", "no model file at "),
        (tmp_path / "text.safetensors", "is not a model file"),
        (folder / "model.onnx", "is an ONNX file"),
        (tiny_run, r"is a folder without a model\.safetensors"),
    ):
        with pytest.raises(ModelError, match=message) as caught:
            load_model(path, device="cpu")
        assert "xport" in caught.value.remedy or "load_onnx" in caught.value.remedy


def a_change(action: str = "add", **fields: object) -> Change:
    plain: dict[str, object] = {
        "action": action,
        "date": "2026-01-02T03:04:05+00:00",
        "clinit": "0.1.0",
        "task": 3,
        "classes": ("d",),
        "images": {"d": 20},
        "data": {},
        "settings": {},
        "accuracy": {"all": Top1(3, 4)},
    }
    return Change(**{**plain, **fields})  # type: ignore[arg-type]


def test_the_card_names_classes_accuracy_data_and_command_and_no_licence(
    folder: Path, tiny_run: Path, facts: ModelFacts
) -> None:
    assert ModelCard.load(folder / "README.md").data.to_dict() == {
        "library_name": "timm",
        "metrics": ["accuracy"],
        "pipeline_tag": "image-classification",
        "tags": ["image-classification", "timm", "clinit", "continual-learning"],
    }
    text, info = (folder / "README.md").read_text(), read_record(tiny_run).info
    assert "# license: to be stated by the owner of this model" in text.split("---")[1]
    assert "# convnextv2\\_atto with 5 classes" in text
    assert "3 classes of the pretrained head and 2 that arrived later" in text
    for task in (1, 2):
        (name,) = (n for n, t in zip(facts.class_names, facts.tasks, strict=True) if t == task)
        assert f"* 1 arrived in task {task}: {name}" in text
    for group, part in facts.history[0].accuracy.items():
        assert f"| {group} | {part.correct} | {part.total} | {part.percent:.2f} % |" in text
    assert list(facts.history[0].accuracy) == ["old", "new", "all", "task 1", "task 2"]
    assert info["new"]["manifest_digest"] in text
    assert shlex.join(info["command"]) in text
    assert f"| {info['started']} | trained | - | 2 | 12 |" in text


def test_the_python_of_the_card_runs(
    folder: Path, tiny_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    image = next((tiny_run.parent / "new" / "val").rglob("*.png"))
    exec(code.replace("FOLDER", str(folder)).replace("photo.jpg", str(image)), {})
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert sorted(name for name, _ in lines) == ["a", "b", "c", "d", "e"]
    assert sum(float(score) for _, score in lines) == pytest.approx(1, abs=1e-4)


def test_text_from_data_is_shown_letter_by_letter(facts: ModelFacts) -> None:
    change = a_change(
        classes=(HOSTILE,),
        images={HOSTILE: 3},
        date="| x |",
        data={"root": HOSTILE + "\n```\n# gone", "command": ["```", HOSTILE]},
        settings={"x": "```\n", "y": "$backbone ${base}"},
    )
    names = (HOSTILE, *facts.class_names[1:4], HOSTILE)
    text = card(replace(facts, class_names=names, history=(change,)))
    assert "license" not in ModelCard(text).data.to_dict()  # type: ignore[no-untyped-call]
    blocks = re.findall(r"^```(\w*)\n(.*?)\n```$", text, re.DOTALL | re.MULTILINE)
    assert [language for language, _ in blocks] == ["python", "", "", "json"]
    told = json.loads(blocks[-1][1].replace("\\u202e", "").replace("\\xff", ""))
    assert list(told["classes"].values()) == [3]
    assert told["settings"] == change.settings
    outside = re.sub(r"^```\w*\n.*?\n```$", "", text, flags=re.DOTALL | re.MULTILINE)
    for mark in ("<script>", "\n---\nlicense", "[x](", "**b**", "![", "http://", "\u202e", "`<"):
        assert mark not in outside
    assert outside.count("</details>") == outside.count("<details><summary>") == 2
    assert r"\</details\>\\x0a---\\x0alicense: mit \| \[x\](http\://evil)" in outside
    assert text.encode()  # no half character


def test_long_lists_are_folded_and_the_last_measured_accuracy_is_shown(facts: ModelFacts) -> None:
    names = tuple(f"class {number}" for number in range(400))
    tasks = (0,) * 100 + (1,) * 60 + (2,) * 240
    later = (a_change("add"), a_change("rename", accuracy={}, task=None, images={}))
    history = (*facts.history, *later)
    text = card(replace(facts, class_names=names, tasks=tasks, history=history))
    assert "<details><summary>100 of the pretrained head</summary>\n\nclass 0, class 1," in text
    assert "* 60 arrived in task 1: class 100, class 101," in text
    assert "<details><summary>240 arrived in task 2</summary>\n\nclass 160," in text
    assert "Top-1 when the classes were last added (2026-01-02T03:04:05+00:00):" in text
    assert "| all | 3 | 4 | 75.00 % |" in text
    assert "| 2026-01-02T03:04:05+00:00 | renamed | - | 1 | - | 0.1.0 |" in text
    unknown = card(replace(facts, history=()))
    assert "Not known: no test image was evaluated." in unknown
    assert "exported by a version of clinit that kept none" in unknown


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"loss": "ce", "method": "rehearsal"}, None),
        ({}, None),
        ({"loss": "mse", "method": "rehearsal"}, "trained with squared error"),
        ({"loss": "ce", "method": "ridge"}, "solved (ridge)"),
    ],
)
def test_scores_that_are_no_probabilities_are_pointed_out(
    facts: ModelFacts, tiny_onnx: Export, config: dict[str, str], words: str | None
) -> None:
    found = replace(facts, record={"id": "x", "config": config}, temperature=None)
    assert (found.caution is None) == (words is None)
    assert words is None or words in card(found)
