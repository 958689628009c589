"""Least squares with 1,365 classes: clinit, scikit-learn, torch and the machine's limit.

    python benchmarks/least_squares.py --out benchmarks/

Each line is measured in its own process. Peak memory is the memory that the call adds to a process
with the float16 features. The limit is N d^2 multiply-adds at the rate of the machine's float64
matrix product, measured in the same process just before. Methods that would need more than 8 GiB in
addition to the features are not run.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import command, machine, versions, write

CLASSES = 1365
LAM = 0.05
MEMORY_LIMIT = 8 * 2**30
METHODS = ("clinit", "scikit-learn Ridge", "torch lstsq")
SIZES = [(rows, dim) for rows in (100_000, 1_000_000) for dim in (192, 384, 768, 2048)]


def dense_bytes(rows: int, dim: int) -> int:
    """Float64 copies of features and one-hot targets, twice: the data and a weighted copy."""
    return 2 * 8 * rows * (dim + 1 + CLASSES)


def measure(method: str, rows: int, dim: int, repeats: int, out: Path) -> dict[str, Any]:
    """Run one method in this process."""
    import numpy as np

    rng = np.random.default_rng(0)
    labels = rng.integers(0, CLASSES, rows)
    features = np.empty((rows, dim), dtype=np.float16)
    centres = rng.standard_normal((CLASSES, dim), dtype=np.float32)
    for start in range(0, rows, 10_000):
        part = slice(start, start + 10_000)
        noise = rng.standard_normal((len(labels[part]), dim), dtype=np.float32)
        features[part] = centres[labels[part]] + noise + 0.5
    weights = (1 / (CLASSES * np.bincount(labels, minlength=CLASSES)))[labels]
    gemm, syrk = product_rates(dim)
    solve = {
        "clinit": run_clinit,
        "scikit-learn Ridge": run_sklearn,
        "torch lstsq": run_torch,
    }[method]
    solve(features[:3000], labels[:3000], weights[:3000])  # import, threads, first touch
    before = resident_bytes()
    seconds = []
    for _ in range(repeats):
        started = _clock()
        weight = solve(features, labels, weights)
        seconds.append(_clock() - started)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    np.save(out, weight)
    return {
        "seconds": statistics.median(seconds),
        "bytes": max(0, peak - before),
        "gemm": gemm,
        "syrk": syrk,
    }


def run_clinit(features: Any, labels: Any, weights: Any) -> Any:
    """One pass, no one-hot targets."""
    import numpy as np

    import clinit

    head = clinit.least_squares(features, labels, num_classes=CLASSES, lam=LAM)
    return np.c_[head.weight, head.bias]


def run_sklearn(features: Any, labels: Any, weights: Any) -> Any:
    """Dense one-hot targets; the column of ones is penalised, as in the paper."""
    import numpy as np
    from sklearn.linear_model import Ridge

    design = np.ones((len(features), features.shape[1] + 1))
    design[:, :-1] = features
    targets = np.zeros((len(labels), CLASSES))
    targets[np.arange(len(labels)), labels] = 1
    ridge = Ridge(alpha=LAM, solver="cholesky", fit_intercept=False, copy_X=False)
    return ridge.fit(design, targets, sample_weight=weights).coef_


def run_torch(features: Any, labels: Any, weights: Any) -> Any:
    """Orthogonal factorisation of the weighted rows above sqrt(lam) I."""
    import numpy as np
    import torch

    rows, dim = features.shape
    root = torch.from_numpy(np.sqrt(weights))
    design = torch.zeros(rows + dim + 1, dim + 1, dtype=torch.float64)
    design[:rows, :-1] = torch.from_numpy(features)
    design[:rows, -1] = 1
    design[:rows] *= root[:, None]
    design[rows:] = LAM**0.5 * torch.eye(dim + 1, dtype=torch.float64)
    targets = torch.zeros(rows + dim + 1, CLASSES, dtype=torch.float64)
    targets[torch.arange(rows), torch.from_numpy(labels)] = root
    return torch.linalg.lstsq(design, targets, driver="gels").solution.T.numpy()


def product_rates(dim: int) -> tuple[float, float]:
    """Return multiply-adds/s of dgemm, and rows/s of dsyrk times d^2, both for X^T X."""
    import numpy as np
    from scipy.linalg.blas import dgemm, dsyrk

    block = np.random.default_rng(0).standard_normal((4096, dim))
    total = np.zeros((dim, dim)).T
    work = len(block) * dim**2

    def rate(product: Callable[[], object]) -> float:
        product()
        times = []
        for _ in range(7):
            started = _clock()
            product()
            times.append(_clock() - started)
        return work / statistics.median(times)

    return (
        rate(lambda: dgemm(1.0, block.T, block.T, beta=1.0, c=total, trans_b=1, overwrite_c=1)),
        rate(lambda: dsyrk(1.0, block.T, beta=1.0, c=total, lower=1, overwrite_c=1)),
    )


def _clock() -> float:
    # Not PyTorch's threads: NumPy computes here.
    return time.process_time() if os.environ["OMP_NUM_THREADS"] == "1" else time.perf_counter()


def resident_bytes() -> int:
    """Resident size of this process now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def child(arguments: list[str], threads: int) -> dict[str, Any]:
    """Run one measurement in its own process."""
    environment = dict(os.environ)
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        environment[name] = str(threads)
    command = [sys.executable, __file__, "--child", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def error_of(found: Path, reference: Path) -> str:
    """Relative Frobenius distance of two heads."""
    import numpy as np

    if not (found.exists() and reference.exists()):
        return "-"
    one, other = np.load(found), np.load(reference)
    return f"{np.linalg.norm(one - other) / np.linalg.norm(other):.0e}"


def compare(sizes: list[tuple[int, int]], repeats: int, threads: int) -> list[str]:
    """Measure all methods at all sizes; return lines of a Markdown table."""
    lines = [
        "| N | d | method | seconds | rows/s | of GEMM limit | of syrk limit | extra memory"
        " | error to lstsq | x scikit-learn |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as folder:
        for rows, dim in sizes:
            saved = {method: Path(folder) / f"{rows}-{dim}-{method}.npy" for method in METHODS}
            found: dict[str, dict[str, Any]] = {}
            for method in METHODS:
                if method != "clinit" and dense_bytes(rows, dim) > MEMORY_LIMIT:
                    continue
                times = repeats if rows * dim <= 1e8 else 1
                arguments = [method, str(rows), str(dim), str(times), str(saved[method])]
                found[method] = child(arguments, threads)
                print(f"{rows:,} x {dim} {method}: {found[method]}", file=sys.stderr)
            peer = found.get("scikit-learn Ridge")
            for method in METHODS:
                start = f"| {rows:,} | {dim} | {method} "
                if method not in found:
                    needed = dense_bytes(rows, dim) / 2**30
                    lines.append(f"{start}| not run: dense targets, {needed:.0f} GiB | | | | | | |")
                    continue
                result = found[method]
                rate = rows / result["seconds"]
                ratio = f"{peer['seconds'] / result['seconds']:.1f}" if peer else "-"
                lines.append(
                    f"{start}| {result['seconds']:.2f} | {rate:,.0f}"
                    f" | {rate * dim**2 / result['gemm']:.0%}"
                    f" | {rate * dim**2 / result['syrk']:.0%}"
                    f" | {result['bytes'] / 2**20:,.0f} MiB"
                    f" | {error_of(saved[method], saved['torch lstsq'])} | {ratio} |"
                )
            for path in saved.values():
                path.unlink(missing_ok=True)
    return lines


def report(lines: list[str], threads: int) -> list[str]:
    """Return the dated Markdown result."""
    return [
        f"# Least squares, {CLASSES:,} classes, {datetime.date.today()}",
        "",
        f"{machine()}; {threads} thread(s) a method. Times are"
        f" {'CPU seconds of the process' if threads == 1 else 'wall seconds'}."
        f" {versions('numpy', 'scipy', 'scikit-learn', 'torch')}.",
        f"float16 features, random class order, class-balanced weights, lambda {LAM}.",
        command(),
        "",
        "*GEMM limit*: N d^2 multiply-adds at the rate of the machine's float64 product, measured"
        " in the same process; syrk does half of them, so more than 100 % is possible. Seconds"
        " include the solution of the system: Cholesky and 1,365 right sides.",
        "",
        *lines,
    ]


def main() -> None:
    """Measure, print and write."""
    if sys.argv[1:2] == ["--child"]:
        method, rows, dim, repeats, out = sys.argv[2:]
        print(json.dumps(measure(method, int(rows), int(dim), int(repeats), Path(out))))
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="Folder of the dated result.")
    parser.add_argument("--threads", type=int, default=1, help="Threads of each method.")
    parser.add_argument("--repeats", type=int, default=3, help="Runs of which the median counts.")
    parser.add_argument("--max-elements", type=float, default=3e9, help="Largest N d.")
    options = parser.parse_args()
    sizes = [size for size in SIZES if size[0] * size[1] <= options.max_elements]
    lines = report(compare(sizes, options.repeats, options.threads), options.threads)
    print("\n".join(lines))
    write(options.out, "least_squares", lines)


if __name__ == "__main__":
    main()
