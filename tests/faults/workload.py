"""What is read, and the commands: small images, caches, records and models.

The network has 12 features, the images 32 pixels; the classes a, b, c are the base, d and e
arrive. The commands make everything themselves, once, and nothing of it changes afterwards. They
are called in a folder with `work`, what there is to read, and `out`, where they write.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tests.conftest import TINY_ARGS, TINY_MODEL, write_images, write_weights
from tests.faults.process import Fault, run

_NETWORK = (
    f"--backbone {TINY_MODEL} "
    + " ".join(f"--model-arg={name}={value}" for name, value in TINY_ARGS.items()).replace(
        ", ", ","
    )
    + " --weights work/weights.safetensors --input-size 32 --device cpu --batch-size 4 --workers 1"
)
_IMAGES = f"extract --dataset folder --root work/images/%s --shard-rows 5 {_NETWORK}"
_CACHES = "--base work/caches/base --new work/caches/new"
_STREAM = "--tasks 2 --iterations 4 --eval-every 2 --batch-size 8 --buffer 10 --device cpu"
_GRID = "device=cpu tasks=2 iterations=4 eval_every=2 batch_size=8 buffer=10"
_FEW = "--epochs 3 --batch-size 8 --device cpu"

WRITERS: Mapping[str, str] = {
    "extract": f"{_IMAGES % 'base'} --out out/cache",
    "extract --views": f"{_IMAGES % 'new'} --views 2 --out out/cache",
    "cache import": "cache import work/arrays/features.npy work/arrays/labels.npy --backbone made"
    " --classes work/arrays/classes.txt --out out/cache",
    "manifest build": "manifest build folder --root work/images/base --split train"
    " --out out/train.parquet",
    "align": f"head align work/caches/base --out out/aligned.safetensors {_FEW}",
    "head fit": "head fit work/caches/base --out out/fitted.safetensors",
    "train-head": f"train-head {_CACHES} --out out/runs {_STREAM}",
    "train-top": f"train-top {_CACHES} --out out/top {_STREAM} --rank 2 --init random"
    " --init least-square --checkpoint-every 2 --no-probe --workers 1",
    "sweep": f"sweep {_CACHES} --out out/sweep --bank-size 2 {_GRID} init=random,class-mean"
    " seed=0:2 lr=1e-3,3e-3",
    "export": "export work/runs/random --out out/model.safetensors",
    "export, folder": "export work/runs/random --out out/scenes",
    "export, model": "export work/grown --out out/exported",
    "add": "add work/scenes work/images/later --out out/grown --features out/features"
    " --device cpu --workers 1",
    "add, head": "add work/caches/base/head.safetensors work/caches/new --old"
    " work/caches/base --out out/grown.safetensors",
    "add --more": "add work/grown work/images/more --more --out out/more --device cpu --workers 1",
    "model merge": "model merge work/grown work/other --out out/both",
    "report --plot": "report work/runs --plot out/curves.png",
    "report --html": "report work/runs --html out/page.html",
    "predict --csv": "predict work/model.safetensors work/images/new/val --csv out/seen.csv"
    " --device cpu",
    "evaluate": "evaluate work/scenes work/images/new --csv out/answers.csv --html out/answers.html"
    " --device cpu",
}
"""Every command that writes."""

READERS: Mapping[str, str] = {
    "cache verify": "cache verify work/caches/base",
    "cache show": "cache show work/caches/base",
    "diagnose": "diagnose work/caches/base --json --device cpu",
    "diagnose, imported": "diagnose work/cache --json --head work/arrays/head.safetensors",
    "align": WRITERS["align"],
    "train-head": f"{WRITERS['train-head']} --init least-square",
    "train-head --head": f"{WRITERS['train-head']} --head work/aligned.safetensors --loss mse",
    "train-head --config": f"train-head {_CACHES} --out out/runs --config work/settings.toml",
    "train-top --trunk-cache": f"{WRITERS['train-top']} --trunk-cache work/top/trunk-cache",
    "report --json": "report work/runs --json",
    "report": "report work/runs --per-task",
    "export": f"{WRITERS['export']} --base work/caches/base",
    "export --weights": f"{WRITERS['export']} --base work/caches/base"
    " --weights work/weights.safetensors",
    "export, top": "export work/top/random --out out/model.safetensors --base work/caches/base",
    "predict": "predict work/model.safetensors work/good.png --json --device cpu",
    "predict, folder": "predict work/scenes work/good.png --json --device cpu --reject energy",
    "model show": "model show work/scenes --json",
    "add": WRITERS["add"].replace(" --features out/features", ""),
    "rename": "rename work/scenes b=z --out out/renamed",
    "rename, head": "rename work/grown.safetensors a=z --out out/renamed.npz",
    "manifest show": "manifest show work/train.parquet",
    "extract --manifest": f"{_IMAGES % 'base'} --manifest work/train.parquet"
    " --out out/cache".replace("--dataset folder ", ""),
    "sweep": WRITERS["sweep"].replace("out/sweep", "work/sweep"),
    "cache import": WRITERS["cache import"],
}
"""Commands that read each kind of file; the last but one go on in a folder of the workload."""


class Scene:
    """A folder in which commands are called; `work` in it reads like the workload."""

    def __init__(self, folder: Path, work: Path) -> None:
        self.folder, self.original = folder, work
        self.work, self.out = folder / "work", folder / "out"
        self.work.mkdir(parents=True)
        for entry in work.iterdir():
            (self.work / entry.name).symlink_to(entry)

    def own(self, path: str) -> Path:
        """Return a file of the workload, by name or pattern, in a copy that may be changed."""
        found = min(self.original.glob(path)).relative_to(self.original)
        top = self.work / found.parts[0]
        if top.is_symlink():
            source = top.resolve()
            top.unlink()
            (shutil.copytree if source.is_dir() else shutil.copy)(source, top)
        return self.work / found

    @property
    def places(self) -> tuple[Path, ...]:
        """Folders whose names stand in documents, and differ between trials."""
        return self.work, self.original, self.folder


def make_work(folder: Path) -> None:
    """Write `folder/work`; `folder/out` is a link to it."""
    work = folder / "work"
    work.mkdir()
    (folder / "out").symlink_to(work)
    for side, classes in (("base", "abc"), ("new", "de"), ("later", "fg"), ("more", "gf")):
        write_images(work / "images" / side, classes, ("png", "jpg"), train=6, val=3)
    shutil.copy(work / "images" / "new" / "val" / "d" / "0.png", work / "good.png")
    write_weights(work / "weights.safetensors", 0.1)
    _write_arrays(work / "arrays")
    (work / "settings.toml").write_text(
        '[train-head]\ntasks = 2\niterations = 4\n"eval-every" = 2\n"batch-size" = 8\nbuffer = 10\n'
        'device = "cpu"\ninit = ["random", "least-square"]\n',
        encoding="utf-8",
    )
    made = (
        f"{_IMAGES % 'base'} --views 2 --out out/caches/base",
        f"{_IMAGES % 'new'} --out out/caches/new",
        *(WRITERS[name] for name in ("cache import", "manifest build", "align")),
        WRITERS["train-head"],
        *(WRITERS[name] for name in ("export", "export, folder", "train-top", "sweep")),
        *(
            READERS["rename"],
            WRITERS["add"],
            WRITERS["add, head"],
            "rename work/grown f=x g=y --out out/other",
        ),
    )
    for words in made:
        done = run(words.split(), folder)
        assert done.code == 0, f"clinit {words}\n{done.out}{done.err}"
    _keep_checkpoint(folder, work / "kept")


def _keep_checkpoint(folder: Path, kept: Path) -> None:
    """Kill a train-top after its second checkpoint, and keep that."""
    words = WRITERS["train-top"].split()
    (folder / "out").unlink()
    renames = [
        number
        for number, line in enumerate(run(words, folder).operations, start=1)
        if line.startswith("os.rename") and line.endswith(".checkpoint")
    ]
    shutil.rmtree(folder / "out")
    run(words, folder, fault=Fault("SIGKILL", renames[1] + 1))
    (checkpoint,) = (folder / "out" / "top").glob("*.checkpoint")
    kept.mkdir()
    shutil.copy(checkpoint, kept / "random.checkpoint")


def _write_arrays(folder: Path) -> None:
    from safetensors.numpy import save_file

    folder.mkdir()
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 40)
    features = np.eye(3, 12)[labels] + 0.1 * rng.normal(size=(40, 12))
    np.save(folder / "features.npy", features.astype(np.float32))
    np.save(folder / "labels.npy", labels)
    (folder / "classes.txt").write_text("a\nb\nc\n")
    head = {"weight": rng.normal(size=(3, 12)), "bias": rng.normal(size=3)}
    facts = json.dumps({"class_names": ["a", "b", "c"], "fingerprint": ""})
    single = {name: value.astype(np.float32) for name, value in head.items()}
    save_file(single, folder / "head.safetensors", metadata={"clinit_head": facts})
