"""Models whose probabilities were fitted to held-out rows, in all their forms."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch

from clinit.errors import CacheError, HeadError
from clinit.extract.cache.head import read_head
from clinit.extract.cache.read import open_cache
from clinit.extract.network.reload import reload
from clinit.headtrain.model.edit import Classes, open_model, removed, renamed, write_classes
from clinit.headtrain.model.export import Export, export_run
from clinit.headtrain.model.folder import card
from clinit.headtrain.model.head_alone import export_head, is_head_file
from clinit.headtrain.model.of_run import run_rows, temperature_of_run
from clinit.headtrain.model.onnx import load_onnx
from clinit.headtrain.model.predict import Rejection, find_images, load_model
from clinit.headtrain.record.format import RunRecord, read_record
from clinit.headtrain.rows import NEVER


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the twenty test images of the tiny run be enough."""
    monkeypatch.setattr("clinit.headtrain.temperature.LEAST_ROWS", 10)


@pytest.fixture(scope="module")
def model(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Export:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("clinit.headtrain.temperature.LEAST_ROWS", 10)
        return export_run(tiny_run, tmp_path_factory.mktemp("model") / "scenes", onnx=True)


def images_of(run: Path) -> list[Path]:
    return find_images([run.parent / side / "val" for side in ("base", "new")])


def test_the_held_out_rows_are_those_that_the_run_was_evaluated_on(tiny_run: Path) -> None:
    record = read_record(tiny_run)
    rows = run_rows(record, 5, "val")
    last = record.evaluations.filter(task=2, iteration=8)
    np.testing.assert_array_equal(rows.counts(), last.sort("row")["total"])
    head = read_head(tiny_run / "head.safetensors")
    right = (rows.features.astype(np.float32) @ head.weight.T + head.bias).argmax(1) == rows.labels
    assert right.sum() == last["correct"].sum()


def test_the_rows_of_the_classifier_are_divided(tiny_run: Path, model: Export) -> None:
    temperature = model.facts.temperature
    assert temperature is not None
    assert temperature.value != pytest.approx(1, abs=0.01)
    assert (temperature.fitted_rows, temperature.measured_rows) == (10, 10)
    head, found = read_head(tiny_run / "head.safetensors"), load_model(model.path).backbone.head
    np.testing.assert_allclose(found.weight * temperature.value, head.weight, rtol=1e-6)
    np.testing.assert_allclose(found.bias * temperature.value, head.bias, rtol=1e-6, atol=1e-9)


def test_timm_clinit_and_onnxruntime_give_the_same_probabilities(
    tiny_run: Path, model: Export
) -> None:
    temperature = model.facts.temperature
    assert temperature is not None
    images = images_of(tiny_run)
    found = load_model(model.path, device="cpu").predict(images, top=5)
    onnx = load_onnx(model.path / "model.onnx").predict(images, top=5)
    backbone, transform = reload(open_cache(tiny_run.parent / "caches" / "base").split("train"))
    head = read_head(tiny_run / "head.safetensors")
    network = timm.create_model(f"local-dir:{model.path}", pretrained=True).eval()
    from clinit.headtrain.model.predict import load_files

    (batch,) = load_files(images, model.facts, batch_size=99, workers=1)
    pixels = transform.normalise(batch.pixels)
    logits = backbone.features(pixels).numpy() @ head.weight.T + head.bias
    expected = torch.from_numpy(logits / temperature.value).softmax(1)
    with torch.inference_mode():
        torch.testing.assert_close(network(pixels).softmax(1), expected, rtol=1e-4, atol=1e-6)
    for mine, other, truth in zip(found, onnx, expected, strict=True):
        for answers in (mine, other):
            assert {guess.row: guess.probability for guess in answers.guesses} == pytest.approx(
                dict(enumerate(truth.tolist())), rel=1e-3
            )


def test_without_a_temperature_the_head_has_the_bits_of_the_run(
    tiny_run: Path, few: None, tmp_path: Path
) -> None:
    plain = export_run(tiny_run, tmp_path / "plain.safetensors", calibrated=False)
    assert plain.facts.temperature is None
    assert plain.notes == ()
    head, found = read_head(tiny_run / "head.safetensors"), load_model(plain.path).backbone.head
    assert found.weight.tobytes() == head.weight.tobytes()


def test_too_few_rows_are_noted(tiny_run: Path, tmp_path: Path) -> None:
    (note,) = export_run(tiny_run, tmp_path / "model.safetensors").notes
    assert note == (
        "the probabilities are those of the head as it was trained: a temperature needs 100"
        " held-out rows, the run has 20"
    )


def with_base(record: RunRecord, **told: Any) -> RunRecord:
    """Return a record that says this of its base cache; None: it says nothing of it."""
    base = {name: each for name, each in {**record.info["base"], **told}.items() if each}
    return replace(record, info={**record.info, "base": base})  # type: ignore[typeddict-item]


@pytest.mark.parametrize("split", ["train", "val"])
@pytest.mark.parametrize("kind", ["manifest", "features"])
def test_other_rows_than_those_of_the_run_are_refused(
    tiny_run: Path, split: str, kind: str
) -> None:
    name = f"{'val_' if split == 'val' else ''}{kind}_digest"
    record = with_base(read_record(tiny_run), **{name: "0" * 64})
    with pytest.raises(CacheError) as caught:
        run_rows(record, 5, split)
    path = record.info["base"]["path"]
    assert str(caught.value) == (
        f"the cache at {path} is not the one of the run: it differs in its {split} rows"
    )
    assert caught.value.remedy == "Say where that one is with `--base CACHE`."
    assert len(run_rows(record, 5, "val" if split == "train" else "train").labels)


@pytest.mark.parametrize("told", [None, "held-out:0.2:0"])
def test_rows_that_a_record_does_not_name_are_taken(tiny_run: Path, told: str | None) -> None:
    record = with_base(read_record(tiny_run), val_manifest_digest=told)
    assert len(run_rows(record, 5, "val").labels) == 20


def test_a_cache_of_another_backbone_is_refused(tiny_run: Path) -> None:
    record = read_record(tiny_run)
    fingerprint = {**record.info["base"]["fingerprint"], "timm": "0.0.1"}
    with pytest.raises(CacheError, match="is not the one of the run: it differs in timm"):
        run_rows(with_base(record, fingerprint=fingerprint), 5, "val")


def test_a_cache_that_was_moved_is_asked_for_and_taken(tiny_run: Path, tmp_path: Path) -> None:
    found = read_record(tiny_run)
    record = with_base(found, path=str(tmp_path / "gone"))
    head = read_head(tiny_run / "head.safetensors")
    _, (note,) = temperature_of_run(record, head, frozen=True)
    assert note == (
        "the probabilities are those of the head as it was trained: nothing is at"
        f" {tmp_path / 'gone'}, where a cache of the run was. Say where that one is with"
        " `--base CACHE`."
    )
    there = Path(found.info["base"]["path"])
    assert len(run_rows(record, 5, "val", base=there).labels) == 20
    with pytest.raises(CacheError, match="it differs in its val rows") as caught:
        run_rows(record, 5, "val", base=there, new=there)
    assert caught.value.remedy == "Say where that one is with `--new CACHE`."


def test_cached_features_are_not_those_of_a_changed_backbone(tiny_run: Path, few: None) -> None:
    record, head = read_record(tiny_run), read_head(tiny_run / "head.safetensors")
    assert temperature_of_run(record, head, frozen=True)[0] is not None
    assert temperature_of_run(record, head, frozen=False) == (
        None,
        (
            "the probabilities are those of the head as it was trained: training has changed the"
            " backbone, so that cached features are not its own",
        ),
    )


def test_rows_of_classes_that_are_ruled_out_do_not_count(tiny_run: Path) -> None:
    record, head = read_record(tiny_run), read_head(tiny_run / "head.safetensors")
    weight, bias = head.weight.copy(), head.bias.copy()
    weight[0], bias[0] = 0.0, NEVER
    left = 20 - int(run_rows(record, 5, "val").counts()[0])
    _, (note,) = temperature_of_run(record, replace(head, weight=weight, bias=bias), frozen=True)
    assert note.endswith(f"a temperature needs 100 held-out rows, the run has {left}")


def test_a_head_that_says_nothing_of_its_rows_has_no_temperature(
    tiny_run: Path, few: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clinit.headtrain.model.of_run.LEAST_ROWS", 10)
    record, head = read_record(tiny_run), read_head(tiny_run / "head.safetensors")
    _, (note,) = temperature_of_run(record, replace(head, weight=-head.weight), frozen=True)
    assert note.endswith("all are labelled right, or the logits tell nothing of them")


def test_classes_are_added_to_rows_as_they_were_trained(tiny_run: Path, model: Export) -> None:
    head = read_head(tiny_run / "head.safetensors")
    found = open_model(model.path, device="cpu").head
    np.testing.assert_allclose(found.weight, head.weight, rtol=3e-7)
    assert found.class_names == model.facts.class_names


def test_renamed_classes_keep_their_weights_bit_by_bit(model: Export, tmp_path: Path) -> None:
    opened = open_model(model.path, device="cpu")
    classes = renamed(Classes.of(opened), {"d": "dog"}, data={})
    facts = write_classes(opened, classes, tmp_path / "renamed.safetensors")
    assert facts.weights == model.facts.weights
    assert facts.temperature == model.facts.temperature


def test_with_classes_removed_the_measured_errors_are_no_longer_told(
    model: Export, tmp_path: Path
) -> None:
    opened = open_model(model.path, device="cpu")
    left = removed(Classes.of(opened), ["d"], data={})
    assert model.facts.temperature is not None
    assert left.facts.temperature == model.facts.temperature.unmeasured
    write_classes(opened, left, tmp_path / "left")
    text = (tmp_path / "left" / "README.md").read_text()
    assert "fitted on 10 held-out rows before the classes last changed" in text


def test_what_is_unknown_is_judged_by_the_logits_as_trained(tiny_run: Path, model: Export) -> None:
    images = images_of(tiny_run)
    opened = open_model(model.path, device="cpu")
    head, memory = opened.head, opened.memory
    assert memory is not None
    rule = Rejection.at_rate("energy", 0.25, head, memory)
    trained = read_head(tiny_run / "head.safetensors")
    logits = memory.held_out.features.astype(np.float32) @ trained.weight.T + trained.bias
    scores = torch.from_numpy(logits).logsumexp(1).sort().values
    assert rule.threshold == pytest.approx(float(scores[len(scores) // 4]), rel=1e-5)
    found = load_model(model.path, device="cpu").predict(images, reject=rule)
    told = sorted(each.score for each in found if each.score is not None)
    np.testing.assert_allclose(told, scores, rtol=1e-2)


def test_the_card_says_how_sure_the_model_is(model: Export) -> None:
    assert model.facts.temperature is not None
    text = card(model.facts)
    assert f"Probabilities: {model.facts.temperature.describe()}." in text
    assert "Probabilities: " not in card(replace(model.facts, temperature=None))


def test_scores_of_a_solved_head_become_probabilities(model: Export) -> None:
    solved = {**model.facts.record, "config": {"method": "ridge"}}
    scores = replace(model.facts, record=solved, temperature=None)
    assert "the order of the classes counts" in card(scores).lower()
    assert "the order of the classes counts" not in card(replace(model.facts, record=solved))


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_a_head_alone_has_the_rows_of_the_model(
    tiny_run: Path, model: Export, few: None, tmp_path: Path, suffix: str
) -> None:
    out = tmp_path / f"head{suffix}"
    exported = export_head(tiny_run, out)
    head = read_head(out)
    classifier = load_model(model.path, device="cpu").backbone.head
    assert head.weight.tobytes() == classifier.weight.tobytes()
    assert head.class_names == model.facts.class_names
    assert head.origin is not None
    assert head.origin["tasks"] == list(model.facts.tasks)
    assert exported.temperature == model.facts.temperature
    assert head.origin["temperature"]["value"] == exported.temperature.value  # type: ignore[union-attr]
    assert is_head_file(out)
    assert not is_head_file(model.path / "model.safetensors")
    assert not is_head_file(model.path)
    assert len(repr(exported)) < 160 + len(str(out))


def test_a_head_alone_is_neither_overwritten_nor_any_file(tiny_run: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"written as .npz or .safetensors"):
        export_head(tiny_run, tmp_path / "head.json")
    export_head(tiny_run, tmp_path / "head.npz")
    with pytest.raises(Exception, match="there is already a model at"):
        export_head(tiny_run, tmp_path / "head.npz")


def test_a_head_on_a_changed_backbone_is_not_written_alone(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = {"stem.0.weight": np.zeros(3)}
    monkeypatch.setattr(
        "clinit.headtrain.model.head_alone.changed_parameters", lambda record: changed
    )
    with pytest.raises(HeadError, match="training has changed the backbone"):
        export_head(tiny_run, tmp_path / "head.npz")
