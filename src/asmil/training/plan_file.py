"""Write a plan as a settings file, with the reason for every choice as a comment."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import yaml

from asmil.training.planning import Choice, TrainingPlan


def plan_text(
    plan: TrainingPlan, name: str, cohort: str, out: str, features: str | None = None, columns: str | None = None
) -> str:
    """The text of `run.yaml`.

    name: the name of the file
    cohort, out, features: paths relative to the file
    columns: which columns of the manifest to read, as for `--columns`
    """
    lines = [
        f"# Written by `asmil plan`. Edit it as needed, then run: asmil train {name}",
        *(f"# {fact}" for fact in plan.facts),
        f"# {cost_line(plan)}",
        *(f"# WARNING: {warning}" for warning in plan.warnings),
        "",
        _line("cohort", cohort),
        _line("out", out, "the run folder; run the same command again to resume"),
    ]
    if features is not None:
        lines.append(_line("features", features))
    if columns:
        lines.append(_line("columns", columns))
    sections: dict[str, list[Choice]] = defaultdict(list)
    for choice in plan.choices:
        section, _, key = choice.key.rpartition(".")
        sections[section].append(Choice(key, choice.value, choice.reason))
    for section, choices in sorted(sections.items(), key=lambda item: item[0] != ""):
        if section:
            lines.append(f"{section}:")
        lines += [("  " if section else "") + _line(one.key, one.value, one.reason) for one in choices]
    return "\n".join(lines) + "\n"


def cost_line(plan: TrainingPlan) -> str:
    """The cost of the training, in one sentence."""
    found = plan.estimate
    return (
        f"about {_duration(found.seconds)} on {found.device} ({found.steps:,} steps, timed here on a synthetic slide) "
        f"and {max(found.memory_bytes / 1e9, 0.1):.1f} GB for the longest slide"
    )


def _duration(seconds: float) -> str:
    """Seconds in a readable unit.

    >>> _duration(40), _duration(600), _duration(7200), _duration(400_000)
    ('1 minute', '10 minutes', '2.0 hours', '4.6 days')
    """
    if seconds < 90:
        return "1 minute"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:.1f} hours" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"


def _line(key: str, value: Any, reason: str = "") -> str:
    text = yaml.safe_dump({key: value}, default_flow_style=True, width=10_000, allow_unicode=True).strip()[1:-1]
    return f"{text}  # {reason}" if reason else text
