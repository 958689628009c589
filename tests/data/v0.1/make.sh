#!/usr/bin/env bash
# How the files beside this script were made: by version 0.1.0, commit e9214a9, with
#   git worktree add --detach TREE e9214a9
#   PYTHONPATH=TREE/src make.sh /data/digits
# in an environment of its own. Twelve images of each digit, a network of 24 features. Images,
# weights and locks are left out, which nobody reads here.
set -euo pipefail
out=$1
mkdir -p "$out" && cd "$out"
clinit() { python -m clinit "$@"; }

python - <<'PY'
from pathlib import Path

from clinit.extract.digits import write_digits
from clinit.extract.pretrain import pretrain
from clinit.extract.scan import scan

for root, digits in (("images/base", range(4)), ("images/new", range(4, 8))):
    write_digits(Path(root), digits)
pretrain(
    scan("folder", Path("images/base"), "train").manifest,
    Path("images/base"),
    Path("backbone.safetensors"),
    name="convnextv2_atto",
    model_args={"depths": (1, 1, 1, 1), "dims": (4, 8, 12, 24)},
    input_size=32,
    epochs=12,
)
for folder in sorted(Path("images").glob("*/*/*")):
    for number, path in enumerate(sorted(folder.iterdir())):
        if number >= (8 if folder.parent.name == "train" else 4):
            path.unlink()
PY

for side in base new; do
  clinit extract --dataset folder --root "images/$side" --out "caches/$side" --backbone convnextv2_atto \
    --model-arg "depths=(1, 1, 1, 1)" --model-arg "dims=(4, 8, 12, 24)" --weights backbone.safetensors \
    --input-size 32 --views "$([ $side = base ] && echo 1 || echo 0)"
done
data=(--base caches/base --new caches/new)
budget=(--tasks 2 --iterations 6 --eval-every 3 --batch-size 8 --buffer 16)
clinit train-head "${data[@]}" --out runs "${budget[@]}" --init random --init least-square
clinit align caches/base --loss mse --epochs 2 --batch-size 8 --views 0 --out mse.safetensors
clinit sweep "${data[@]}" --out sweep tasks=2 iterations=6 eval_every=3 batch_size=8 buffer=16 \
  init=random,least-square seed=0
clinit train-top "${data[@]}" --out top "${budget[@]}" --top-blocks 1 --init least-square
clinit export runs/least-square-calibrated --out model.safetensors
