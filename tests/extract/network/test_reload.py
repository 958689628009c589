import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import load_file, save_file

from clinit.errors import CacheError
from clinit.extract.arrays.import_features import ImportConfig, import_features
from clinit.extract.cache.read import CacheSplit, open_split
from clinit.extract.dataset.decode import decode
from clinit.extract.dataset.scan import scan
from clinit.extract.network.backbone import BackboneConfig
from clinit.extract.work.recorded import reload
from clinit.extract.work.run import ExtractConfig, extract
from clinit.files.documents import content_sha256

MODEL = "convnextv2_atto"
ARGS: dict[str, Any] = {"depths": (1, 1, 1, 1), "dims": (4, 8, 8, 12)}
Extract = Callable[..., CacheSplit]


@pytest.fixture
def extracted(make_tree: Callable[..., Path], tiny_weights: Path, tmp_path: Path) -> Extract:
    root = make_tree()

    def run(weights: Path = tiny_weights, **changes: Any) -> CacheSplit:
        autocast = changes.pop("autocast", "off")
        backbone = BackboneConfig(name=MODEL, weights=weights, model_args=ARGS, autocast=autocast)
        config = ExtractConfig(backbone=backbone, input_size=32, batch_size=4, **changes)
        manifest = scan("folder", root, "train").manifest
        list(extract({"train": manifest}, root, tmp_path / "cache", config))
        return open_split(tmp_path / "cache" / "train")

    return run


def change_weights(split: CacheSplit, change: Callable[[dict[str, Any]], object]) -> CacheSplit:
    """Change what cache.json says about the run."""
    path = split.path / "cache.json"
    content = json.loads(path.read_text())
    change(content["run"])
    del content["sha256"]
    path.write_text(json.dumps({**content, "sha256": content_sha256(content)}))
    return open_split(split.path)


@pytest.mark.parametrize("transform", ["timm", "paper"])
@pytest.mark.parametrize("autocast", ["off", "bfloat16"])
def test_the_reloaded_backbone_and_transform_give_the_cached_features(
    extracted: Extract, transform: str, autocast: str
) -> None:
    split = extracted(
        transform=transform, autocast=autocast, dtype="float32", mean=(0.48145466, 0.45, 1 / 3)
    )
    backbone, found = reload(split)
    root = Path(split.summary.run.root or "")
    pixels = [
        found.to_input(decode((root / path).read_bytes()))
        for path in split.manifest.table["path"][:4]
    ]
    features = backbone.features(found.normalise(torch.stack(pixels)))
    assert np.array_equal(features.numpy(), split.load().features[:4])


def test_the_weights_are_taken_from_where_they_were_even_in_another_folder(
    extracted: Extract, tiny_weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tiny_weights.parent)
    split = extracted(weights=Path(tiny_weights.name))
    monkeypatch.chdir(tmp_path)
    assert split.summary.run.weights == str(tiny_weights)
    backbone, _ = reload(split)
    assert backbone.config.weights == tiny_weights
    assert backbone.head.class_names == ("a", "b", "c")


def test_other_weights_are_refused(extracted: Extract, tiny_weights: Path, tmp_path: Path) -> None:
    state = load_file(tiny_weights)
    state["stem.0.bias"][0] += 1
    save_file(state, tmp_path / "other.safetensors")
    with pytest.raises(CacheError, match=r"other\.safetensors: SHA-256 \w{12}…, but the") as caught:
        reload(extracted(), weights=tmp_path / "other.safetensors")
    assert "--weights FILE" in caught.value.remedy


def test_a_cache_that_does_not_know_its_weights_learns_it_from_its_command(
    extracted: Extract, tiny_weights: Path
) -> None:
    split = change_weights(extracted(), lambda run: run.pop("weights"))
    with pytest.raises(CacheError, match="says where the weights were") as caught:
        reload(split)
    assert "--weights FILE" in caught.value.remedy
    before = split.summary.run.started
    again = extracted()
    assert again.summary.run.started == before
    assert reload(again)[0].config.weights == tiny_weights


def test_timms_own_weights_are_taken_again_and_judged(
    extracted: Extract, monkeypatch: pytest.MonkeyPatch
) -> None:
    split = change_weights(extracted(), lambda run: run.update(weights=None))
    create, taken = timm.create_model, list[bool]()

    def pretrained(name: str, pretrained: bool = False, **arguments: Any) -> torch.nn.Module:
        taken.append(pretrained)  # the first network is counted, not used
        return create(name, num_classes=3, **arguments)

    monkeypatch.setattr(timm, "create_model", pretrained)
    with pytest.raises(CacheError, match="timm's pretrained weights of convnextv2_atto: SHA-256"):
        reload(split)
    assert taken[-1]


def test_imported_features_have_no_network(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.eye(4, dtype=np.float32))
    np.save(tmp_path / "y.npy", np.arange(4))
    config = ImportConfig(backbone="clip")
    split = import_features(tmp_path / "x.npy", tmp_path / "y.npy", tmp_path / "cache", config)
    with pytest.raises(CacheError, match="they were imported from 'clip'") as caught:
        reload(split)
    assert "`clinit extract`" in caught.value.remedy


def test_a_fingerprint_that_cannot_be_parsed_is_refused(extracted: Extract) -> None:
    split = extracted()
    split.plan.fingerprint.fields["transform"] = "shrink"  # type: ignore[index]
    with pytest.raises(CacheError, match="not the description of a transform: 'shrink'"):
        reload(split)
