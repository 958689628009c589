"""New classes for a released head, in four modalities, by command.

    python benchmarks/modalities.py bytes MAGIKA_FOLDER WORK     # files of this machine
    python benchmarks/modalities.py packages WORK                # `apt-cache dumpavail`
    python benchmarks/modalities.py FILE.npz WORK                # x (rows, dim) and y: any features
    python benchmarks/modalities.py CACHES WORK                  # folders base and new of `extract`

Writes WORK/set.npz for `benchmarks/discriminants.py`, and the files that `clinit add` reads. Then
`add` gets twenty rows of every new class (half of the rows, if there are fewer), with the rows of
old classes and without, and `evaluate` counts the answers on rows that were set aside.

bytes: the network of magika (Apache 2.0) reads the first and last 1,024 bytes of a file. Its
ONNX file contains the head: 214 types from 512 features. Types of files are told by their endings.
packages: TF-IDF and 200 singular vectors of descriptions of Debian packages; the first half of
the sections, by size, are old classes.
"""  # fmt: skip

from __future__ import annotations

import argparse
import hashlib
import json
import resource
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from harness import CONSOLE, markdown, versions, write

KNOWN = {
    "html": "html", "pyc": "pythonbytecode", "py": "python", "gz": "gzip", "jpg": "jpeg",
    "json": "json", "rst": "rst", "yaml": "yaml", "js": "javascript", "so": "elf", "deb": "deb",
    "png": "png", "xml": "xml", "jar": "jar", "md": "markdown", "css": "css", "svg": "svg",
    "woff2": "woff2", "cmake": "cmake", "php": "php", "sql": "sql", "sh": "shell", "ttf": "ttf",
    "gif": "gif", "csv": "csv", "c": "c", "cpp": "cpp", "whl": "zip", "patch": "diff",
}  # fmt: skip
ADDED = ("mo", "vim", "decTest", "enc", "msg", "symbols", "bc", "terminfo")
SHOTS, SIDES = 20, ("old", "new")


class Rows(NamedTuple):
    """Features and labels: old classes to train and to test, new ones alike; the head."""

    old: tuple[np.ndarray, np.ndarray]
    old_test: tuple[np.ndarray, np.ndarray]
    new: tuple[np.ndarray, np.ndarray]
    new_test: tuple[np.ndarray, np.ndarray]
    head: tuple[np.ndarray, np.ndarray]
    names: tuple[tuple[str, ...], tuple[str, ...]]


def halves(parts: dict[str, np.ndarray], names: Iterable[str]) -> tuple[np.ndarray, ...]:
    """Return one half of the rows of each class with labels, and the other half."""
    found: list[list[np.ndarray]] = [[], [], [], []]
    for label, name in enumerate(names):
        rows = parts.get(name, np.empty((0, 0)))
        if len(rows) < 4:
            continue
        shuffled = rows[np.random.default_rng(0).permutation(len(rows))]
        for place, half in ((0, shuffled[::2]), (2, shuffled[1::2])):
            found[place].append(half)
            found[place + 1].append(np.full(len(half), label))
    return tuple(np.concatenate(each) for each in found)


def of_parts(
    parts: dict[str, np.ndarray], old: tuple[str, ...], head: tuple[np.ndarray, np.ndarray] | None
) -> Rows:
    """Divide rows by class; without a head, fit one to the old half."""
    new = tuple(name for name in parts if name not in old)
    x, y, tx, ty = halves(parts, old)
    nx, ny, mx, my = halves(parts, new)
    if head is None:
        from sklearn.linear_model import LogisticRegression

        mean, deviation = x.mean(0), x.std(0) + 1e-9
        model = LogisticRegression(max_iter=500).fit((x - mean) / deviation, y)
        weight = model.coef_ / deviation
        head = weight, model.intercept_ - weight @ mean
    return Rows((x, y), (tx, ty), (nx, ny), (mx, my), head, (old, new))


def of_bytes(folder: Path) -> Rows:
    """Compute features of files of this machine, a class per kind of file."""
    import onnx
    import onnxruntime

    (path,) = folder.glob("**/models/*/model.onnx")
    network = onnx.load(path)
    values = {each.name: onnx.numpy_helper.to_array(each) for each in network.graph.initializer}
    last = [node for node in network.graph.node if node.op_type == "MatMul"][-1]
    (add,) = [node for node in network.graph.node if last.output[0] in node.input]
    (bias,) = [values[name] for name in add.input if name in values]
    network.graph.output.append(onnx.helper.make_empty_tensor_value_info(last.input[0]))
    session = onnxruntime.InferenceSession(network.SerializeToString())
    names = json.loads((path.parent / "config.min.json").read_text())["target_labels_space"]
    command = "find / -xdev -type f -size +0 ! -path '/proc/*' ! -path '/sys/*' ! -path '/tmp/*'"
    listed: dict[str, list[Path]] = {}
    done = subprocess.run(command, shell=True, capture_output=True, text=True, errors="replace")
    for place in map(Path, done.stdout.splitlines()):
        kind = "terminfo" if "terminfo" in place.parts else place.suffix[1:]
        if name := KNOWN.get(kind, kind if kind in ADDED else None):
            listed.setdefault(name, []).append(place)
    parts = {}
    for name, places in sorted(listed.items()):
        order, contents = np.random.default_rng(0).permutation(len(places)), {}
        for number in order[:400]:
            try:
                content = places[number].read_bytes()
            except OSError:
                continue
            contents.setdefault(hashlib.sha256(content).digest(), content)
        given = np.array([_input(each) for each in list(contents.values())[:120]], np.int32)
        parts[name] = session.run([last.input[0]], {"bytes": given})[0]
    return of_parts(parts, tuple(names), (values[last.input[1]].T, bias.ravel()))


def _input(content: bytes) -> list[int]:
    first, last = content[:4096].lstrip()[:1024], content[-4096:].rstrip()[-1024:]
    return [*first, *[256] * (1024 - len(first)), *[256] * (1024 - len(last)), *last]


def of_packages() -> Rows:
    """Return features of the descriptions of packages, a class per section."""
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer

    listed = subprocess.run(["apt-cache", "dumpavail"], capture_output=True, text=True, check=True)
    texts: dict[str, list[str]] = {}
    for record in listed.stdout.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in record.splitlines() if ": " in line)
        if "Section" in lines:
            about = record[record.find("Description") :] if "Description" in record else ""
            texts.setdefault(lines["Section"].split("/")[-1], []).append(about)
    sections = sorted(
        (name for name in texts if len(texts[name]) >= 60), key=lambda n: -len(texts[n])
    )
    old = tuple(sections[: len(sections) // 2])
    picked = [(name, text) for name in sections for text in texts[name][:200]]
    model = TfidfVectorizer(sublinear_tf=True, min_df=2)
    words = model.fit_transform([text for _, text in picked])
    known = np.array([name in old for name, _ in picked])
    rows = TruncatedSVD(200, random_state=0).fit(words[known]).transform(words).astype("f4")
    labels = np.array([name for name, _ in picked])
    return of_parts({name: rows[labels == name] for name in sections}, old, None)


def of_file(path: Path) -> Rows:
    """Divide features in a file: the first half of the classes is old."""
    with np.load(path) as stored:
        x, y = stored["x"], stored["y"]
    parts = {f"class {c}": x[y == c] for c in np.unique(y)}
    return of_parts(parts, tuple(list(parts)[: len(parts) // 2]), None)


def of_caches(folder: Path) -> Rows:
    """Read the caches base, with a head, and new of one network."""
    import clinit

    base, new = (clinit.load_cache(folder / side) for side in ("base", "new"))
    assert base.head is not None
    sides = [(each.features[:], each.labels) for each in (base.train, base.val, new.train, new.val)]
    head = base.head.weight, base.head.bias
    return Rows(sides[0], sides[1], sides[2], sides[3], head, (base.class_names, new.class_names))


def run(*words: str | Path) -> tuple[str, float]:
    """Run a command of clinit; return what it prints, and its CPU seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "clinit", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return done.stdout, spent


def main() -> None:
    """Write the files, run the commands, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", nargs="+")
    parser.add_argument("work", type=Path)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    kind, *rest = asked.source
    if kind == "bytes":
        rows = of_bytes(Path(rest[0]))
    elif kind == "packages":
        rows = of_packages()
    else:
        rows = of_caches(Path(kind)) if Path(kind).is_dir() else of_file(Path(kind))
    work: Path = asked.work
    work.mkdir(parents=True, exist_ok=True)
    (x, y), (tx, ty), (nx, ny), (mx, my), (weight, bias), (old, new) = rows
    np.savez(
        work / "set.npz", bx=x, by=y, vx=tx, vy=ty, nx=nx, ny=ny, tx=mx, ty=my, W=weight, b=bias
    )
    few = np.concatenate([np.flatnonzero(ny == c)[:SHOTS] for c in np.unique(ny)])
    np.savez(work / "head.npz", weight=weight.astype("f4"), bias=bias.astype("f4"),
             class_names=np.array(old))  # fmt: skip
    for name, (features, labels), names in (
        ("old", (x, y), old),
        ("old-test", (tx, ty), old),
        ("new", (nx[few], ny[few]), new),
        ("new-test", (mx, my), new),
    ):
        named = np.array(names)[labels]
        np.savez(work / f"{name}.npz", features=features.astype("f4"), labels=named)
    head, lines = work / "head.npz", []
    before, _ = top1(head, work / "old-test.npz")
    for basis, options in (("head alone", ()), ("old rows", ("--old", work / "old.npz"))):
        grown = work / f"{basis.replace(' ', '-')}.npz"
        words = ("add", head, work / "new.npz", "--out", grown, "--overwrite", *options)
        _, spent = run(*words)
        (old_now, _), (new_now, seconds) = (top1(grown, work / f"{t}-test.npz") for t in SIDES)
        counts, change = f"{len(old)} + {len(np.unique(ny))}", f"{before:.1f} / {old_now:.1f}"
        told = f"{spent:.1f}", change, f"{new_now:.1f}", f"{seconds:.1f}"
        lines.append((work.name, counts, basis, *told))
        CONSOLE.print(*lines[-1])
    heading = ["set", "old + new classes", "known of old classes", "CPU s of add"]
    heading += ["old top-1 before / after, %", "new top-1, %", "CPU s of evaluate"]
    note = f"{SHOTS} rows per new class, one thread, {versions('numpy', 'scipy')}."
    write(asked.out, f"modalities-{work.name}", [note, "", *markdown(heading, lines)])


def top1(head: Path, rows: Path) -> tuple[float, float]:
    """Return the accuracy of a head, in percent, and CPU seconds."""
    told, spent = run("evaluate", head, rows, "--json")
    return json.loads(told)["top1"], spent


if __name__ == "__main__":
    main()
