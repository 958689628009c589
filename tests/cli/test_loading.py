"""What is loaded at each step of one process: heavy packages come when they are needed."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from clinit.extract.cache.head import Head, write_head
from clinit.headtrain.model.export import Export
from tests.cli.test_main import TRAIN

EARLY = (
    (*TRAIN, "--method=rehersal"),
    (*TRAIN, "--tasks=0"),
    (*TRAIN, "--lr=-1"),
    TRAIN,
    ("train-top", "--base=absent", "--new=absent", "--out=o"),
    ("sweep", "--base=absent", "--new=absent", "--out=o", "itertions=3"),
    ("extract", "--dataset=imagnet", "--root=absent", "--out=o"),
    ("extract", "--dataset=folder", "--root=.", "--out=o", "--mean=127"),
    ("head", "align", "absent", "--out=h.safetensors"),
    ("diagnose", "absent"),
    ("head", "fit", "absent"),
    ("predict", "absent", "absent"),
    ("export", "absent", "--out=o"),
    ("add", "absent", "absent", "--out=o"),
    ("add", "--backbone=nope", "absent", "--out=o"),
    ("remember", "absent", "absent", "--out=o"),
    ("remember", ".", "absent", "--out=o"),
    ("remember", "--backbone=nope", "absent", "--out=o"),
    ("remove", "absent", "ant", "--out=o"),
    ("rename", "absent", "ant=bee", "--out=o"),
    ("model", "show", "absent"),
    ("reproduce", "last-layer", "--base=absent", "--new=absent"),
    ("diagnose", "cache", "--head=absent"),
    ("align", "cache", "--out=file/h.safetensors"),
    ("train-head", "--base=cache", "--new=cache", "--out=file/o"),
    ("train-top", "--base=cache", "--new=cache", "--out=file/o"),
    ("sweep", "--base=cache", "--new=cache", "--out=file/o", "lr=0.1"),
    ("export", "cache", "--out=file/o"),
    ("remember", ".", ".", "--out=file/o"),
    ("add", "--backbone=convnextv2_atto", "empty", "--out=o"),
)
POLARS = (
    ("extract", "--dataset=folder", "--root=absent", "--out=o"),
    ("extract", "--manifest=absent.parquet", "--root=.", "--out=o", "--backbone=nope"),
    ("extract", "--dataset=folder", "--root=empty", "--out=o", "--backbone=nope"),
)
"""These read what is there, for which Polars is loaded."""


HEAVY = {"torch", "timm", "h5py", "polars", "scipy", "sklearn", "matplotlib", "numpy"}
COMMANDS = {"clinit.cli.commands.train_head", "clinit.cli.commands.sweep"}
MAIN = """
from clinit.cli.main import main
sys.argv = ["clinit", *{!r}]
try:
    main()
except SystemExit as ended:
    assert ended.code in (None, 1, 2), sys.argv
"""
SETTINGS = (
    "protocol.study",
    "heads.start.settings",
    "heads.closed.settings",
    "model.settings",
    "probe.settings",
)
FILES = (
    *("analysis.report", "extract.cache.read", "extract.work.import_features"),
    *("extract.cache.verify", "headtrain.protocol.record.format"),
)
STEPS = (
    ("import clinit; dir(clinit)", HEAVY),
    *((f"import clinit.headtrain.{module}", HEAVY) for module in SETTINGS),
    ("from clinit.cli.main import app; app(['--help'], standalone_mode=False)", HEAVY | COMMANDS),
    *((MAIN.format(words), {"torch", "timm", "polars", "h5py", "scipy"}) for words in EARLY),
    *((MAIN.format(words), {"torch", "timm", "scipy"}) for words in POLARS),
    *((f"import clinit.{module}", {"torch"}) for module in FILES),
    ("from clinit.extract.cache.head import read_head; read_head(Path('h'))", {"torch"}),
)
"""What is done, and what must not have been loaded by then."""


def test_heavy_packages_are_loaded_when_they_are_needed(tmp_path: Path, tiny_onnx: Export) -> None:
    image = min((tiny_onnx.run.record.path.parent / "base" / "val").glob("*/*"))
    words = ("predict", f"{tiny_onnx.path / 'model.onnx'}", f"{image}")
    steps = (*STEPS, (MAIN.format(words), {"torch", "timm"}))
    code = (
        f"import sys; from pathlib import Path\nfor code, heavy in {steps!r}:\n"
        "    exec(code)\n    assert not heavy & {*sys.modules}, (code, heavy & {*sys.modules})\n"
    )
    write_head(Head(np.eye(2, dtype=np.float32), np.zeros(2, dtype=np.float32)), tmp_path / "h")
    (tmp_path / "cache" / "train").mkdir(parents=True)
    (tmp_path / "cache" / "train" / "plan.json").touch()
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    command = [sys.executable, "-c", code]
    variables = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": f"{tmp_path}"}
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, env=variables
    )
    assert done.returncode == 0, done.stderr
