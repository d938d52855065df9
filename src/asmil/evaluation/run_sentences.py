"""Sentences about a run of any task: which epoch was kept, how many tiles were used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from asmil.evaluation.run import setting
from asmil.evaluation.run_evaluation import Role, RunEvaluation

SCORES = {
    "classification": "macro-F1 + macro-AUC",
    "multilabel": "macro-F1 + macro-AUC",
    "survival": "C-index",
    "regression": "R2",
}


def sentences_of_runs(evaluations: Sequence[RunEvaluation]) -> list[str]:
    """What must be known of each run: its epoch, its tiles, its warnings; named where there are several."""
    sentences = []
    for evaluation in evaluations:
        prefix = f"{evaluation.name}: " if len(evaluations) > 1 else ""
        has_validation = bool((evaluation.run.predictions["role"] == "val").any())
        chosen = selection_sentence(evaluation.run.config, evaluation.role, has_validation)
        sentences += [prefix + text for text in (chosen, cap_sentence(evaluation.run.config), *evaluation.warnings)]
    return sentences


def selection_sentence(config: Mapping[str, Any], role: Role, has_validation: bool) -> str:
    """Which epoch was kept, and whether the evaluated part had a say in it."""
    rule = setting(config, "training", "select")
    if rule is None:
        return "The run does not say which epoch was kept (training.select is not set)."
    if rule == "last":
        return "The last epoch was kept; no data chose it (training.select: last)."
    if not has_validation:
        return "The run had no validation part, so the last epoch was kept."
    score = SCORES.get(str(setting(config, "task", "kind")), str(rule))
    chosen = "the lowest loss" if rule == "loss" else f"the highest {score}"
    sentence = f"The epoch was chosen on the validation part, by {chosen}"
    if role == "val":
        return f"{sentence}, the same part these numbers are of: they are optimistic."
    return f"{sentence}; the test part was not looked at."


def part_title(role: Role, configs: Iterable[Mapping[str, Any]]) -> str:
    """The name of the evaluated part, marked where its slides chose the epoch of a run."""
    chose = role == "val" and any(setting(config, "training", "select") != "last" for config in configs)
    return f"{role} part (optimistic: these slides chose the epoch)" if chose else f"{role} part"


def cap_sentence(config: Mapping[str, Any]) -> str:
    """How many tiles training and prediction used."""
    cap = setting(config, "data", "max_tiles")
    if cap is None:
        return "Training and prediction used all tiles (data.max_tiles is not set)."
    return (
        f"Training saw at most {cap} tiles of a bag, drawn anew every epoch (data.max_tiles); prediction used "
        "all tiles."
    )
