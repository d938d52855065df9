"""What tells a run from others, in a few words for a legend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asmil.evaluation.run import setting


def run_label(config: Mapping[str, Any]) -> str:
    """The method, and what was changed about its attention.

    >>> run_label({"method": "abmil", "preset": "paper", "anchor": {"normalizer": "nsf", "weight": 0.1}})
    'abmil + anchor (nsf, weight 0.1)'
    """
    parts = [str(config.get("method") or "unknown")]
    preset = config.get("preset")
    if preset not in (None, "paper"):
        parts[0] += f" ({preset})"
    rule = setting(config, "attention", "normalizer")
    if rule not in (None, "own"):
        parts[0] += f" with {rule}"
    if has_anchor(config):
        weight = setting(config, "anchor", "weight")
        weighted = "" if weight in (None, 1) else f", weight {weight:g}"
        parts.append(f"anchor ({setting(config, 'anchor', 'normalizer')}{weighted})")
    for name in config.get("stabilizers") or {}:
        weight = setting(config, "stabilizers", name, "weight")
        if weight:
            parts.append(f"{name} {weight:g}")
    return " + ".join(parts)


def has_anchor(config: Mapping[str, Any]) -> bool:
    """Whether the attention was held to an anchor."""
    return setting(config, "anchor", "normalizer") not in (None, "none") and setting(config, "anchor", "weight") != 0
