import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import timm
import torch
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from clinit.errors import BackboneError, CacheError, HeadError, ModelError, RecordError
from clinit.extract.arrays.import_features import ImportConfig, import_features
from clinit.extract.backbone import BackboneConfig, load_backbone
from clinit.extract.cache import open_cache
from clinit.extract.head import Head, read_head, write_head
from clinit.extract.reload import reload
from clinit.headtrain.export.assemble import assemble, check_same_logits
from clinit.headtrain.export.model_file import ModelFacts, read_facts
from clinit.headtrain.export.run import export_run
from clinit.headtrain.record.format import read_info, read_record

MODELS: Mapping[str, Mapping[str, Any]] = {
    "convnextv2_atto": {"depths": (1, 1, 1, 1), "dims": (4, 8, 8, 12)},
    "vit_tiny_patch16_224": {
        **{"img_size": 32, "patch_size": 8, "embed_dim": 12, "depth": 2, "num_heads": 2}
    },
    "resnet18": {"layers": (1, 1, 1, 1), "channels": (8, 8, 8, 12)},
    "mobilenetv2_035": {"pad_type": "same"},
}


@pytest.fixture
def run(tiny_run: Path, tmp_path: Path) -> Path:
    """A record that a test may change; its cache is not to be changed."""
    return Path(shutil.copytree(tiny_run, tmp_path / "record"))


Seal = Callable[..., None]


def noise(count: int = 3) -> torch.Tensor:
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def in_plain_timm(model: Path, facts: ModelFacts) -> torch.nn.Module:
    network: torch.nn.Module = eval(facts.loading_line(model), {"timm": timm})
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
        exported = export_run(run, tmp_path / f"{name}.safetensors")
        code.append(f"network = {exported.facts.loading_line(exported.path)}.eval()")
        code.append(f"torch.save(network(images).detach(), {name + '.pt'!r})")
        backbone, _ = reload(open_cache(tmp_path / name / "caches" / "base").split("train"))
        head = read_head(run / "head.safetensors")
        features = backbone.features(noise()).numpy()
        scale = float((np.abs(features) @ np.abs(head.weight).T).max())
        expected[name] = (features @ head.weight.T + head.bias, scale)
    code.append("assert not [name for name in sys.modules if name.startswith('clinit')]")
    subprocess.run([sys.executable, "-I", "-c", "\n".join(code)], cwd=tmp_path, check=True)
    for name, (logits, scale) in expected.items():
        found = torch.load(tmp_path / f"{name}.pt").numpy()
        assert found.shape == (3, 5)
        np.testing.assert_allclose(found, logits, rtol=0, atol=1e-5 * scale)


def test_a_network_that_does_more_than_its_classifier_is_not_exported(tiny_run: Path) -> None:
    backbone, transform = reload(open_cache(tiny_run.parent / "caches" / "base").split("train"))
    head = read_head(tiny_run / "head.safetensors")
    network = assemble(backbone, head)
    check_same_logits(network, backbone, head, transform)
    classifier = network.get_classifier()  # type: ignore[operator]
    classifier.register_forward_hook(lambda module, inputs, output: output.softmax(1))
    with pytest.raises(BackboneError, match="does not give the logits of the head"):
        check_same_logits(network, backbone, head, transform)


def test_the_metadata_says_all_that_a_user_needs(tiny_run: Path, tmp_path: Path) -> None:
    exported = export_run(tiny_run, tmp_path / "model.safetensors")
    with safe_open(exported.path, framework="numpy") as file:
        metadata = file.metadata()
    assert list(metadata) == ["clinit_model"]
    content = json.loads(metadata["clinit_model"])
    assert content["format"] == "clinit-model/4"
    assert content["class_names"][:3] == ["a", "b", "c"]
    assert sorted(content["class_names"][3:]) == ["d", "e"]
    assert content["tasks"] == [0, 0, 0, 1, 2]
    assert content["backbone"] == "convnextv2_atto"
    assert content["model_args"] == "{'depths': (1, 1, 1, 1), 'dims': (4, 8, 8, 12)}"
    assert content["transform"] == {
        "resize": 36,  # 32 / 0.875, rounded down
        "crop": [32, 32],
        "interpolation": "bicubic",
        "mean": [0.485, 0.456, 0.406],
        "std": [0.229, 0.224, 0.225],
    }
    info = read_record(tiny_run).info
    assert content["fingerprint"] == info["base"]["fingerprint"]
    assert content["record"]["id"] == info["id"]
    assert content["record"]["config"] == info["config"]
    assert read_facts(exported.path) == exported.facts


def test_the_run_is_the_first_change_of_the_model(tiny_run: Path, tmp_path: Path) -> None:
    exported = export_run(tiny_run, tmp_path / "model.safetensors")
    record = read_record(tiny_run)
    (change,) = read_facts(exported.path).history
    assert (change.action, change.task, change.clinit) == ("run", None, version("clinit"))
    assert change.date == record.info["started"]
    assert sorted(change.classes) == ["d", "e"]
    assert change.images == {"d": 6, "e": 6}
    assert change.data["run"] == record.info["id"]
    assert change.data["new"]["manifest"] == record.info["new"]["manifest_digest"]
    assert change.data["base"]["cache"] == record.info["base"]["path"]
    assert change.settings == record.info["config"]
    old, new = exported.base, exported.new
    assert {group: change.accuracy[group] for group in ("old", "new", "all")} == {
        "old": {"correct": old.correct, "total": 12},
        "new": {"correct": new.correct, "total": 8},
        "all": {"correct": old.correct + new.correct, "total": 20},
    }


def test_a_path_that_is_no_text_is_kept(run: Path, tmp_path: Path, seal_record: Seal) -> None:
    weights = Path(read_info(run)["base"]["path"]).parents[1] / "weights.safetensors"
    seal_record(run, new={**read_info(run)["new"], "path": "caches/\udcff"})
    exported = export_run(run, tmp_path / "model.safetensors", weights=weights)
    assert read_facts(exported.path) == exported.facts
    assert exported.facts.history[0].data["new"]["cache"] == "caches/\udcff"


def test_the_same_run_gives_the_same_file(tiny_run: Path, tmp_path: Path) -> None:
    first = export_run(tiny_run, tmp_path / "first.safetensors").path
    second = export_run(tiny_run, tmp_path / "second.safetensors").path
    assert first.read_bytes() == second.read_bytes()


def test_the_accuracies_are_those_of_the_last_evaluation(tiny_run: Path, tmp_path: Path) -> None:
    exported = export_run(tiny_run, tmp_path / "model.safetensors")
    last = read_record(tiny_run).evaluations.filter(task=2, iteration=8)
    base, new = last.filter(pl.col("row") < 3), last.filter(pl.col("row") >= 3)
    assert (exported.base.correct, exported.base.total) == (base["correct"].sum(), 12)
    assert (exported.new.correct, exported.new.total) == (new["correct"].sum(), 8)
    percent = 100 * last["correct"].sum() / 20
    assert exported.facts.record["top1_percent"]["all"] == pytest.approx(percent)


def test_a_model_is_a_backbone_whose_rows_have_names(tiny_run: Path, tmp_path: Path) -> None:
    exported = export_run(tiny_run, tmp_path / "model.safetensors")
    facts = exported.facts
    config = BackboneConfig(name=facts.backbone, weights=exported.path, model_args=facts.model_args)
    backbone = load_backbone(config)
    assert backbone.head.class_names == facts.class_names
    assert backbone.weights_sha256 == facts.weights


def test_changed_parameters_of_the_backbone_are_exported(
    run: Path, tmp_path: Path, seal_record: Seal
) -> None:
    before = export_run(run, tmp_path / "before.safetensors")
    name = "stages.3.blocks.0.mlp.fc1.weight"
    changed = load_file(before.path)[name] + np.float32(0.1)
    save_file({name: changed}, run / "top.safetensors")
    seal_record(run)
    after = export_run(run, tmp_path / "after.safetensors")
    assert (before.num_changed, after.num_changed) == (0, changed.size)
    old, new = load_file(before.path), load_file(after.path)
    assert [key for key in old if not np.array_equal(old[key], new[key])] == [name]
    network = in_plain_timm(before.path, before.facts)
    network.get_parameter(name).data[:] = torch.from_numpy(changed)
    with torch.no_grad():
        expected = network(noise())
        assert torch.equal(in_plain_timm(after.path, after.facts)(noise()), expected)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("stages.9.weight", (2, 2), r"which has no such parameter"),
        ("stem.0.bias", (5,), r"changes stem\.0\.bias \(5,\) of the backbone, which has \(4,\)"),
    ],
)
def test_changed_parameters_that_do_not_fit_are_refused(
    run: Path,
    tmp_path: Path,
    seal_record: Seal,
    name: str,
    shape: tuple[int, ...],
    message: str,
) -> None:
    save_file({name: np.zeros(shape, np.float32)}, run / "top.safetensors")
    seal_record(run)
    with pytest.raises(RecordError, match=message):
        export_run(run, tmp_path / "model.safetensors")


def test_a_backbone_that_diverged_is_refused(run: Path, tmp_path: Path, seal_record: Seal) -> None:
    save_file({"stem.0.bias": np.full(4, np.nan, np.float32)}, run / "top.safetensors")
    seal_record(run)
    with pytest.raises(RecordError, match=r"values of stem\.0\.bias that are not finite") as caught:
        export_run(run, tmp_path / "model.safetensors")
    assert "lower learning rate" in caught.value.remedy


def test_a_head_that_diverged_is_refused(run: Path, tmp_path: Path, seal_record: Seal) -> None:
    head = read_head(run / "head.safetensors")
    head.weight[0, 0] = np.inf
    write_head(head, run / "head.safetensors")
    seal_record(run)
    with pytest.raises(HeadError, match="holds weights that are not finite") as caught:
        export_run(run, tmp_path / "model.safetensors")
    assert "diverged" in caught.value.remedy
    assert not (tmp_path / "model.safetensors").exists()


def test_a_record_without_a_head_is_refused(run: Path, tmp_path: Path, seal_record: Seal) -> None:
    (run / "head.safetensors").unlink()
    seal_record(run)
    with pytest.raises(RecordError, match=r"holds no head\.safetensors") as caught:
        export_run(run, tmp_path / "model.safetensors")
    assert "Run it again" in caught.value.remedy


def test_a_head_of_other_classes_than_the_record_is_refused(
    run: Path, tmp_path: Path, seal_record: Seal
) -> None:
    head = read_head(run / "head.safetensors")
    write_head(Head(head.weight[:4], head.bias[:4]), run / "head.safetensors")
    seal_record(run)
    with pytest.raises(RecordError, match="is not of the 5 classes of the record"):
        export_run(run, tmp_path / "model.safetensors")


def test_a_folder_of_records_asks_for_one_of_them(tiny_run: Path, tmp_path: Path) -> None:
    for name in ("random", "zero"):
        shutil.copytree(tiny_run, tmp_path / "runs" / name)
    with pytest.raises(RecordError, match="but holds 2 of them: random, zero") as caught:
        export_run(tmp_path / "runs", tmp_path / "model.safetensors")
    assert f"`clinit export {tmp_path / 'runs' / 'random'} --out FILE`" in caught.value.remedy


def test_a_folder_without_a_record_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="no run record at"):
        export_run(tmp_path, tmp_path / "model.safetensors")


def test_nothing_is_overwritten(tiny_run: Path, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_text("precious")
    for overwrite in (False, True):
        with pytest.raises(ModelError, match="never replaced: it is no model") as caught:
            export_run(tiny_run, tmp_path / "model.safetensors", overwrite=overwrite)
        assert "--out" in caught.value.remedy
    assert (tmp_path / "model.safetensors").read_text() == "precious"


def test_a_cache_that_has_moved_can_be_given(
    run: Path, tiny_run: Path, tmp_path: Path, seal_record: Seal
) -> None:
    seal_record(run, base={**read_info(run)["base"], "path": "caches/elsewhere"})
    with pytest.raises(CacheError, match="was at caches/elsewhere, where nothing is now") as caught:
        export_run(run, tmp_path / "model.safetensors")
    assert "--base CACHE" in caught.value.remedy
    assert "--weights FILE" in caught.value.remedy
    base = tiny_run.parent / "caches" / "base"
    given = export_run(run, tmp_path / "by_cache.safetensors", base=base)
    weights = tiny_run.parent / "weights.safetensors"
    without = export_run(run, tmp_path / "by_weights.safetensors", weights=weights)
    assert given.path.read_bytes() == without.path.read_bytes()


def test_another_cache_than_the_runs_is_refused(
    make_run: Callable[..., Path], tiny_run: Path, tmp_path: Path
) -> None:
    other = make_run(tmp_path / "other", "vit_tiny_patch16_224", **MODELS["vit_tiny_patch16_224"])
    base = other.parent / "caches" / "base"
    with pytest.raises(CacheError, match="not the cache that the run was trained on: ") as caught:
        export_run(tiny_run, tmp_path / "model.safetensors", base=base)
    assert "differ in backbone, weights, model_args, transform" in str(caught.value)


def test_other_weights_are_refused(tiny_run: Path, tmp_path: Path) -> None:
    state = load_file(tiny_run.parent / "weights.safetensors")
    state["stem.0.bias"] += 1
    save_file(state, tmp_path / "other.safetensors")
    weights = tmp_path / "other.safetensors"
    with pytest.raises(CacheError, match=r"other\.safetensors: SHA-256") as caught:
        export_run(tiny_run, tmp_path / "model.safetensors", weights=weights)
    assert "--weights FILE" in caught.value.remedy


def test_imported_features_have_no_network_to_export(
    run: Path, tmp_path: Path, seal_record: Seal
) -> None:
    np.save(tmp_path / "x.npy", np.eye(4, 12, dtype=np.float32))
    np.save(tmp_path / "y.npy", np.arange(4))
    config = ImportConfig(backbone="clip")
    split = import_features(tmp_path / "x.npy", tmp_path / "y.npy", tmp_path / "cache", config)
    fingerprint = split.fingerprint.without_rows.fields
    seal_record(run, base={**read_info(run)["base"], "fingerprint": fingerprint})
    for base in (None, tmp_path / "cache"):
        with pytest.raises(CacheError, match=r"no network is known .* imported from 'clip'"):
            export_run(run, tmp_path / "model.safetensors", base=base)


def test_a_head_of_another_width_is_refused(tiny_run: Path) -> None:
    backbone, _ = reload(open_cache(tiny_run.parent / "caches" / "base").split("train"))
    wide = Head(np.zeros((2, 13), np.float32), np.zeros(2, np.float32), ("a", "b"))
    with pytest.raises(HeadError, match="reads features of width 13, convnextv2_atto gives 12"):
        assemble(backbone, wide)


def test_a_classifier_without_a_bias_takes_no_head_with_one(tiny_run: Path) -> None:
    backbone, _ = reload(open_cache(tiny_run.parent / "caches" / "base").split("train"))
    backbone.network.get_classifier().bias = None  # type: ignore[operator]
    head = Head(np.zeros((2, 12), np.float32), np.ones(2, np.float32), ("a", "b"))
    with pytest.raises(BackboneError, match="has no bias, the head has one"):
        assemble(backbone, head)


def test_another_timm_than_that_of_the_features_is_noted(
    run: Path, tmp_path: Path, seal_record: Seal
) -> None:
    base = read_info(run)["base"]
    base["fingerprint"]["timm"] = "0.9.0"
    seal_record(run, base=base)
    weights = Path(base["path"]).parents[1] / "weights.safetensors"
    exported = export_run(run, tmp_path / "model.safetensors", weights=weights)
    assert "the features were extracted with timm 0.9.0, this is timm" in exported.notes[0]


def test_a_run_without_test_images_exports_too(
    run: Path, tmp_path: Path, without_test_images: Callable[[Path], None]
) -> None:
    without_test_images(run)
    exported = export_run(run, tmp_path / "model.safetensors")
    assert (exported.base + exported.new).percent is None
    assert exported.facts.record["top1_percent"]["all"] is None
