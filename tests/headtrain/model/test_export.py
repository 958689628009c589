"""Models and heads of a recorded run."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from clinit.errors import BackboneError, CacheError, ClinitError, HeadError, ModelError, RecordError
from clinit.extract.cache.head import Head, read_head, write_head
from clinit.extract.cache.read import open_cache
from clinit.extract.work.recorded import reload
from clinit.headtrain.model.export import Export, TrainedRun, export_model
from clinit.headtrain.model.model import load_model
from clinit.headtrain.model.network import assemble, engine_of, load_files, loading_line
from clinit.headtrain.model.reading import Reading
from clinit.headtrain.model.storage import is_head_file, read_facts, write_model
from clinit.headtrain.protocol.record.format import read_info, read_record

MODELS: Mapping[str, Mapping[str, Any]] = {
    "convnextv2_atto": {"depths": (1, 1, 1, 1), "dims": (4, 8, 8, 12)},
    "vit_tiny_patch16_224": {
        **{"img_size": 32, "patch_size": 8, "embed_dim": 12, "depth": 2, "num_heads": 2}
    },
    "resnet18": {"layers": (1, 1, 1, 1), "channels": (8, 8, 8, 12)},
    "mobilenetv2_035": {"pad_type": "same"},
}
Seal = Callable[..., None]


@pytest.fixture
def run(tiny_run: Path, tmp_path: Path) -> Path:
    """A record that a test may change; its cache is not to be changed."""
    return Path(shutil.copytree(tiny_run, tmp_path / "record"))


@pytest.fixture(scope="module")
def exported(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Export:
    """A model file, whose probabilities are those of the head as it was trained."""
    return export_model(tiny_run, tmp_path_factory.mktemp("model") / "model.safetensors")


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the twenty test images of the tiny run be enough."""
    monkeypatch.setattr("clinit.headtrain.heads.temperature.LEAST_ROWS", 10)


@pytest.fixture(scope="module")
def model(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Export:
    """A model folder with a temperature and an ONNX form."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("clinit.headtrain.heads.temperature.LEAST_ROWS", 10)
        return export_model(tiny_run, tmp_path_factory.mktemp("model") / "scenes", onnx=True)


def noise() -> torch.Tensor:
    return torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def in_plain_timm(model: Path, exported: Export) -> torch.nn.Module:
    network: torch.nn.Module = eval(loading_line(exported.model, model), {"timm": timm})
    return network.eval()


@pytest.mark.slow
def test_timm_alone_loads_every_architecture_and_gives_features_times_head(
    make_run: Callable[..., Path], tmp_path: Path
) -> None:
    code = ["import sys, timm, torch", "images = torch.load('images.pt')"]
    torch.save(noise(), tmp_path / "images.pt")
    expected = {}
    for name, arguments in MODELS.items():
        run = make_run(tmp_path / name, name, **arguments)
        exported = export_model(run, tmp_path / f"{name}.safetensors")
        code.append(f"network = {loading_line(exported.model, exported.path)}.eval()")
        code.append(f"torch.save(network(images).detach(), {name + '.pt'!r})")
        backbone, _ = reload(open_cache(tmp_path / name / "caches" / "base").split("train"))
        head, features = read_head(run / "head.safetensors"), backbone.features(noise()).numpy()
        scale = float((np.abs(features) @ np.abs(head.weight).T).max())
        expected[name] = (features @ head.weight.T + head.bias, scale)
    code.append("assert not [name for name in sys.modules if name.startswith('clinit')]")
    subprocess.run([sys.executable, "-I", "-c", "\n".join(code)], cwd=tmp_path, check=True)
    for name, (logits, scale) in expected.items():
        found = torch.load(tmp_path / f"{name}.pt").numpy()
        assert found.shape == (3, 5)
        np.testing.assert_allclose(found, logits, rtol=0, atol=1e-5 * scale)


def test_a_network_that_does_not_compute_the_head_is_refused(
    exported: Export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = load_model(exported.path, device="cpu")
    wide = Head(np.zeros((2, 13), np.float32), np.zeros(2, np.float32), ("a", "b"))
    with pytest.raises(BackboneError, match="size mismatch"):
        assemble(engine_of(opened).backbone, wide)

    def more(*arguments: Any) -> torch.nn.Module:
        network = assemble(*arguments)
        classifier = network.get_classifier()  # type: ignore[operator]
        classifier.register_forward_hook(lambda module, inputs, output: output.softmax(1))
        return network

    monkeypatch.setattr("clinit.headtrain.model.network.assemble", more)
    with pytest.raises(BackboneError, match="does not give the logits of the head"):
        write_model(opened, tmp_path / "model")
    narrow, build = Head(np.zeros((2, 12), np.float32), np.ones(2, np.float32)), timm.create_model

    def unbiased(*names: Any, **arguments: Any) -> torch.nn.Module:
        network = build(*names, **arguments)
        network.get_classifier().bias = None
        return network

    monkeypatch.setattr(timm, "create_model", unbiased)
    with pytest.raises(BackboneError, match="no linear classifier with a bias"):
        assemble(engine_of(opened).backbone, narrow)
    assert list(tmp_path.iterdir()) == []


def test_the_file_names_all_that_a_user_needs(exported: Export, tiny_run: Path) -> None:
    with safe_open(exported.path, framework="numpy") as file:
        metadata = file.metadata()
    assert list(metadata) == ["clinit_model"]
    content = json.loads(metadata["clinit_model"])
    assert (content["format"], content["tasks"]) == ("clinit-model/4", [0, 0, 0, 1, 2])
    assert content["model_args"] == "{'depths': (1, 1, 1, 1), 'dims': (4, 8, 8, 12)}"
    assert content["transform"]["resize"] == 36  # 32 / 0.875, rounded down
    record = read_record(tiny_run)
    assert content["fingerprint"] == record.info["base"]["fingerprint"]
    assert content["record"]["config"] == record.info["config"]
    facts = read_facts(exported.path)
    assert facts == exported.model.facts
    (change,) = facts.history
    assert (change.action, change.task, change.clinit) == ("run", None, version("clinit"))
    assert change.date == record.info["started"]
    assert change.images == {"d": 6, "e": 6}
    assert change.data["new"]["manifest"] == record.info["new"]["manifest_digest"]
    assert change.settings == record.info["config"]


def test_the_same_run_gives_the_same_file_wherever_its_cache_is(
    exported: Export, run: Path, tmp_path: Path, seal_record: Seal, tiny_run: Path
) -> None:
    second = export_model(tiny_run, tmp_path / "second.safetensors").path
    assert exported.path.read_bytes() == second.read_bytes()
    (tmp_path / "caches").symlink_to(tiny_run.parent / "caches")
    seal_record(run, base={**(read_info(run)["base"] or {}), "path": "caches/base"})
    export_model(run, tmp_path / "found.safetensors")
    seal_record(run, base={**(read_info(run)["base"] or {}), "path": "caches/elsewhere"})
    with pytest.raises(CacheError, match="not at caches/elsewhere: nothing exists there") as caught:
        export_model(run, tmp_path / "model.safetensors")
    assert "--weights FILE" in caught.value.remedy
    weights = tiny_run.parent / "weights.safetensors"
    without = export_model(run, tmp_path / "by_weights.safetensors", weights=weights)
    assert [note.partition(":")[0] for note in without.notes] == [
        "the probabilities come from the head as it was trained"
    ]


def test_changed_parameters_of_the_backbone_are_exported(
    exported: Export, run: Path, tmp_path: Path, seal_record: Seal
) -> None:
    name = "stages.3.blocks.0.mlp.fc1.weight"
    changed = load_file(exported.path)[name] + np.float32(0.1)
    save_file({name: changed}, run / "top.safetensors")
    seal_record(run)
    after = export_model(run, tmp_path / "after")
    assert [*after.run.changed] == [name]
    assert [note.partition(":")[0] for note in after.notes] == [
        "the probabilities come from the head as it was trained",
        "the model remembers nothing",
    ]
    file = after.path / "model.safetensors"
    old, new = load_file(exported.path), load_file(file)
    assert [key for key in old if not np.array_equal(old[key], new[key])] == [name]
    network = in_plain_timm(exported.path, exported)
    network.get_parameter(name).data[:] = torch.from_numpy(changed)
    with torch.no_grad():
        assert torch.equal(in_plain_timm(file, after)(noise()), network(noise()))
    with pytest.raises(HeadError, match="training has changed the backbone"):
        export_model(run, tmp_path / "head.npz")


def with_head(change: Callable[[Head], Head]) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        write_head(change(read_head(run / "head.safetensors")), run / "head.safetensors")

    return damage


def changes(name: str, value: np.ndarray) -> Callable[[Path], None]:
    return lambda run: save_file({name: value.astype(np.float32)}, run / "top.safetensors")


@pytest.mark.parametrize(
    ("damage", "kind", "message"),
    [
        (changes("stages.9.weight", np.zeros((2, 2))), RecordError, "no such parameter"),
        (changes("stem.0.bias", np.zeros(5)), RecordError, r"stem\.0\.bias .* \(4,\), to \(5,\)"),
        (changes("stem.0.bias", np.full(4, np.nan)), RecordError, r"stem\.0\.bias .* not finite"),
        (with_head(lambda head: replace(head, bias=head.bias * np.nan)), HeadError, "not finite"),
        (with_head(lambda head: Head(head.weight[:4], head.bias[:4])), RecordError, "5 classes"),
        (lambda run: (run / "head.safetensors").unlink(), RecordError, "holds no head"),
    ],
)
def test_a_record_that_gives_no_model_is_refused(
    run: Path,
    tmp_path: Path,
    seal_record: Seal,
    damage: Callable[[Path], None],
    kind: type[ClinitError],
    message: str,
) -> None:
    damage(run)
    seal_record(run)
    with pytest.raises(kind, match=message):
        export_model(run, tmp_path / "model.safetensors")
    assert not (tmp_path / "model.safetensors").exists()


def test_what_does_not_fit_the_run_is_refused(
    make_run: Callable[..., Path], tiny_run: Path, run: Path, tmp_path: Path, seal_record: Seal
) -> None:
    out = tmp_path / "model.safetensors"
    for name in ("random", "zero"):
        shutil.copytree(tiny_run, tmp_path / "runs" / name)
    with pytest.raises(RecordError, match="but contains 2 of them: random, zero") as caught:
        export_model(tmp_path / "runs", out)
    assert str(tmp_path / "runs" / "random") in caught.value.remedy
    with pytest.raises(RecordError, match="no run record at"):
        export_model(tmp_path / "nowhere", out)
    out.write_text("precious")
    with pytest.raises(ModelError, match="never replaced"):
        export_model(tiny_run, out, overwrite=True)
    assert out.read_text() == "precious"
    out.unlink()
    other = make_run(tmp_path / "other", "vit_tiny_patch16_224", **MODELS["vit_tiny_patch16_224"])
    told: dict[str, Any] = {**(read_info(run)["base"] or {})}
    seal_record(run, base={**told, "path": str(other.parent / "caches" / "base")})
    with pytest.raises(CacheError, match="backbone, weights, model_args, transform differ"):
        export_model(run, out)
    state = load_file(tiny_run.parent / "weights.safetensors")
    save_file({**state, "stem.0.bias": state["stem.0.bias"] + 1}, tmp_path / "w.safetensors")
    with pytest.raises(CacheError, match=r"w\.safetensors: SHA-256"):
        export_model(tiny_run, out, weights=tmp_path / "w.safetensors")
    imported = {"backbone": "clip", "dtype": "float16"}
    seal_record(run, base={**(read_info(run)["base"] or {}), "fingerprint": imported})
    with pytest.raises(CacheError, match=r"no network of timm .* imported from 'clip'"):
        export_model(run, out)


def test_the_held_out_rows_are_those_that_the_run_was_evaluated_on(tiny_run: Path) -> None:
    run = TrainedRun.read(tiny_run)
    rows, last = run.rows("val"), run.record.evaluations.filter(task=2, iteration=8)
    np.testing.assert_array_equal(rows.counts(), last.sort("row")["total"])
    logits = rows.features.astype(np.float32) @ run.head.weight.T + run.head.bias
    assert (logits.argmax(1) == rows.labels).sum() == last["correct"].sum()


def test_timm_clinit_and_onnxruntime_give_the_same_probabilities(
    tiny_run: Path, model: Export, images: list[Path]
) -> None:
    backbone, transform = reload(open_cache(tiny_run.parent / "caches" / "base").split("train"))
    head = read_head(tiny_run / "head.safetensors")
    (batch,) = load_files(images, transform, Reading(batch_size=99))
    pixels = transform.normalise(batch.pixels)
    logits = backbone.features(pixels).numpy() @ head.weight.T + head.bias
    expected = torch.from_numpy(logits / model.model.facts.temperature.value).softmax(1)
    network = timm.create_model(f"local-dir:{model.path}", pretrained=True).eval()
    with torch.inference_mode():
        torch.testing.assert_close(network(pixels).softmax(1), expected, rtol=1e-4, atol=1e-6)
    predictors = load_model(model.path, device="cpu"), load_model(model.path / "model.onnx")
    for predictor in predictors:
        for answers, truth in zip(predictor.predict(images), expected, strict=True):
            assert {guess.row: guess.probability for guess in answers.guesses} == pytest.approx(
                dict(enumerate(truth.tolist())), rel=1e-3
            )


def test_without_a_temperature_the_head_has_the_bits_of_the_run(
    tiny_run: Path, tmp_path: Path
) -> None:
    plain = export_model(tiny_run, tmp_path / "plain.safetensors")  # 20 images are too few for one
    assert plain.model.facts.temperature is None
    head = read_head(tiny_run / "head.safetensors")
    found = engine_of(load_model(plain.path)).backbone.head
    assert found.weight.tobytes() == head.weight.tobytes()


def with_base(run: TrainedRun, **told: Any) -> TrainedRun:
    """Return a run whose record says this of its base cache; None: it says nothing of it."""
    info = run.record.info
    base = {name: each for name, each in {**(info["base"] or {}), **told}.items() if each}
    return replace(run, record=replace(run.record, info={**info, "base": base}))  # type: ignore[typeddict-item]


@pytest.mark.parametrize(
    ("name", "split", "differs"),
    [
        ("manifest_digest", "train", "its train rows differ"),
        ("features_digest", "train", "its train rows differ"),
        ("val_manifest_digest", "val", "its val rows differ"),
        ("val_features_digest", "val", "its val rows differ"),
        ("fingerprint", "val", "timm differ"),
    ],
)
def test_other_rows_than_those_of_the_run_are_refused(
    tiny_run: Path, name: str, split: str, differs: str
) -> None:
    found = TrainedRun.read(tiny_run)
    fingerprint = {**found.record.info["new"]["fingerprint"], "timm": "0.0.1"}
    run = with_base(found, **{name: fingerprint if name == "fingerprint" else "0" * 64})
    with pytest.raises(CacheError, match=differs):
        run.rows(split)
    if name != "fingerprint":
        assert len(run.rows("val" if split == "train" else "train").labels)


def test_a_cache_that_was_moved_is_named(tiny_run: Path, tmp_path: Path) -> None:
    _, (note,) = with_base(TrainedRun.read(tiny_run), path=str(tmp_path / "gone")).temperature()
    assert f"not at {tmp_path / 'gone'}" in note
    assert "Move or link it there" in note


def test_changed_classes_keep_their_weights_but_not_the_measured_errors(
    model: Export, tmp_path: Path
) -> None:
    opened = load_model(model.path, device="cpu")
    renamed = write_model(opened.rename({"d": "dog"}), tmp_path / "renamed.safetensors").model.facts
    assert renamed.temperature == model.model.facts.temperature
    left = write_model(opened.remove(["d"]), tmp_path / "left").model.facts
    assert left.temperature == model.model.facts.temperature.unmeasured
    text = (tmp_path / "left" / "README.md").read_text()
    assert "fitted on 20 tested images; the error that is left was not measured" in text


def test_a_head_alone_has_the_rows_of_the_model(
    tiny_run: Path, model: Export, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("clinit.headtrain.heads.temperature.LEAST_ROWS", 10)
    out = tmp_path / "head.npz"
    exported, head = export_model(tiny_run, out), read_head(out)
    classifier = engine_of(load_model(model.path, device="cpu")).backbone.head
    assert head.weight.tobytes() == classifier.weight.tobytes()
    assert head.class_names == model.model.facts.class_names
    assert exported.model.facts.temperature == model.model.facts.temperature
    assert head.origin["tasks"] == list(model.model.facts.tasks)
    assert head.origin["temperature"]["value"] == exported.model.facts.temperature.value
    assert [is_head_file(each) for each in (out, model.path / "model.safetensors")] == [True, False]
    with pytest.raises(ModelError, match="there is already a model at"):
        export_model(tiny_run, out)
