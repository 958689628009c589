"""The claims of README and manual that need no data of yours: each run, measured and judged.

    python benchmarks/artifact.py --out benchmarks/

Everything is made from the handwritten digits of scikit-learn. A claim has an interval in which its
value must lie; accuracies are means over five seeds. docs/artifact.md lists the claims.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import CONSOLE, ProcessCost, machine, markdown, measure, show, versions, write

NETWORK = (
    "--backbone convnextv2_atto --model-arg depths=(1,1,2,1) --model-arg dims=(16,32,64,128)"
    " --weights demo/backbone.safetensors --input-size 32"
)
CACHES = "--base demo/caches/base --new demo/caches/new"
SMALL = "tasks=3 batch_size=64 seed=0:5"
TIMM = """
import json, timm, torch, clinit
from pathlib import Path
from PIL import Image
files = sorted(Path("demo/digits/new/val").glob("*/*.png"))
network = timm.create_model("local-dir:model", pretrained=True).eval()
transform = timm.data.create_transform(**timm.data.resolve_model_data_config(network))
images = torch.stack([transform(Image.open(file).convert("RGB")) for file in files])
with torch.no_grad():
    rows = network(images).argmax(1).tolist()
model = clinit.load("model")
names = [each.guesses[0].name for each in model.predict(files)]
same = [name == model.class_names[row] for name, row in zip(names, rows)]
Path("timm.json").write_text(str(sum(same) / len(same)))
"""


@dataclass(frozen=True, slots=True)
class Claim:
    """A sentence of the manual, and the number that it stands on."""

    name: str
    words: str
    """The command without `clinit`; empty: the command of the claim before."""
    low: float
    high: float
    unit: str
    value: Callable[[Path, ProcessCost], float]

    @property
    def command(self) -> str:
        """The command as a user types it."""
        return self.words if self.words.startswith("python") else f"clinit {self.words}"


def minutes(folder: Path, cost: ProcessCost) -> float:
    """Return the CPU time of the command, which other processes of the machine hardly change."""
    return cost.cpu_s / 60


def less(runs: str, measure_: str, one: Mapping[str, Any], other: Mapping[str, Any]) -> Any:
    """Return a function: the mean of one setting less the mean of another."""

    def value(folder: Path, cost: ProcessCost) -> float:
        from clinit.analysis.runs import load_runs

        rows = load_runs(folder / runs).rows()

        def mean(wanted: Mapping[str, Any]) -> float:
            own = [row for row in rows if wanted.items() <= row["config"].items()]
            return float(sum(row[measure_] for row in own) / len(own))

        return mean(one) - mean(other)

    return value


def top1(name: str) -> Any:
    """Return a function: the accuracy in a file of `clinit evaluate --csv`."""

    def value(folder: Path, cost: ProcessCost) -> float:
        import polars as pl

        return 100 * float(pl.read_csv(folder / name)["right"].mean())  # type: ignore[arg-type]

    return value


def held(folder: Path, cost: ProcessCost) -> float:
    """Return how many of 12 starts and trainings learn new classes better than random rows."""
    found = json.loads((folder / "five/tables/last-layer.json").read_text())["effects"]
    own = [e for e in found if (e["metric"], e["other"]) == ("acc_new", "random")]
    return float(sum(each["verdict"] == "holds" for each in own))


def ratio(folder: Path, cost: ProcessCost) -> float:
    """Return updates per second of clinit over those of a loop in plain PyTorch."""
    (page,) = (folder / "speed").glob("heads_*.md")
    rows = [line.split("|") for line in page.read_text().splitlines() if line.startswith("| ")]
    rates = {row[1].strip(): row[2] for row in rows}
    numbers = [
        float(re.sub("[^0-9.]", "", rates[name]))
        for name in ("clinit, one head, float32", "PyTorch, DataLoader")
    ]
    return numbers[0] / numbers[1]


RANDOM, COMPUTED = {"init": "random"}, {"init": "least-square"}
CLAIMS = (
    Claim("the demo takes about a minute", "demo --out demo", 0, 2, "CPU min", minutes),
    Claim(
        "before training, computed rows recognise new classes, random rows do not",
        f"sweep {CACHES} --out starts {SMALL} iterations=600 init=random,least-square",
        *(70, 100, "points"),
        less("starts", "acc_new_start", COMPUTED, RANDOM),
    ),
    Claim(
        "after 600 updates, computed rows are no worse",
        "",
        *(-2, 10, "points"),
        less("starts", "last_accuracy", COMPUTED, RANDOM),
    ),
    Claim(
        "class statistics replace the old images",
        f"sweep {CACHES} --out old {SMALL} iterations=300 mix=uniform old_rows=statistics,stored",
        *(-6, 3, "points"),
        less("old", "last_accuracy", {"old_rows": "statistics"}, {"old_rows": "stored"}),
    ),
    Claim(
        "a closed form is as good as training",
        f"sweep {CACHES} --out closed {SMALL} iterations=300 method=ranpac,rehearsal"
        " ranpac_width=2000",
        *(-3, 5, "points"),
        less("closed", "last_accuracy", {"method": "ranpac"}, {"method": "rehearsal"}),
    ),
    Claim(
        "classes are added to a model",
        f"add {NETWORK} --old demo/caches/base demo/digits/new --out model",
        *(0, 2, "CPU min"),
        minutes,
    ),
    Claim(
        "the model recognises the new classes",
        "evaluate model demo/digits/new/val --csv new.csv",
        *(70, 95, "%"),
        top1("new.csv"),
    ),
    Claim(
        "and still the old ones",
        "evaluate model demo/digits/base/val --csv base.csv",
        *(90, 100, "%"),
        top1("base.csv"),
    ),
    Claim(
        "timm, without clinit, predicts the same",
        "python timm_agrees.py",
        *(1, 1, "share"),
        lambda folder, cost: float((folder / "timm.json").read_text()),
    ),
    Claim(
        "all tables of the paper are made on digits",
        "reproduce all --scale-down --out paper",
        *(0, 4, "CPU min"),
        minutes,
    ),
    Claim(
        "with every loss, computed rows learn new classes better than random rows",
        "reproduce last-layer --scale-down --seeds 5 --out five",
        *(10, 12, "of 12 effects"),
        held,
    ),
    Claim(
        "heads train faster than a loop in PyTorch",
        "python benchmarks/heads.py --iterations 100 --block 25 --banks 1 --no-avalanche"
        " --no-protocol --threads 1 --out speed",
        *(1, 4, "times"),
        ratio,
    ),
)


def run(claim: Claim, folder: Path) -> ProcessCost:
    """Run the command of a claim in the folder."""
    words = shlex.split(claim.words)
    if words[0] == "python":
        script = Path(words[1])
        found = folder / script if len(script.parts) == 1 else Path(__file__).parent / script.name
        words = [str(found), *words[2:]]
    else:
        words = ["-m", "clinit", "--quiet", *words]
    here = Path.cwd()
    os.chdir(folder)
    try:
        return measure([sys.executable, *words], {"OMP_NUM_THREADS": "2"})
    finally:
        os.chdir(here)


def main() -> None:
    """Run all claims, print them, and write the dated page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="Folder of the dated file; default: none.")
    out = parser.parse_args().out
    load, lines, failed, cost = os.getloadavg()[0], [], [], ProcessCost(0, 0, 0)
    with tempfile.TemporaryDirectory(prefix="clinit-artifact-") as name:
        folder = Path(name)
        (folder / "timm_agrees.py").write_text(TIMM)
        for claim in CLAIMS:
            CONSOLE.print(claim.name)
            cost = run(claim, folder) if claim.words else cost
            value = claim.value(folder, cost)
            holds = claim.low <= value <= claim.high
            failed += [] if holds else [claim.name]
            spent = f"{cost.wall_s / 60:.1f}", f"{cost.peak_bytes / 1e9:.1f}"
            wanted = f"{claim.low:g} to {claim.high:g} {claim.unit}"
            own = spent if claim.words else ("", "")
            lines.append([claim.name, *own, f"{value:.2f}", wanted, "yes" if holds else "NO"])
    headings = ["claim", "minutes", "GB", "value", "expected", "holds"]
    show("The claims", headings, lines)
    commands = [[each.name, f"`{each.command}`" if each.words else "as above"] for each in CLAIMS]
    text = [
        "# The claims of the manual",
        "",
        f"{datetime.date.today()}. {machine(load)}. {versions('clinit', 'torch', 'timm')}."
        " Command: `python benchmarks/artifact.py --out benchmarks/`.",
        "",
        *markdown(headings, lines),
        "",
        *markdown(["claim", "command"], commands),
    ]
    write(out, "artifact", text)
    if failed:
        raise SystemExit(f"does not hold: {'; '.join(failed)}")


if __name__ == "__main__":
    main()
