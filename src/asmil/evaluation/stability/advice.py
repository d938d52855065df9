"""Settings to try against what an alarm saw, as options of `asmil train`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asmil.evaluation.run import setting
from asmil.evaluation.stability.labels import has_anchor


def to_try(proposals: list[str]) -> str:
    """The proposals as one sentence."""
    return "To try: " + "; or ".join(proposals) + "."


def less_flattening(config: Mapping[str, Any]) -> list[str]:
    """Ways to weaken whatever in these settings makes attention flat."""
    if config.get("method") == "asmil" and config.get("preset") == "paper":
        return ["start with larger tokens and a weaker anchor: `--preset recommended`"]
    ways = []
    if has_anchor(config):
        ways.append(f"weaken the anchor with {_scaled(config, 0.1, 'anchor', 'weight')}")
        if setting(config, "anchor", "normalizer") == "nsf":
            ways.append("take an anchor that is flat among the heavy tiles only: `--anchor standardized_nsf`")
    ways += own_rule(config, ("nsf", "standardized_nsf", "mixture"))
    if config.get("method") == "aem":
        ways.append(f"weaken the entropy term with {_scaled(config, 0.1, 'model', 'weight')}")
    terms = [name for name in ("entropy", "l2") if setting(config, "stabilizers", name, "weight")]
    return ways + [
        f"weaken the {name} term with {_scaled(config, 0.1, 'stabilizers', name, 'weight')}" for name in terms
    ]


def own_rule(config: Mapping[str, Any], blamed: tuple[str, ...]) -> list[str]:
    """Back to the method's own normalizer, where one of the blamed ones took its place."""
    if setting(config, "attention", "normalizer") not in blamed:
        return []
    return ["go back to the method's own rule with `--set attention.normalizer=own`"]


def train_longer(config: Mapping[str, Any]) -> str:
    """Twice the epochs."""
    return f"train longer with {_scaled(config, 2, 'training', 'epochs')}"


def more_anchor(config: Mapping[str, Any]) -> str:
    """An anchor, or a stronger one."""
    if not has_anchor(config):
        return "hold it to an anchor: `--anchor nsf`"
    return f"strengthen the anchor with {_scaled(config, 10, 'anchor', 'weight')}"


def more_entropy(config: Mapping[str, Any]) -> str:
    """A reward for entropy, or a stronger one."""
    if config.get("method") == "aem":
        return f"strengthen the entropy term with {_scaled(config, 10, 'model', 'weight')}"
    if setting(config, "stabilizers", "entropy", "weight"):
        return f"strengthen the entropy term with {_scaled(config, 10, 'stabilizers', 'entropy', 'weight')}"
    return "reward entropy: `--stabilizer entropy=0.1`"


def learn_slower(config: Mapping[str, Any]) -> str:
    """A third of the learning rate."""
    return f"learn more slowly with {_scaled(config, 1 / 3, 'training', 'lr')}"


def learn_faster(config: Mapping[str, Any]) -> str:
    """Three times the learning rate."""
    return f"learn faster with {_scaled(config, 3, 'training', 'lr')}"


def _scaled(config: Mapping[str, Any], factor: float, *keys: str) -> str:
    """A setting times a factor, as a command-line option; with its value now, where the settings name it."""
    name, now = ".".join(keys), setting(config, *keys)
    if not isinstance(now, int | float):
        return f"another {name}"
    return f"`--set {name}={now * factor:.3g}` (now {now:g})"
