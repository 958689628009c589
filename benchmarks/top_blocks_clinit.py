"""The contender clinit of `benchmarks/top_blocks.py`: the parts of `clinit train-top`, in turns."""

from __future__ import annotations

import copy
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import repeat

import numpy as np
import torch
from top_blocks_contenders import Taker, TopBlocksWorkload

from clinit.headtrain.bank.evaluate import LabelledRows, count_correct
from clinit.headtrain.bank.heads import Bank
from clinit.headtrain.config import ExperimentConfig, HeadConfig
from clinit.headtrain.init.raw import random_task_rows
from clinit.headtrain.record.stopwatch import Stopwatch
from clinit.headtrain.rows import Rows
from clinit.headtrain.top.activations.batches import TaskReader
from clinit.headtrain.top.activations.rows import PoolActivations
from clinit.headtrain.top.activations.trunk import Trunk
from clinit.headtrain.top.config import TopConfig
from clinit.headtrain.top.evaluate import features
from clinit.headtrain.top.images import open_side, reload_backbone
from clinit.headtrain.top.methods import EwcConfig, top_method
from clinit.headtrain.top.network.cut import cut
from clinit.headtrain.top.network.model import PlasticModel
from clinit.headtrain.top.network.optimizer import top_optimizer
from clinit.headtrain.top.study import Storage, Study, build_study
from clinit.headtrain.top.train_task import Watchers, train_top

SILENT = Watchers(evaluate=lambda _: None, stepped=lambda _: None, save=lambda _: None)


class DecodedRows:
    """Rows computed from pixels that are in memory, whenever they are asked for."""

    def __init__(self, pixels: torch.Tensor, trunk: Trunk) -> None:
        self._pixels, self._trunk = pixels, trunk

    def __len__(self) -> int:
        return len(self._pixels)

    def stream(self, batches: Sequence[np.ndarray]) -> Generator[torch.Tensor]:
        """Yield the activations of batches of rows."""
        for rows in batches:
            yield self._trunk.of_pixels(self._pixels[torch.from_numpy(rows)])


def study_of(work: TopBlocksWorkload, top: TopConfig, config: ExperimentConfig) -> Study:
    """Build the stream of one task, its rows stored, decoded or in files."""
    caches, source = work.folder / "caches", work.options["rows"]
    base, new = (
        open_side(caches / side, None, option=f"--{side}-root") for side in ("base", "new")
    )
    weights, device = work.folder / "weights.safetensors", work.options["device"]
    backbone, transform = reload_backbone(base, weights, device)
    head = base.source.head
    assert head is not None
    budget = 10**12 if source == "stored" else 0
    storage = Storage(folder=work.folder / "trunk", budget=budget, workers=work.options["workers"])
    study = build_study(base, new, head, backbone, transform, config, top, storage)
    if source != "decoded":
        return study
    trunk = Trunk(backbone.config, cut(backbone.network, top.top_blocks), transform)
    train, val = (
        PoolActivations(
            [DecodedRows(torch.from_numpy(np.load(work.folder / f"{split}_x.npy")), trunk)],
            torch.device(device),
        )
        for split in ("train", "val")
    )
    return replace(study, train=train, val=val)


def clinit(work: TopBlocksWorkload) -> Taker:
    """Train and evaluate as `run_top` does in the middle of a task."""
    options, device = work.options, torch.device(work.options["device"])
    top = TopConfig(
        method=options["method"],
        top_blocks=len(work.facts["blocks"]),
        full_rank=options["full_rank"],
        rank=options["rank"],
        precision=options["precision"],
        ewc=EwcConfig(samples=work.batch),
    )
    config = ExperimentConfig(
        method=top.data_method,
        tasks=1,
        iterations=options["total"],
        buffer=options["buffer"] if top.data_method == "rehearsal" else None,
        batch_size=work.batch,
        seed=options["seed"],
        device=options["device"],
    )
    study = study_of(work, top, config)
    head = HeadConfig(init="random", lr=options["lr"])
    (task,) = study.scenario.tasks
    network, old_rows = copy.deepcopy(study.network), Rows.of_head(study.initial_head)
    model = PlasticModel(network, cut(network, top.top_blocks), old_rows, top)
    model.grow(random_task_rows(config.seed, task, model.dim))
    method = top_method(top.method, seed=config.seed, ewc=top.ewc, derpp=top.derpp)
    rows = study.task_plan.rows(task)
    schedule = study.task_plan.schedule(rows)
    old = rows.rows[: rows.num_old]
    reader = TaskReader(
        study.scenario.train,
        study.train,
        new=rows.rows[rows.num_old :],
        old=old if len(old) else study.task_plan.base_sample(method.base_sample),
        kept=study.task_plan.kept(task),
    )
    model.open(torch.Generator().manual_seed(config.seed))
    method.begin(model, task, reader)
    optimizer, rates = top_optimizer(network, lr=head.lr, iterations=config.iterations)
    losses = np.empty((config.iterations, 1, 2), dtype=np.float32)
    watch, done = Stopwatch(device), 0

    def train() -> None:
        nonlocal done
        part = slice(done, done + work.steps)
        drawn = [rows.rows[batch] for batch in schedule.batches[part]]
        # Opened anew for each turn, so that nothing is decoded between two of them.
        with closing(reader.stream(drawn, schedule.num_new[part].tolist())) as batches:
            train_top(
                model,
                method,
                zip(batches, repeat(None)),
                optimizer,
                rates,
                losses,
                replace(config, iterations=part.stop),
                first=done,
                checkpoint_every=0,
                watchers=SILENT,
                watch=watch,
            )
        done = part.stop

    def evaluate() -> None:
        found = features(model, study.val, tested)
        bank = Bank(model.rows(), [head], device)
        count_correct(bank, LabelledRows(found, labels))

    tested = study.scenario.val.rows_between(0, task.stop)
    labels = torch.from_numpy(study.scenario.val.labels[tested]).to(device)
    return Taker(train, evaluate)
