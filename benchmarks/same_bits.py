"""Compare the bits that two checkouts write: caches, heads, records, resumed runs, exports.

    git worktree add /elsewhere/before COMMIT
    python benchmarks/same_bits.py /elsewhere/before
    CLINIT_REALDATA=/photographs python benchmarks/same_bits.py /elsewhere/before

Both checkouts run the same commands on the embedded digits and, if given, on photographs. Every
array, table and setting is compared, but not dates, durations, the shares of work that an earlier
attempt had done, and files that only one checkout writes. The exit code is 1 if something differs.
`tests/faults` also uses the digests.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import sqlite3
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

Results = dict[str, str]
"""Digests by file below a folder, without content that may differ."""

_TIMES = re.compile(
    r"seconds|elapsed|started|(^|_)load|_s$|per_s|^bound$|^shares$|timing|^time|^date|computed"
)
"""Keys of JSON documents and columns of tables that differ from run to run."""
_DIGESTS = ("sha256", "files", "digests")
_CODE = "git_commit"
_LOCK = re.compile(r"^\.?[\w-]*\.?lock$")
_DRAFT = re.compile(r"\.tmp-|\.draft|~$|\.part$|-journal$|-wal$|-shm$")
_DATE = re.compile(r"\d{4}-\d\d-\d\dT[0-9:+]+")


def results(folder: Path, *places: Path) -> Results:
    """Return the digests of all compared files below `folder`.

    Args:
        folder: The --out of a command, or its parent folder.
        places: Further folders whose names occur in documents and differ between trials.
    """
    return {
        str(path.relative_to(folder)): digest(path, (*places, folder))
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not is_lock(path) and not is_draft(path, folder)
    }


def litter(folder: Path) -> list[str]:
    """Return the drafts left below `folder`: hidden files other than locks."""
    found = [path for path in sorted(folder.rglob("*")) if is_draft(path, folder)]
    return [str(path.relative_to(folder)) for path in found if not is_lock(path)]


def is_lock(path: Path) -> bool:
    """Return whether a file is a lock, which may stay."""
    return bool(_LOCK.match(path.name)) or path.name.endswith((".lock", ".claim"))


def is_draft(path: Path, folder: Path) -> bool:
    """Return whether a file or one of its folders is hidden or has the name of a draft."""
    parts = path.relative_to(folder).parts
    return any(part.startswith(".") or _DRAFT.search(part) for part in parts)


def digest(path: Path, places: Sequence[Path]) -> str:
    """Return the digest of a file: of its content if the format is known, else of its bytes."""
    try:
        content = _content(path, places)
    except Exception as error:
        content = f"unreadable: {type(error).__name__}".encode() + path.read_bytes()
    return hashlib.sha256(content).hexdigest()[:16]


def _content(path: Path, places: Sequence[Path]) -> bytes:
    if path.suffix == ".json":
        return _plain(json.loads(path.read_text(encoding="utf-8")), places)
    if path.suffix == ".parquet":
        import polars as pl

        table = pl.read_parquet(path.read_bytes())
        kept = [name for name in table.columns if not _TIMES.search(name)]
        return repr((table.select(kept).schema, table.select(kept).rows())).encode()
    if path.suffix in (".safetensors", ".checkpoint"):
        return _safetensors(path.read_bytes(), places)
    if path.suffix == ".db":
        return _study(path)
    if path.suffix == ".md":  # a model card contains dates
        text = _DATE.sub("@", path.read_text(encoding="utf-8"))
        return _unplaced(text, places).encode()
    return _unplaced(path.read_bytes().decode("latin-1"), places).encode("latin-1")


def _plain(value: Any, places: Sequence[Path]) -> bytes:
    return _unplaced(json.dumps(without_times(value), sort_keys=True), places).encode()


def _unplaced(text: str, places: Sequence[Path]) -> str:
    for place in places:
        text = text.replace(str(place), "@")
    return text


def without_times(value: Any) -> Any:
    """Return a document without its times."""
    if isinstance(value, dict):
        return {k: without_times(v) for k, v in value.items() if not _is_left_out(k, v)}
    if isinstance(value, list):
        return [without_times(each) for each in value]
    return value


def _is_left_out(key: str, value: Any) -> bool:
    # Left out: `run` of cache.json, which depends on the attempt; digests, which are of files that
    # contain times or are compared themselves; and work that earlier attempts did.
    circumstances = isinstance(value, dict) and "computed_rows" in value
    shared = key == "activations" and not isinstance(value, str)
    return bool(_TIMES.search(key)) or circumstances or shared or key in (*_DIGESTS, _CODE)


def _safetensors(content: bytes, places: Sequence[Path]) -> bytes:
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    told = {name: _told(text) for name, text in header.pop("__metadata__", {}).items()}
    tensors = []
    for name in sorted(header):
        start, stop = header[name]["data_offsets"]
        if _TIMES.search(name.rsplit(".", 1)[-1]):
            continue
        data = hashlib.sha256(content[8 + length + start : 8 + length + stop]).hexdigest()
        tensors.append((name, header[name]["dtype"], header[name]["shape"], data))
    return _plain(told, places) + repr(tensors).encode()


def _told(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _study(path: Path) -> bytes:
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as study:
        rows = study.execute(
            "select t.number, t.state, p.param_name, p.param_value, v.value from trials t"
            " left join trial_params p on p.trial_id = t.trial_id"
            " left join trial_values v on v.trial_id = t.trial_id order by 1, 3"
        ).fetchall()
    study.close()
    return repr(rows).encode()


def compare(found: Mapping[str, str], wanted: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Return the missing files, and the files that differ or are additional."""
    missing = [name for name in wanted if name not in found]
    other = [name for name in found if found[name] != wanted.get(name)]
    return missing, other


SMALL = ("--tasks", "2", "--iterations", "20", "--eval-every", "10", "--device", "cpu")


def commands(out: Path, photographs: Path | None) -> Iterator[tuple[str, ...]]:
    """Yield the commands in an order in which the inputs of each exist."""
    yield ("demo", "--out", f"{out}/demo")
    if photographs is None:
        return
    weights = photographs / "weights" / "vit_tiny_patch16_224.safetensors"
    names = ("--head-classes", "dataset")
    for name, data, own in (("base", "imagenet_mini", names), ("new", "places50", ())):
        yield (
            *("extract", "--dataset", "folder", "--root", f"{photographs}/{data}"),
            *("--backbone", "vit_tiny_patch16_224", "--weights", str(weights)),
            *("--mean", "0.5", "--std", "0.5", "--limit-per-class", "8", "--device", "cpu"),
            *("--out", f"{out}/{name}", *own),
        )
    sides = ("--base", f"{out}/base", "--new", f"{out}/new", *SMALL)
    for method in ("rehearsal", "naive", "joint"):
        both = ("--loss", "ce", "--scale", "norm", "--scale", "calibrated")
        yield ("train-head", *sides, "--method", method, *both, "--out", f"{out}/heads-{method}")
    for method in ("ncm", "ridge", "lda"):
        closed = ("--tasks", "2", "--device", "cpu", "--method", method)
        yield ("train-head", *sides[:4], *closed, "--out", f"{out}/heads-{method}")
    grid = ("init=random,lda,class-mean", "loss=ce,mse,sqen", "seed=0:2", "device=cpu")
    short = ("iterations=10", "eval_every=5", "tasks=2", "buffer=500")
    yield ("sweep", *sides[:4], *grid, *short, "--out", f"{out}/sweep")
    brief = ("--tasks", "2", "--iterations", "3", "--eval-every", "3", "--buffer", "40")
    few = (*sides[:4], *brief, "--batch-size", "8", "--device", "cpu", "--init", "least-square")
    for method in ("rehearsal", "ewc", "derpp"):
        more = ("--trunk-budget", "1GB", "--no-probe")
        yield ("train-top", *few, "--method", method, *more, "--out", f"{out}/top-{method}")
    aligned = ("--epochs", "2", "--device", "cpu", "--out", f"{out}/mse.safetensors")
    yield ("head", "align", f"{out}/base", *aligned)
    run = f"{out}/heads-rehearsal/least-square-calibrated"
    yield ("export", run, "--out", f"{out}/model.safetensors")


def written(checkout: Path, out: Path, photographs: Path | None) -> Results:
    """Run the commands of a checkout; return the digests of their outputs."""
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "1"}
    for words in commands(out, photographs):
        command = [sys.executable, "-m", "clinit", *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(
                f"`clinit {' '.join(words)}` of {checkout}:\n{done.stdout}{done.stderr}"
            )
    return results(out)


def main() -> None:
    """Compare two checkouts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", type=Path, help="The other checkout.")
    before = parser.parse_args().before
    told = os.environ.get("CLINIT_REALDATA")
    photographs = Path(told) if told else None
    now = Path(__file__).resolve().parents[1]
    found = []
    for checkout in (before, now):
        with tempfile.TemporaryDirectory(prefix="clinit-bits-") as folder:
            found.append(written(checkout, Path(folder), photographs))
    both = found[0].keys() & found[1].keys()
    other = sorted(name for name in both if found[0][name] != found[1][name])
    alone = sorted(found[0].keys() ^ found[1].keys())
    print(f"{len(both)} files are compared, {len(both) - len(other)} are the same")
    for name in other:
        print(f"differs: {name}")
    for name in alone:
        print(f"in one alone: {name}")
    sys.exit(1 if other else 0)


if __name__ == "__main__":
    main()
