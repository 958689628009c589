"""What the splits of one cache share: backbone, classes and head."""

from __future__ import annotations

from pathlib import Path

from clinit.errors import CacheError, HeadError
from clinit.extract.cache.head import Head, tensors_sha256
from clinit.extract.cache.plan import Plan, read_plan
from clinit.extract.cache.read import HEAD_FILE
from clinit.extract.dataset import SPLITS
from clinit.extract.fitted_head import FIT_AGAIN, judged_heads, readable_head, was_fitted
from clinit.extract.shared_classes import refuse_other_classes


def refuse_other_cache(
    out: Path, plan: Plan, names: tuple[str, ...], head: Head | None, *, head_follows: bool = False
) -> None:
    """Compare a split that is to be written with what is in its cache already.

    Args:
        out: The folder of the cache.
        plan: The plan of the split.
        names: Its class names.
        head: The head that comes with it.
        head_follows: Whether it comes later, in place of one that may be lost.

    Raises:
        CacheError: If the other split is of another backbone or of other classes.
        HeadError: If its head is another one.
    """
    _refuse_other_backbone(out, plan)
    refuse_other_classes(out, plan.split, names)
    if head is None and not head_follows:
        _refuse_no_head(out)
    elif head is not None:
        _refuse_other_head(head, out)


def _refuse_other_backbone(out: Path, plan: Plan) -> None:
    for name in SPLITS:
        if name == plan.split or not (out / name / "plan.json").is_file():
            continue
        other = read_plan(out / name)
        here, there = plan.fingerprint.without_rows, other.fingerprint.without_rows
        if other.dim != plan.dim or here.differences(there):
            raise CacheError(
                f"{out / name} holds features of another backbone ({_origin(other)}) than this"
                f" split ({_origin(plan)})",
                remedy="Give both splits the same `--backbone` and type, or use another folder.",
            )


def _origin(plan: Plan) -> str:
    return f"{plan.fingerprint.backbone}, {plan.dim} x {plan.fingerprint.dtype}"


def _refuse_no_head(out: Path) -> None:
    stored = out / HEAD_FILE
    if readable_head(stored) is not None:
        raise HeadError(
            f"{stored} belongs to the features in {out}, these have no head",
            remedy="Use another folder.",
        )
    if judged_heads(out):
        raise HeadError(
            f"{stored}, the head that was stored with the features in {out}, is missing",
            remedy=FIT_AGAIN if was_fitted(out) else "Give it with `--head FILE`.",
        )


def _refuse_other_head(head: Head, out: Path) -> None:
    """Refuse a head that is not the one of the splits that are there.

    A stored head that has been damaged is written anew: the splits know which one it was.
    """
    stored, known = out / HEAD_FILE, judged_heads(out)
    is_same = True
    if (other := readable_head(stored)) is not None:
        is_same = other.class_names == head.class_names
        known |= {tensors_sha256(other)}
    if not is_same or known - {tensors_sha256(head)}:
        raise HeadError(
            f"{stored} holds another head than the one given",
            remedy="Leave out `--head` for the second split, or use another folder.",
        )
