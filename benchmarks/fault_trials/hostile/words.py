"""Grids, settings and options that ask for too much or for nonsense."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from fault_trials.hostile.scene import (
    Argv,
    Make,
    Scene,
    trial,
)
from fault_trials.trial import Trial

_GRIDS = (
    *("seed=0:100000000000", "lr=1e-4..1e-1:log99999999", "lr=1e-4..1e-1:lin99999999"),
    *("seed=0:3:0", "seed=5:3", "seed=-5:3", "seed=1e400", "seed=nan", "seed=", "=", "=1", "x=1"),
    *(
        "lr=nan..1:lin5",
        "lr=1e-4..:log5",
        "lr=..:log",
        "lr=0..1:log5",
        "lr=1..1:lin1",
        "lr=1e-4..1e-1:log0",
    ),
    *("lr=1e-4..1e-1:log-3", "lr=inf", "lr=1e309", "init=", "init=random,,", "init=[random]"),
    *(
        "seed=0:1e9",
        "seed=0:9999999999999999999999",
        "tasks=0:1000000000",
    ),
    *("buffer=99999999999999999999", "batch_size=99999999999999", "tasks=99999999999"),
    *(
        "lr=" + "1," * 100_000 + "1",
        "init=" + "r" * 1_000_000,
        "lam=1e-300..1e300:log50000000",
    ),
    *("seed=0x10", "seed=\u0661", "lr=1_000", "seed=0:5 seed=0:6", "iterations=-1", "eval_every=0"),
    *("method=nope", "device=cuda:99", "device=meta", "precision=bf16", "loss=nan", "bias=../../x"),
    *("class_order=/etc/passwd", "class_order=/dev/zero", "head_width=1", "weighting=\x1b[2J"),
)
_TOMLS: Mapping[str, str] = {
    "deep lists": "a = " + "[" * 20_000 + "]" * 20_000,
    "deep tables": "[" + ".".join(["a"] * 20_000) + "]\n",
    "deep keys": ".".join(["a"] * 20_000) + " = 1\n",
    "deep inline tables": "a = " + "{b=" * 5_000 + "1" + "}" * 5_000,
    "a long text": '[train-head]\ninit = "' + "x" * 2_000_000 + '"\n',
    "a long number": "[train-head]\ntasks = 1" + "0" * 10_000 + "\n",
    "nan": "[train-head]\nlr = nan\n",
    "infinity": "[train-head]\nlr = inf\n",
    "a date": "[train-head]\ntasks = 1979-05-27T07:32:00Z\n",
    "a truth": "[train-head]\ntasks = true\n",
    "a list for a number": "[train-head]\ntasks = [1, [2]]\n",
    "a table for a number": "[train-head.tasks]\na = 1\n",
    "a number for a section": "train-head = 3\n",
    "a list of sections": "[[train-head]]\ntasks = 2\n",
    "an unknown section": "[nope]\na = 1\n",
    "an unknown setting": "[train-head]\nnope = 1\n",
    "a setting of a step up": '[train-head]\nout = "../../../tmp/x"\nbase = "/etc"\n',
    "a control character": '[train-head]\ninit = "\\u001b[2J"\n',
    "a key of nothing": '[train-head]\n"" = 1\n',
    "not TOML": "[[[[",
    "not UTF-8": "\udcff\udcfe",
    "zeros": "\x00" * 100,
    "the same twice": "[train-head]\ntasks = 1\ntasks = 2\n",
    "a class order of itself": '[train-head]\nclass-order = "settings.toml"\n',
    "many settings": "[train-head]\n" + "".join(f"a{i} = {i}\n" for i in range(50_000)),
    "negative": "[train-head]\niterations = -5\nbuffer = -1\n",
    "huge": '[train-head]\nbuffer = 9223372036854775807\n"batch-size" = 9223372036854775807\n',
    "a head of /dev/zero": '[train-head]\nhead = "/dev/zero"\n',
    "an order of /dev/zero": '[train-head]\nclass-order = "/dev/zero"\n',
    "a list of inits": '[train-head]\ninit = [{a = 1}, "random"]\n',
    "a grid that is no list": "[sweep]\ngrid = 3\n",
    "a grid of lists": "[[sweep.grid]]\nlr = [[1]]\n",
    "a grid without end": '[[sweep.grid]]\nseed = "0:100000000000"\n',
    "an empty grid": "[[sweep.grid]]\n",
    "nothing": "",
}


def words(seed: str) -> Iterator[Trial]:
    """Yield grids, settings files and options that ask for too much or for nonsense."""
    for grid in _GRIDS:
        for more in ("--dry-run", "--search"):
            make = _grid(grid, more)
            yield trial("words", f"{grid[:40]!r}, {more}", make, seed=seed)
    for name, text in _TOMLS.items():
        for command in ("train-head", "sweep"):
            yield trial("words", f"TOML, {name}, {command}", _toml(text, command), seed=seed)
    for name, (command, options) in _OPTIONS.items():
        yield trial("words", f"options, {name}", _options(command, options), seed=seed)
    for name, environment in _ENVIRONMENTS.items():
        for reader in (
            "cache show",
            "report",
            "predict",
            "train-head",
            "diagnose",
            "manifest show",
        ):
            make = _environment(reader, environment)
            yield trial("words", f"{name}, {reader}", make, seed=seed)


def _grid(grid: str, more: str) -> Make:
    def make(scene: Scene) -> Argv:
        words = ["sweep", "--base", str(scene.work / "caches/base"), "--new"]
        words += [str(scene.work / "caches/new"), "--out", str(scene.out / "sweep")]
        small = ["iterations=2", "tasks=2", "batch_size=8", "buffer=10", "eval_every=2"]
        own = {word.partition("=")[0] for word in grid.split(" ")}
        words += [word for word in small if word.partition("=")[0] not in own]
        search = ["--search", "optuna", "--trials", "1", "init=random,class-mean"]
        return [*words, *(search if more == "--search" else [more]), *grid.split(" ")]

    return make


def _toml(text: str, command: str) -> Make:
    def make(scene: Scene) -> Argv:
        path = scene.own("settings.toml")
        path.write_bytes(text.encode("utf-8", "surrogateescape"))
        if command == "train-head":
            return scene.reader("train-head --config")
        places = [
            "--base",
            str(scene.work / "caches/base"),
            "--new",
            str(scene.work / "caches/new"),
        ]
        out = ["--out", str(scene.out / "sweep"), "--config", str(path)]
        return ["sweep", *places, *out, "--dry-run"]

    return make


_OPTIONS: Mapping[str, tuple[str, Sequence[str]]] = {
    "a backbone with an unknown tag": ("extract", ["--backbone", "convnextv2_atto.nope"]),
    "no blocks": ("extract", ["--model-arg=depths=[]"]),
    "blocks of text": ("extract", ["--model-arg=depths='abc'"]),
    "an argument that runs": ("extract", ["--model-arg=depths=__import__('os').getcwd()"]),
    "an argument without a value": ("extract", ["--model-arg=depths"]),
    "an argument that names a file": ("extract", ["--model-arg=checkpoint_path='/etc/passwd'"]),
    "an argument that downloads": ("extract", ["--model-arg=pretrained=True"]),
    "an argument of depth": ("extract", ["--model-arg=depths=" + "(" * 300 + ")" * 300]),
    "an input of 10^9 pixels": ("extract", ["--input-size", "1000000000"]),
    "an input of 10^5 pixels": ("extract", ["--input-size", "100000"]),
    "an input of 1 pixel": ("extract", ["--input-size", "1"]),
    "10^9 workers": ("extract", ["--workers", "1000000000"]),
    "batches of 10^12": ("extract", ["--batch-size", "1000000000000"]),
    "a mean of nan": ("extract", ["--mean", "nan"]),
    "a deviation of 0": ("extract", ["--std", "0"]),
    "a deviation of 1e-300": ("extract", ["--std", "1e-300"]),
    "out is /dev/null": ("extract", ["--out", "/dev/null"]),
    "out is /proc/x": ("extract", ["--out", "/proc/x"]),
    "out is /dev/null/x, train-head": ("train-head", ["--out", "/dev/null/x"]),
    "out is a name too long": ("train-head", ["--out", "x" * 300]),
    "out is too long a path": ("train-head", ["--out", "/".join(["x" * 200] * 30)]),
    "10^15 tasks": ("train-head", ["--tasks", "1000000000000000"]),
    "a batch of 10^12": ("train-head", ["--batch-size", "1000000000000"]),
    "a buffer of 10^18": ("train-head", ["--buffer", "1000000000000000000"]),
    "lambda of nan": ("train-head", ["--lambda", "nan"]),
    "lambda of -1": ("train-head", ["--lambda", "-1"]),
    "lambda of 1e400": ("train-head", ["--lambda", "1e400"]),
    "a rate of nan": ("train-head", ["--lr", "nan"]),
    "a rate of 1e30": ("train-head", ["--lr", "1e30"]),
    "a decay of inf": ("train-head", ["--weight-decay", "inf"]),
    "a class order of /dev/zero": ("train-head", ["--class-order", "/dev/zero"]),
    "a head of /dev/zero": ("train-head", ["--head", "/dev/zero"]),
    "a head that is an image": ("train-head", ["--head", "{work}/odd/good.png"]),
    "an out that is the base": ("train-head", ["--out", "{work}/caches/base/train/plan.json/x"]),
    "a rate of 1e300, align": ("align", ["--lr", "1e300"]),
    "a rank of 10^9": ("train-top", ["--rank", "1000000000"]),
    "alpha of nan": ("train-top", ["--alpha", "nan"]),
    "a budget of nonsense": ("train-top", ["--trunk-budget", "1e400GB"]),
    "a budget below zero": ("train-top", ["--trunk-budget", "-5GB"]),
    "10^9 blocks": ("train-top", ["--top-blocks", "1000000000"]),
    "a layer decay of nan": ("train-top", ["--layer-decay", "nan"]),
    "10^9 guesses": ("predict --csv", ["--top", "1000000000"]),
    "a plot in a folder that is none": ("report --plot", ["--plot", "/dev/null/x.png"]),
    "a plot of an unknown kind": ("report --plot", ["--plot", "{out}/x.exe"]),
    "a plot named with signs": ("report --plot", ["--plot", "{out}/$a_{{b$.png"]),
    "a backbone name with signs": ("cache import", ["--backbone", "$x_{{$ [bold]"]),
    "a data set name with an escape": ("cache import", ["--dataset", "\x1b[2J"]),
    "a backbone name with an escape": ("cache import", ["--backbone", "\x1b[2J"]),
}


def _options(command: str, more: Sequence[str]) -> Make:
    def make(scene: Scene) -> Argv:
        filled = [word.format(work=scene.work, out=scene.out) for word in more]
        return [*scene.writer(command), *filled]

    return make


_ENVIRONMENTS: Mapping[str, dict[str, str]] = {
    "ASCII": {"PYTHONIOENCODING": "ascii"},
    "latin-1": {"PYTHONIOENCODING": "latin-1"},
    "10 columns": {"COLUMNS": "10"},
    "3 columns": {"COLUMNS": "3"},
    "1 column": {"COLUMNS": "1"},
    "no columns": {"COLUMNS": "0"},
}


def _environment(reader: str, environment: dict[str, str]) -> Make:
    def make(scene: Scene) -> Argv:
        scene.environment = environment
        return scene.reader(reader)

    return make
