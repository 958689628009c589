"""What the fault campaign works on: small images, caches, records and models, and the commands.

The network has 12 features, the images 32 pixels; the classes a, b, c are the base, d and e
arrive. Everything is made by the commands themselves, once, and never changed afterwards.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fault_trials.server import Done, Job, Server

MODEL = "convnextv2_atto"
MODEL_ARGS: Mapping[str, tuple[int, ...]] = {"depths": (1, 1, 1, 1), "dims": (4, 8, 8, 12)}
DIM = 12
CONTAINERS: Mapping[str, str] = {"webdataset": "shards", "huggingface": "tables"}
"""Images in containers, by kind: the folder that they are in."""
_TRAIN = ("--split", "train")
_NETWORK = (
    *("--backbone", MODEL, *(f"--model-arg={k}={v}" for k, v in MODEL_ARGS.items())),
    *("--weights", "{work}/weights.safetensors", "--input-size", "32", "--device", "cpu"),
    *("--batch-size", "4", "--workers", "1"),
)
_CACHES = ("--base", "{work}/caches/base", "--new", "{work}/caches/new")
_STREAM = ("--tasks", "2", "--iterations", "4", "--eval-every", "2", "--batch-size", "8")
_HEAD = (*_STREAM, "--buffer", "10", "--device", "cpu")
_GRID = ("device=cpu", "tasks=2", "iterations=4", "eval_every=2", "batch_size=8", "buffer=10")


@dataclass(frozen=True, slots=True)
class Command:
    """A command line with `{work}` (what there is to read) and `{out}` (the trial's folder)."""

    name: str
    words: tuple[str, ...]
    target: str
    """What it writes, below `{out}`."""

    @property
    def sees_images(self) -> bool:
        """Whether it decodes any."""
        return self.words[0] in ("extract", "train-top", "predict", "add")

    def argv(self, work: Path, out: Path) -> list[str]:
        """Return the words with the folders filled in."""
        return [word.format(work=work, out=out) for word in self.words]


def _extract(side: str, *more: str, target: str = "cache") -> tuple[str, ...]:
    return (
        *("extract", "--dataset", "folder", "--root", "{work}/images/" + side),
        *("--out", "{out}/" + target, *_NETWORK, "--shard-rows", "5", *more),
    )


def _listed(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return a command without the options that a manifest stands for."""
    return tuple(word for word in words if word not in ("--dataset", "folder"))


def _command(name: str, *words: str, target: str) -> Command:
    return Command(name, words, target)


COMMANDS: Mapping[str, Command] = {
    command.name: command
    for command in (
        _command("extract", *_extract("base"), target="cache"),
        _command(
            "extract --manifest",
            *_listed(_extract("base")),
            *("--manifest", "{work}/train.parquet"),
            target="cache",
        ),
        _command("extract --views", *_extract("new", "--views", "2"), target="cache"),
        _command(
            "cache import",
            *("cache", "import", "{work}/arrays/features.npy", "{work}/arrays/labels.npy"),
            *("--backbone", "made"),
            *("--out", "{out}/cache", "--classes", "{work}/arrays/classes.txt"),
            *("--head", "{work}/arrays/head.safetensors"),
            target="cache",
        ),
        _command(
            "cache export",
            *("cache", "export", "{work}/caches/base", "{out}/exported"),
            target="exported",
        ),
        _command(
            "cache export, parquet",
            *("cache", "export", "{work}/caches/base", "{out}/train.parquet", "--split", "train"),
            target="train.parquet",
        ),
        _command(
            "manifest build",
            *("manifest", "build", "folder", "--root", "{work}/images/base"),
            *("--split", "train", "--out", "{out}/train.parquet"),
            target="train.parquet",
        ),
        _command(
            "align",
            *("align", "{work}/caches/base", "--out", "{out}/aligned.safetensors"),
            *("--epochs", "3", "--batch-size", "8", "--device", "cpu"),
            target="aligned.safetensors",
        ),
        _command(
            "probe",
            *("probe", "{work}/caches/base", "--out", "{out}/probe.safetensors"),
            *("--epochs", "3", "--batch-size", "8", "--device", "cpu"),
            target="probe.safetensors",
        ),
        _command(
            "train-head",
            *("train-head", *_CACHES, "--out", "{out}/runs", *_HEAD),
            target="runs",
        ),
        _command(
            "train-top",
            *("train-top", *_CACHES, "--out", "{out}/top", *_HEAD, "--rank", "2"),
            *("--init", "random", "--init", "least-square", "--checkpoint-every", "2"),
            *("--no-probe", "--workers", "1"),
            target="top",
        ),
        _command(
            "sweep",
            *("sweep", *_CACHES, "--out", "{out}/sweep", "--bank-size", "2", *_GRID),
            *("init=random,class-mean", "seed=0:2", "lr=1e-3,3e-3"),
            target="sweep",
        ),
        _command(
            "sweep --search optuna",
            *("sweep", *_CACHES, "--out", "{out}/search", *_GRID, "--search", "optuna"),
            *("--trials", "5", "--bank-size", "2", "lr=1e-4..1e-1:log", "init=random,class-mean"),
            target="search",
        ),
        _command(
            "export",
            *("export", "{work}/runs/random", "--out", "{out}/model.safetensors"),
            target="model.safetensors",
        ),
        _command(
            "export, folder",
            *("export", "{work}/runs/random", "--out", "{out}/scenes"),
            target="scenes",
        ),
        _command(
            "add",
            *("add", "{work}/model.safetensors", "{work}/images/new", "--replace"),
            *("--out", "{out}/grown", "--features", "{out}/features", "--device", "cpu"),
            *("--workers", "1"),
            target="grown",
        ),
        _command(
            "report --plot",
            *("report", "{work}/runs", "--plot", "{out}/curves.png", "--no-curves"),
            target="curves.png",
        ),
        _command(
            "report --html",
            *("report", "{work}/runs", "--html", "{out}/page.html", "--no-curves"),
            target="page.html",
        ),
        _command(
            "predict --csv",
            *("predict", "{work}/model.safetensors", "{work}/images/new/val"),
            *("--csv", "{out}/seen.csv", "--device", "cpu"),
            target="seen.csv",
        ),
    )
}
"""Every command that writes."""


def run(server: Server, words: Sequence[str], out: Path) -> Done:
    """Run a command of the preparation.

    Raises:
        RuntimeError: If it fails.
    """
    done = server.run(Job(argv=words, out=out, name="make", timeout_s=300))
    if done.code != 0:
        raise RuntimeError(f"`clinit {' '.join(words)}` failed:\n{done.stdout}{done.stderr}")
    return done


def make_work(server: Server, work: Path) -> None:
    """Write what the commands read into `work`."""
    _write_images(work / "images")
    _write_containers(work / "images" / "base", work)
    _write_weights(work / "weights.safetensors")
    (work / "weights.safetensors").chmod(0o644)
    _write_arrays(work / "arrays")
    (work / "settings.toml").write_text(
        '[train-head]\ntasks = 2\niterations = 4\n"eval-every" = 2\n"batch-size" = 8\nbuffer = 10\n'
        'device = "cpu"\ninit = ["random", "least-square"]\n',
        encoding="utf-8",
    )

    def make(words: Sequence[str]) -> None:
        run(server, [word.format(work=work, out=work) for word in words], work / "logs")

    make(_extract("base", "--views", "2", target="caches/base"))
    make(_extract("new", target="caches/new"))
    for name in ("cache import", "manifest build", "align"):
        make(COMMANDS[name].words)
    for name in ("train-head", "export", "export, folder", "train-top", "sweep"):
        make(COMMANDS[name].words)
    make(COMMANDS["sweep --search optuna"].words)
    make(("rename", "{work}/scenes", "b=z", "--out", "{work}/renamed"))
    for kind, folder in CONTAINERS.items():
        table = f"{{work}}/{folder}.parquet"
        make(("manifest", "build", kind, "--root", f"{{work}}/{folder}", *_TRAIN, "--out", table))
    (work / "kept").mkdir()
    shutil.copy(_kept_checkpoint(server, work, work / "logs"), work / "kept")
    _write_odd_images(work / "odd")


def _kept_checkpoint(server: Server, work: Path, out: Path) -> Path:
    """Kill a train-top after its second checkpoint; return the checkpoint."""
    command = COMMANDS["train-top"]
    counted = server.run(
        Job(argv=command.argv(work, out / "whole"), out=out, shim={"scope": str(out / "whole")})
    )
    renames = [
        number
        for number, line in enumerate(counted.log, start=1)
        if line.startswith("rename ") and ".checkpoint" in line
    ]
    shim = {"scope": str(out / "killed"), "mode": "after", "at": renames[1]}
    server.run(Job(argv=command.argv(work, out / "killed"), out=out, name="killed", shim=shim))
    (checkpoint,) = (out / "killed" / command.target).glob("*.checkpoint")
    return checkpoint


def _write_images(root: Path) -> None:
    from PIL import Image

    for side, classes in (("base", "abc"), ("new", "de")):
        rng = np.random.default_rng(ord(classes[0]))
        for split, count in (("train", 6), ("val", 3)):
            for name in classes:
                colour = np.random.default_rng(ord(name)).integers(60, 196, 3)
                folder = root / side / split / name
                folder.mkdir(parents=True)
                for number in range(count):
                    pixels = colour + rng.integers(-50, 50, (36, 40, 3))
                    image = Image.fromarray(pixels.astype(np.uint8))
                    image.save(folder / f"{number}.{'jpg' if number % 2 else 'png'}")


def _write_containers(images: Path, work: Path) -> None:
    """Write the training images into two tar shards, and into two Parquet files."""
    import io
    import tarfile

    import polars as pl

    paths = sorted((images / "train").glob("*/*"))
    for folder in CONTAINERS.values():
        (work / folder).mkdir()
    for number in range(2):
        part = paths[number::2]
        with tarfile.open(work / "shards" / f"train-{number}.tar", "w") as tar:
            for path in part:
                key = f"{path.parent.name}-{path.stem}"
                told = (f"{key}{path.suffix}", path.read_bytes()), (f"{key}.txt", key[:1].encode())
                for name, content in told:
                    member = tarfile.TarInfo(name)
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
        table = pl.DataFrame(
            {
                "image": [{"bytes": path.read_bytes(), "path": path.name} for path in part],
                "label": ["abc".index(path.parent.name) for path in part],
            }
        )
        facts = {
            "image": {"_type": "Image"},
            "label": {"_type": "ClassLabel", "names": ["a", "b", "c"]},
        }
        described = {"huggingface": json.dumps({"info": {"features": facts}})}
        file = work / "tables" / f"train-{number}.parquet"
        table.write_parquet(file, metadata=described, row_group_size=4)


def _write_odd_images(folder: Path) -> None:
    """Write a good image for `clinit predict`."""
    from PIL import Image

    folder.mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (36, 40, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(folder / "good.png")


def _write_weights(path: Path) -> None:
    import timm
    import torch
    from safetensors.torch import save_file

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        arguments: dict[str, Any] = dict(MODEL_ARGS)
        network = timm.create_model(MODEL, num_classes=3, **arguments)
        for parameter in network.parameters():
            parameter.data += 0.1 * torch.randn_like(parameter)
    save_file(network.state_dict(), path, metadata={"class_names": '["a", "b", "c"]'})


def _write_arrays(folder: Path) -> None:
    from safetensors.numpy import save_file

    folder.mkdir()
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 40)
    features = np.eye(3, DIM)[labels] + 0.1 * rng.normal(size=(40, DIM))
    np.save(folder / "features.npy", features.astype(np.float32))
    np.save(folder / "labels.npy", labels)
    (folder / "classes.txt").write_text("a\nb\nc\n")
    head = {"weight": rng.normal(size=(3, DIM)), "bias": rng.normal(size=3)}
    facts = json.dumps({"class_names": ["a", "b", "c"], "fingerprint": ""})
    single = {name: value.astype(np.float32) for name, value in head.items()}
    save_file(single, folder / "head.safetensors", metadata={"clinit_head": facts})
