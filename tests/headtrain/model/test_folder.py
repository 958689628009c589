"""Model folders: what is in them, what timm and the Hub read of them, and what is refused."""

import json
import pickle
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm
import timm.data
from huggingface_hub import ModelCard
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from clinit.errors import BackboneError, ClinitError, ModelError
from clinit.extract.cache.head import Top1
from clinit.extract.network.transform import make_transform
from clinit.files.documents import content_sha256
from clinit.headtrain.model import storage
from clinit.headtrain.model.card import card
from clinit.headtrain.model.engine import MODEL_FILE
from clinit.headtrain.model.export import Export
from clinit.headtrain.model.facts import METADATA, Change, ModelFacts
from clinit.headtrain.model.model import Model, load_model
from clinit.headtrain.model.network import data_config, described as description_of, engine_of
from clinit.headtrain.model.storage import read_facts, write_model
from tests.snapshots import check_snapshot

HOSTILE_NAMES = ("a [b](c)", "line\nbreak | <b>", "🦜 ---", "d", 'quote"\\')


@pytest.fixture(scope="module")
def folder(tiny_onnx: Export) -> Path:
    return tiny_onnx.path


@pytest.fixture(scope="module")
def facts(model: Model) -> ModelFacts:
    return model.facts


def write_network(network: nn.Module, model: Model, out: Path, **options: bool) -> None:
    """Write a model with a network that is not checked."""
    text = description_of(model.facts, engine_of(model), network)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("clinit.headtrain.model.network.network_of", lambda model: (network, text))
        write_model(model, out, **options)


def network_of(model: Model) -> nn.Module:
    return engine_of(model).backbone.network


def altered(model: Model, name: str | None = None, args: Any = None, **transform: Any) -> Model:
    """Return a model whose network is described in another way."""
    engine = engine_of(model)
    config = engine.backbone.config
    config = replace(config, model_args=config.model_args if args is None else args)
    backbone = replace(engine.backbone, config=config)
    engine = replace(engine, backbone=backbone, transform=replace(engine.transform, **transform))
    facts = replace(model.facts, backbone=name or model.facts.backbone)
    return replace(model, facts=facts, engine=engine)


def test_the_configuration_is_what_timm_keeps_of_a_model(
    folder: Path, model: Model, facts: ModelFacts
) -> None:
    network = timm.create_model(f"local-dir:{folder}", pretrained=True)
    assert network.pretrained_cfg["label_names"] == list(facts.class_names)
    assert network.pretrained_cfg["label_descriptions"]["d"] == "d"
    found = timm.data.resolve_model_data_config(network)
    assert found["input_size"] == [3, 32, 32]
    assert make_transform("timm", found) == engine_of(model).transform
    assert "license" not in network.pretrained_cfg  # weights of a file are under any licence
    assert "url" not in (folder / "config.json").read_text()


@pytest.mark.parametrize("mode", ["center", "squash"])
@pytest.mark.parametrize("kind", ["timm", "paper"])
@pytest.mark.parametrize(
    ("side", "fraction"), [(224, 0.9), (224, 0.875), (288, 0.95), (299, 0.8975), (64, 1.0)]
)
def test_timms_words_make_the_same_transform_again(
    kind: str, mode: str, side: int, fraction: float
) -> None:
    config = {"input_size": (3, side, side), "crop_pct": fraction, "crop_mode": mode}
    moments = {"mean": (0.5, 0.4, 0.3), "std": (0.2, 0.3, 0.4), "interpolation": "bicubic"}
    transform = make_transform(kind, {**config, **moments})
    assert make_transform("timm", data_config(transform)) == transform


@pytest.mark.parametrize("change", [{"crop": (32, 24)}, {"resize": (500, 33)}])
def test_a_transform_that_timm_has_no_words_for_is_exported_to_a_file_only(
    model: Model, tmp_path: Path, change: dict[str, Any]
) -> None:
    with pytest.raises(ModelError, match="timm has no settings") as caught:
        write_network(network_of(model), altered(model, **change), tmp_path / "model")
    assert "--out FILE.safetensors" in caught.value.remedy
    assert list(tmp_path.iterdir()) == []


def test_only_the_model_file_counts_for_clinit(
    folder: Path, tmp_path: Path, facts: ModelFacts
) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "model.safetensors").symlink_to(folder / "model.safetensors")
    (copy / "config.json").write_text(json.dumps({"label_names": ["other"]}))
    (copy / "pytorch_model.bin").write_bytes(b"not unpickled")
    assert load_model(copy, device="cpu").facts == facts


def test_a_network_for_any_size_of_image_has_its_own_position_embedding_in_timm(
    model: Model, tmp_path: Path
) -> None:
    args: dict[str, Any] = {"dynamic_img_size": True, "depth": 1, "embed_dim": 12, "num_heads": 2}
    name = "vit_small_patch14_dinov2"  # for 518 pixels
    network = timm.create_model(name, num_classes=5, **args).eval()
    write_network(network, altered(model, name, args, crop=(28, 28), resize=28), tmp_path / "model")
    built = timm.create_model(f"local-dir:{tmp_path / 'model'}", pretrained=True)
    assert built.state_dict()["pos_embed"].equal(network.state_dict()["pos_embed"])


def test_names_of_all_kinds_come_back_and_nothing_is_overwritten(
    model: Model, tmp_path: Path
) -> None:
    other = model.rename(dict(zip(model.class_names, "12345", strict=True)))
    other = replace(other, facts=replace(other.facts, class_names=HOSTILE_NAMES), memory=None)
    network = network_of(model)
    write_network(network, other, tmp_path / "model")
    assert load_model(tmp_path / "model", device="cpu").facts.class_names == HOSTILE_NAMES
    built = timm.create_model(f"local-dir:{tmp_path / 'model'}", pretrained=True)
    assert built.pretrained_cfg["label_names"] == list(HOSTILE_NAMES)
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("nowhere")
    for name in ("folder", "link"):
        with pytest.raises(ModelError, match=r"never replaced: it is (no model|a link)"):
            write_network(network, other, tmp_path / name, overwrite=True)


def test_a_folder_is_written_whole_or_not_at_all(
    folder: Path, model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(model: Model) -> str:
        raise OSError(28, "No space left on device")

    network = network_of(load_model(folder, device="cpu"))
    with monkeypatch.context() as patch:
        patch.setattr(storage, "card", fail)
        with pytest.raises(ClinitError, match="No space left on device"):
            write_network(network, model, tmp_path / "other")
    deeper = altered(model, args={"depths": (1, 1, 1, 2), "dims": (4, 8, 8, 12)})
    with pytest.raises(ModelError, match="does not build the same convnextv2_atto"):
        write_network(network, deeper, tmp_path / "model")
    network.get_classifier().register_forward_hook(  # type: ignore[operator]
        lambda module, inputs, output: output + 1
    )
    with pytest.raises(ModelError, match=r"does not build the same convnextv2_atto .* differ by"):
        write_network(network, model, tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def described(**changes: object) -> Callable[[str], str]:
    """Change the description of a model, and seal it again as an honest writer would."""

    def changed(text: str) -> str:
        content: dict[str, Any] = json.loads(text) | changes
        del content["sha256"]
        return json.dumps({**content, "sha256": content_sha256(content)})

    return changed


def description(folder: Path) -> str:
    with safe_open(folder / MODEL_FILE, framework="numpy") as opened:
        return str(opened.metadata()[METADATA])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: "[]", "it contains []"),
        (lambda text: "{", "Expecting property name"),
        (lambda text: text.replace('"d"', '"q"'), "it has changed"),
        (described(format="clinit-model/9"), "clinit-model/9"),
        (described(tasks=None), "tasks"),
        (described(tasks=[0]), "1 tasks for 5 class names"),
        (described(history=[{"action": "sold"}]), "'sold'"),
        (described(transform={}), "transform"),
    ],
)
def test_a_description_of_another_layout_is_refused(
    folder: Path, tmp_path: Path, change: Callable[[str], str], message: str
) -> None:
    path = tmp_path / "other.safetensors"
    save_file(load_file(folder / MODEL_FILE), path, {METADATA: change(description(folder))})
    with pytest.raises(ModelError, match=re.escape(message)) as caught:
        load_model(path)
    assert str(path) in str(caught.value)


def test_a_model_of_an_earlier_version_is_read(folder: Path, tmp_path: Path) -> None:
    content = json.loads(description(folder))
    del content["sha256"], content["history"]
    text, path = json.dumps({**content, "format": "clinit-model/1"}), tmp_path / "older.safetensors"
    save_file(load_file(folder / MODEL_FILE), path, metadata={METADATA: text})
    facts = load_model(path).facts
    assert replace(facts, digest="") == replace(
        read_facts(folder / MODEL_FILE), history=(), digest=""
    )


class _Evil:
    """Unpickled, it leaves a file behind."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.trace,))


@pytest.mark.parametrize("argument", ["checkpoint_path", "pretrained_cfg", "cache_dir"])
def test_code_that_a_model_file_names_is_not_run(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argument: str
) -> None:
    (tmp_path / "evil.pth").write_bytes(pickle.dumps(_Evil(tmp_path / "exploded")))
    own, path = engine_of(model).backbone.config.model_args, tmp_path / "model.safetensors"
    evil = altered(model, args={**own, argument: str(tmp_path / "evil.pth")})
    write_network(network_of(model), evil, path)

    monkeypatch.setattr(timm, "create_model", lambda *_, **__: pytest.fail("called"))
    with pytest.raises(ModelError, match=argument) as caught:
        load_model(path, device="cpu")
    assert caught.value.remedy.startswith("Do not use this file.")
    assert not (tmp_path / "exploded").exists()


def test_a_model_file_that_asks_for_another_network_is_refused(
    model: Model, tmp_path: Path
) -> None:
    path = tmp_path / "model.safetensors"
    write_network(network_of(model), altered(model, "local-dir:/tmp/evil"), path)
    with pytest.raises(BackboneError, match="has no model 'local-dir:/tmp/evil'"):
        load_model(path, device="cpu")


def test_what_is_no_model_file_is_refused(folder: Path, tiny_run: Path, tmp_path: Path) -> None:
    file = folder / "model.safetensors"
    damaged = bytearray(file.read_bytes())
    damaged[-5] ^= 1
    (tmp_path / "damaged.safetensors").write_bytes(damaged)
    save_file(load_file(file), tmp_path / "plain.safetensors")
    (tmp_path / "text.safetensors").write_text("no tensors")
    for path, message in (
        (tmp_path / "damaged.safetensors", "SHA-256"),
        (tmp_path / "plain.safetensors", "does not name its classes"),
        (tmp_path / "absent.safetensors", "no model at "),
        (tmp_path / "text.safetensors", "is not a model file, or damaged"),
        (tiny_run, r"without a model\.safetensors"),
    ):
        with pytest.raises(ModelError, match=message):
            load_model(path, device="cpu")


def a_change(action: Any = "add", **fields: Any) -> Change:
    plain = {"task": 3, "classes": ("d",), "images": {"d": 20}, "accuracy": {"all": Top1(3, 4)}}
    return Change(action=action, date="2026-01-02", clinit="0.1.0", **{**plain, **fields})


def test_the_card_shows_classes_accuracy_and_history_but_no_licence_path_or_command(
    folder: Path, model: Model, facts: ModelFacts
) -> None:
    assert ModelCard.load(folder / "README.md").data.to_dict() == {
        "library_name": "timm",
        "metrics": ["accuracy"],
        "pipeline_tag": "image-classification",
        "tags": ["image-classification", "timm", "clinit", "continual-learning"],
    }
    history = (
        a_change("run", task=None, data={"new": "caches/new", "command": ["clinit", "a b"]}),
        a_change("add", settings={"iterations": 200}),
        a_change("rename", accuracy={}, task=None, images={}),
    )
    names, tasks = [f"class {row}" for row in range(70)], [0] * 3 + [1] * 6 + [2] * 61
    made = replace(facts, class_names=tuple(names), tasks=tuple(tasks), temperature=None)
    one, other = (card(replace(model, facts=replace(made, history=each))) for each in (history, ()))
    check_snapshot("model_card", one + other.partition("## Accuracy")[2])


def test_the_python_of_the_card_runs(
    folder: Path, tiny_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    image = min((tiny_run.parent / "new" / "val").rglob("*.png"))
    exec(code.replace("FOLDER", str(folder)).replace("photo.jpg", str(image)), {})
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert sorted(name for name, _ in lines) == ["a", "b", "c", "d", "e"]
    assert sum(float(score) for _, score in lines) == pytest.approx(1, abs=1e-4)
