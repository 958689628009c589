"""Arguments of the network that name files, downloads or too much."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fault_trials.hostile.scene import (
    Argv,
    Make,
    Scene,
    header_of,
    joined,
    sha256,
    trial,
)
from fault_trials.trial import Trial
from fault_trials.workload import MODEL_ARGS


def arguments(seed: str) -> Iterator[Trial]:
    """Yield model files and caches whose arguments of the network are made to harm."""
    for name, value in _ARGUMENTS.items():
        for kind in ("model", "plan, export", "plan, train-top", "plan, export --weights"):
            make = _argument(kind, "model_args", value)
            yield trial("model_args", f"{name}, {kind}", make, seed=seed)
    for backbone in _BACKBONES:
        for kind in ("model", "plan, export"):
            make = _argument(kind, "backbone", functools.partial(_same, backbone))
            yield trial("model_args", f"backbone {backbone[:40]!r}, {kind}", make, seed=seed)


def _same(value: str, scene: Scene) -> str:
    return value


_ARGUMENTS: Mapping[str, Callable[[Scene], Any]] = {
    "checkpoint_path": lambda scene: {"checkpoint_path": str(scene.evil_pickle())},
    "pretrained_cfg of a file": lambda scene: {
        "pretrained": True,
        "pretrained_cfg": {"file": str(scene.evil_pickle())},
    },
    "pretrained_cfg_overlay": lambda scene: {
        "pretrained": True,
        "pretrained_cfg_overlay": {"file": str(scene.evil_pickle()), "hf_hub_id": None},
    },
    "pretrained": lambda scene: {"pretrained": True},
    "cache_dir": lambda scene: {"pretrained": True, "cache_dir": str(scene.victim.parent)},
    "model_name": lambda scene: {"model_name": "resnet18"},
    "num_classes": lambda scene: {"num_classes": 10**9},
    "in_chans": lambda scene: {"in_chans": 10**8},
    "wide": lambda scene: {"depths": (1, 1, 1, 1), "dims": (10**6,) * 4},
    "many blocks": lambda scene: {"depths": (10**9, 1, 1, 1), "dims": (4, 8, 8, 12)},
    "no blocks": lambda scene: {"depths": ()},
    "wrong types": lambda scene: {"depths": "abc", "dims": None},
    "unknown": lambda scene: {"nonsense": 1},
    "no text": lambda scene: {1: 2},
    "scriptable": lambda scene: {"scriptable": True, "exportable": True},
    "a class": lambda scene: {"norm_layer": "os.system"},
    "negative": lambda scene: {"depths": (1, 1, 1, 1), "dims": (-4, 8, 8, 12)},
    "deep": lambda scene: "(" * 500 + ")" * 500,
    "an expression": lambda scene: f"__import__('os').mkdir({str(scene.marker)!r})",
    "a list of pairs": lambda scene: [("checkpoint_path", str(scene.evil_pickle()))],
    "a huge power": lambda scene: "10**10**10",
    "drop_rate": lambda scene: {"drop_rate": float("inf"), "drop_path_rate": 7},
}
_BACKBONES = (
    *("", "nope", "convnextv2_atto.nope", "../../evil", "/etc/passwd", "hf-hub:evil/model"),
    *("hf_hub:evil/model", "local-dir:/etc", "\x1b]0;owned\x07", "timm/convnextv2_atto"),
    *("x" * 100_000, "vit_giant_patch14_224"),
)


def _argument(kind: str, name: str, value: Callable[[Scene], Any]) -> Make:
    def make(scene: Scene) -> Argv:
        told = value(scene)
        if isinstance(told, dict):
            told = {**MODEL_ARGS, **told}
        if kind == "model":
            file = scene.own("model.safetensors")
            header, rest = header_of(file.read_bytes())
            document = json.loads(header["__metadata__"]["clinit_model"])
            document[name] = told if isinstance(told, str) else repr(told)
            header["__metadata__"]["clinit_model"] = json.dumps(document)
            file.write_bytes(joined(json.dumps(header), rest))
            return scene.reader("predict")
        _forge(scene, {name: told if isinstance(told, str) else _as_pairs(told)})
        command = kind.removeprefix("plan, ")
        if command == "train-top":
            return scene.reader("train-top")
        run = scene.own("runs/random/run.json")
        document = json.loads(run.read_text())
        plan = json.loads((scene.work / "caches/base/train/plan.json").read_text())
        own = {k: v for k, v in plan["fingerprint"].items() if k != "manifest"}
        document["base"]["fingerprint"] = own
        run.write_text(json.dumps(document))
        return scene.reader(command)

    return make


def _as_pairs(told: Any) -> str:
    """Return arguments as they stand in a fingerprint."""
    return repr(sorted(told.items(), key=str) if isinstance(told, dict) else told)


def _forge(scene: Scene, changes: Mapping[str, str]) -> None:
    """Give both caches another fingerprint, as somebody would who knows the format."""
    import h5py

    for side in ("base", "new"):
        for folder in sorted((scene.own(f"caches/{side}/train")).parent.rglob("plan.json")):
            plan = json.loads(folder.read_text())
            plan["fingerprint"] = {**plan["fingerprint"], **changes}
            folder.write_text(json.dumps(plan))
            identifier = _identifier(plan)
            summary = folder.with_name("cache.json")
            document = json.loads(summary.read_text())
            document["plan"] = identifier
            for shard in document["shards"]:
                with h5py.File(folder.with_name(shard["name"]), "r+") as file:
                    file.attrs["plan"] = identifier
                shard["sha256"] = sha256(folder.with_name(shard["name"]).read_bytes())
            summary.write_text(json.dumps(document))
        head = scene.work / "caches" / side / "head.safetensors"
        header, rest = header_of(head.read_bytes())
        told = json.loads(header["__metadata__"]["clinit_head"])
        told["fingerprint"] = ""
        header["__metadata__"]["clinit_head"] = json.dumps(told)
        head.write_bytes(joined(json.dumps(header), rest))


def _identifier(plan: Mapping[str, Any]) -> str:
    content = {name: value for name, value in plan.items() if name != "format"}
    if not content.get("shape"):
        content.pop("shape", None)
    return sha256(json.dumps(content, sort_keys=True).encode())
