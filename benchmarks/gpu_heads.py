"""Heads at the paper's sizes: steps of a bank, and least squares."""

from __future__ import annotations

import math
import time
from collections import defaultdict

import numpy as np
import torch
from gpu_setting import Lines, Setting
from harness import settle
from heads_contenders import Pace, clinit, products, protocol
from heads_workload import HeadsWorkload, make_workload

HEADINGS = (
    *("heads", "precision", "steps/s", "head-steps/s", "of the products", "TFLOP/s"),
    "evaluation s",
)
NOTE = """\
A step reads half new, half buffered rows. *the products*: only the two matrix products of a step,
launched in the same way (replayed from a CUDA graph). *evaluation*: one evaluation of all heads on
all test rows."""
PHASES = ("prepare", "initialise", "train", "evaluate")
OF_PROTOCOL = ("protocol", "seconds", *PHASES)
PROTOCOL = """\
All tasks with an evaluation every 50 steps: *1 run* with calibrated least-square rows; *45 runs* of
three starts, five rates and three seeds, so three banks of 15. Seconds of the phases are those of
the banks' records."""
OF_SOLVE = ("least squares", "rows", "statistics s", "rows/s", "of float64", "solve ms")
SOLVE = """\
Statistics and solve of rows on the device, by the array library that `clinit` chooses for the
device. *of float64*: 2 N d^2 operations at the rate of the float64 product of this shape."""


class Local(Pace):
    """A pace without other contenders: blocks follow each other, and their seconds are stored."""

    def __init__(self, iterations: int, block: int, device: torch.device) -> None:
        super().__init__(iterations, block)
        self._device = str(device)
        self.seconds: dict[int, list[float]] = defaultdict(list)

    def wait(self) -> None:
        """Do not wait."""

    def finish_block(self, seconds: float) -> None:
        """Store the seconds of a block, including work still queued on the device."""
        started = time.perf_counter()
        settle(self._device)
        self.seconds[self.task].append(seconds + time.perf_counter() - started)

    @property
    def step_s(self) -> float:
        """Mean seconds per step."""
        blocks = [block for task in self.seconds.values() for block in task]
        return sum(blocks) / (len(blocks) * self.block)


def workload(setting: Setting) -> HeadsWorkload:
    """Return the rows; make them if they do not exist yet."""
    folder = setting.folder / "heads"
    if not (folder / "bias.npy").exists():
        folder.mkdir(exist_ok=True)
        size = setting.scale.heads
        rows = size.base * size.base_rows + size.new * size.new_rows
        setting.say(f"making {rows:,} rows of features")
        make_workload(folder, size, seed=0)
    return HeadsWorkload(folder, setting.heads_options())


def measure(setting: Setting) -> Lines:
    """Yield a line for each bank and precision."""
    work, scale = workload(setting), setting.scale
    classes = np.array([stop for _, stop in work.splits])
    for precision in setting.precisions:
        for heads in scale.banks:
            setting.say(f"bank of {heads}, {precision}")
            shared = setting.heads_options(heads=heads, precision=precision)
            limit, pace = (_pace(setting) for _ in range(2))
            products(work, limit, shared)
            facts = clinit(work, pace, shared)
            flop = 4 * scale.rows * work.dim * heads * classes.mean()
            line = ["one head" if heads == 1 else f"bank of {heads}", precision]
            line += [f"{1 / pace.step_s:,.0f}", f"{heads / pace.step_s:,.0f}"]
            line += [f"{limit.step_s / pace.step_s:.0%}", f"{flop / pace.step_s / 1e12:.3g}"]
            yield [*line, f"{facts['evaluate_s']:.3f}"]


def _pace(setting: Setting) -> Local:
    return Local(setting.scale.iterations, 100, setting.device)


def measure_protocol(setting: Setting) -> Lines:
    """Yield a line for one run, and for 45 runs in each precision: all tasks, with evaluations."""
    work, scale = workload(setting), setting.scale
    many = {"init": ("random", "class-mean", "least-square"), "lr": (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)}
    own = {"full_iterations": scale.iterations, "eval_every": 50, "init": "least-square"}
    for precision, grid, seeds in [
        ("float32", {}, 1),
        *((each, many, 3) for each in reversed(setting.precisions)),
    ]:
        options = setting.heads_options(grid=grid, seeds=seeds, precision=precision, **own)
        runs = seeds * math.prod(map(len, grid.values()))
        setting.say(f"protocol, {runs} runs, {precision}")
        found = protocol(work, _pace(setting), options)
        seconds = (f"{found['timings_s'][phase]:.2f}" for phase in PHASES)
        yield [f"{runs} runs, {precision}", f"{found['protocol_s']:.2f}", *seconds]


def measure_solve(setting: Setting) -> Lines:
    """Yield a line for the base rows and for the new rows."""
    work = workload(setting)
    known = int(np.searchsorted(work.train_y, work.base))
    for name, rows in (("base rows", slice(known)), ("new rows", slice(known, None))):
        setting.say(f"least squares, {name}")
        labels = np.asarray(work.train_y[rows])
        features = torch.from_numpy(np.ascontiguousarray(work.train_x[rows])).to(setting.device)
        timed = [least_squares(features, labels, work.classes) for _ in range(3)]
        summed, solved, library = (sorted(each)[1] for each in zip(*timed, strict=True))
        limit = 2 * len(labels) * work.dim**2 / setting.limits["statistics, float64"]
        line = [f"{name} ({library})", f"{len(labels):,}", f"{summed:.3f}"]
        yield [
            *line,
            f"{len(labels) / summed:,.0f}",
            f"{limit / summed:.0%}",
            f"{1e3 * solved:.1f}",
        ]


def least_squares(
    features: torch.Tensor, labels: np.ndarray, classes: int
) -> tuple[float, float, str]:
    """Return the seconds of statistics and of the solve, and the library that computed them."""
    from clinit.headtrain.heads.array import as_array, namespace, torch_stream
    from clinit.headtrain.heads.statistics.class_statistics import ClassStatistics
    from clinit.headtrain.heads.statistics.solve import least_squares_head

    device = str(features.device)
    with torch_stream(features):
        array = as_array(features)
        settle(device)
        started = time.perf_counter()
        statistics = ClassStatistics.of(array, labels, num_classes=classes)
        settle(device)
        summed = time.perf_counter()
        least_squares_head(statistics, 0.05)
        settle(device)
        solved = time.perf_counter()
    library = namespace(array).__name__.split(".")[-1]
    return summed - started, solved - summed, library
