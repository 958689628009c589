import json
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
from PIL import Image

from clinit.errors import BackboneError, ClinitError, ModelError
from clinit.extract.network.transform import Transform, make_transform
from clinit.headtrain.model.export import export_run
from clinit.headtrain.model.folder import (
    TRANSFORM_LINE,
    data_config,
    loading_line,
    model_file_of,
    read_whole,
    write_model_folder,
)
from clinit.headtrain.model.model_file import read_facts, write_model
from clinit.headtrain.model.predict import Classifier, find_images, load_model

HOSTILE_NAMES = ("a [b](c)", "line\nbreak | <b>", "🦜 ---", "d", 'quote"\\')


@pytest.fixture(scope="module")
def folder(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_run(tiny_run, tmp_path_factory.mktemp("model") / "scenes").path


@pytest.fixture(scope="module")
def model(folder: Path) -> Classifier:
    return load_model(folder, device="cpu")


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
        out = export_run(run, tmp_path / f"it's {name}" / "a [model]").path
        images = find_images([run.parent / "new" / "val"])
        predictions = load_model(out, device="cpu").predict(images)
        expected.append([each.guesses[0].name for each in predictions])
        code += [
            f"model = {loading_line(out)}.eval()",
            f"transform = {TRANSFORM_LINE}",
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


def test_the_model_file_of_a_folder_is_that_of_a_single_export(
    folder: Path, tiny_run: Path, tmp_path: Path
) -> None:
    single = export_run(tiny_run, tmp_path / "model.safetensors").path
    assert (folder / "model.safetensors").read_bytes() == single.read_bytes()
    assert load_model(folder, device="cpu").facts == load_model(single, device="cpu").facts
    assert model_file_of(single) == single


def test_the_configuration_is_what_timm_keeps_of_a_model(folder: Path) -> None:
    network = timm.create_model(f"local-dir:{folder}", pretrained=True)
    facts = read_facts(folder / "model.safetensors")
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
    assert "url" not in json.dumps(json.loads((folder / "config.json").read_text()))


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
    transform = Transform(resize, (32, 32), "bicubic", (0.5,) * 3, (0.25,) * 3)
    if isinstance(resize, tuple):
        transform = replace(transform, crop=(32, 28))
    theirs = timm.data.create_transform(**data_config(transform))
    pixels = np.random.default_rng(0).integers(0, 256, (70, 90, 3), dtype=np.uint8)
    ours = transform.normalise(transform.to_input(torch.from_numpy(pixels).permute(2, 0, 1))[None])
    grey_level = 1 / 255 / 0.25
    found = theirs(Image.fromarray(pixels))
    assert found.shape == ours[0].shape
    assert (found - ours[0]).abs().max() <= 1.01 * grey_level


def test_a_transform_that_timm_has_no_words_for_is_exported_to_a_file_only(
    model: Classifier, tmp_path: Path
) -> None:
    plain = model.facts.transform
    for transform in (replace(plain, crop=(32, 24)), replace(plain, resize=(500, 33))):
        facts = replace(model.facts, transform=transform)
        with pytest.raises(ModelError, match="timm has no words for what the images go") as caught:
            write_model_folder(tmp_path / "model", model.backbone.network, facts)
        assert "--out FILE.safetensors" in caught.value.remedy
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda content: content.update(architecture="resnet18"), "architecture"),
        (lambda content: content.update(num_classes=6), "num_classes"),
        (lambda content: content["label_names"].reverse(), "label_names"),
        (lambda content: content.pop("label_names"), "label_names"),
        (lambda content: content.update(model_args={"checkpoint_path": "/x"}), "model_args"),
        (lambda content: content["pretrained_cfg"].update(mean=[0, 0, 0]), "pretrained_cfg.mean"),
        (lambda content: content.update(pretrained_cfg=[]), "pretrained_cfg"),
        # What timm alone reads:
        (lambda content: content.update(num_features=3), "num_features"),
        (lambda content: content.update(global_pool="max"), "global_pool"),
        (lambda content: content["label_descriptions"].popitem(), "label_descriptions.e"),
        (lambda content: content["pretrained_cfg"].update(first_conv="x"), "pretrained_cfg.first"),
        (lambda content: content["pretrained_cfg"].update(file="/x"), "pretrained_cfg.file"),
    ],
)
def test_a_configuration_that_disagrees_with_the_model_file_is_refused(
    folder: Path, tmp_path: Path, change: Callable[[dict[str, Any]], object], field: str
) -> None:
    copy = edit_config(folder, tmp_path, change)
    with pytest.raises(ModelError) as caught:
        load_model(copy, device="cpu")
    assert f"{copy / 'config.json'} and " in str(caught.value)
    assert f"disagree about {field}" in str(caught.value)


def test_a_folder_of_an_earlier_version_may_say_more_to_timm(
    folder: Path, tmp_path: Path, model: Classifier
) -> None:
    copy = edit_config(folder, tmp_path, lambda content: content.update(num_features=3))
    facts = replace(model.facts, timm=None)
    write_model(model.backbone.network, facts, copy / "model.safetensors")
    assert load_model(copy, device="cpu").facts.num_classes == 5


def test_a_model_that_is_replaced_while_it_is_read_is_read_again(tmp_path: Path) -> None:
    place, readings = tmp_path / "model", 0
    place.mkdir()

    def read(replacements: int) -> int:
        nonlocal readings
        readings += 1
        if replacements >= readings:
            place.rename(tmp_path / f"{replacements}-{readings}")  # which keeps its inode
            place.mkdir()
        if replacements:
            raise BackboneError("size mismatch", remedy="")
        return readings

    with pytest.raises(BackboneError):  # the second reading failed on its own
        read_whole(place, lambda: read(1))
    assert readings == 2
    readings = 0
    with pytest.raises(ModelError, match="was replaced"):
        read_whole(place, lambda: read(2))
    assert readings == 2


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"[" * 100_000, "maximum recursion depth exceeded"),
        (b"{", "Expecting property name"),
        (b"\xff", "it is not UTF-8 text"),
        (b"{" + b" " * 2**24 + b"}", "it is larger than 16 MiB"),
    ],
)
def test_a_damaged_configuration_is_refused(
    folder: Path, tmp_path: Path, text: bytes, why: str
) -> None:
    copy = edit_config(folder, tmp_path, lambda content: None)
    (copy / "config.json").write_bytes(text)
    with pytest.raises(ModelError, match=r"config\.json is damaged: .*" + why):
        model_file_of(copy)


def test_a_configuration_that_is_no_object_is_refused(folder: Path, tmp_path: Path) -> None:
    copy = edit_config(folder, tmp_path, lambda content: None)
    (copy / "config.json").write_text("3")
    with pytest.raises(ModelError, match="disagree about everything: it holds no fields"):
        model_file_of(copy)


def test_what_lacks_in_a_folder_is_named(folder: Path, tiny_run: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"is a folder without a model\.safetensors") as caught:
        load_model(tiny_run)
    assert f"`clinit export {tiny_run} --out FOLDER`" in caught.value.remedy
    copy = edit_config(folder, tmp_path, lambda content: None)
    (copy / "config.json").unlink()
    with pytest.raises(ModelError, match=r"but no config\.json") as caught:
        load_model(copy)
    assert str(copy / "model.safetensors") in caught.value.remedy


def test_other_files_in_a_folder_do_no_harm(folder: Path, tmp_path: Path) -> None:
    copy = edit_config(folder, tmp_path, lambda content: None)
    (copy / "notes.txt").write_text("mine")
    (copy / "pytorch_model.bin").write_bytes(b"not unpickled")
    assert load_model(copy, device="cpu").facts.num_classes == 5


def test_names_of_all_kinds_come_back(model: Classifier, tmp_path: Path) -> None:
    facts = replace(model.facts, class_names=HOSTILE_NAMES)
    write_model_folder(tmp_path / "model", model.backbone.network, facts)
    assert load_model(tmp_path / "model", device="cpu").facts.class_names == HOSTILE_NAMES
    network = timm.create_model(f"local-dir:{tmp_path / 'model'}", pretrained=True)
    assert network.pretrained_cfg["label_names"] == list(HOSTILE_NAMES)


def test_nothing_is_overwritten(model: Classifier, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("nowhere")
    for name in ("folder", "link"):
        with pytest.raises(ModelError, match=r"never replaced: it is (no model|a link)"):
            write_model_folder(tmp_path / name, model.backbone.network, model.facts, overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "link"]


def test_further_files_are_written_with_the_folder_or_not_at_all(
    model: Classifier, tmp_path: Path
) -> None:
    out = tmp_path / "deep" / "model"
    extra = {"memory.safetensors": lambda path: path.write_text("rows")}
    write_model_folder(out, model.backbone.network, model.facts, extra=extra)
    assert (out / "memory.safetensors").read_text() == "rows"

    def fail(path: Path) -> None:
        path.write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(ClinitError, match="No space left on device"):
        write_model_folder(
            tmp_path / "other", model.backbone.network, model.facts, extra={"x": fail}
        )
    assert [path.name for path in tmp_path.iterdir()] == ["deep"]


def test_a_network_that_timm_does_not_build_again_is_refused(
    model: Classifier, tmp_path: Path
) -> None:
    network = load_model(model.backbone.config.weights or "", device="cpu").backbone.network
    network.get_classifier().register_forward_hook(  # type: ignore[operator]
        lambda module, inputs, output: output + 1
    )
    with pytest.raises(ModelError, match=r"does not build the same convnextv2_atto .* differ by"):
        write_model_folder(tmp_path / "model", network, model.facts)
    facts = replace(model.facts, model_args={"depths": (1, 1, 1, 2), "dims": (4, 8, 8, 12)})
    with pytest.raises(ModelError, match="does not build the same convnextv2_atto"):
        write_model_folder(tmp_path / "model", model.backbone.network, facts)
    assert list(tmp_path.iterdir()) == []
