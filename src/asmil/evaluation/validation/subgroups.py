"""Performance in subgroups of patients: table, forest plot, and tests for interaction with Holm's correction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from asmil.evaluation.statistics import holm
from asmil.evaluation.statistics.group_differences import Heterogeneity, heterogeneity
from asmil.evaluation.validation.grouping import Variable
from asmil.evaluation.validation.performance import standard_error
from asmil.evaluation.validation.threshold import decided_classes, proportion
from asmil.evaluation.validation.validated import Part, ValidatedPredictions
from asmil.reporting import Block, Cell, Estimate, Figure, Interval, Row, Section, Table, estimate_cell
from asmil.reporting.drawing import COLORS, EDGE, GUIDE, new_figure, plain_text, svg_text
from asmil.reporting.formats import format_count, format_number, format_p
from asmil.tables.arrays import Booleans
from asmil.tasks.intervals import draw_patients, edge_interval, estimate, under_draws

FEWEST, FEWEST_PER_CLASS = 20, 5
"""Smaller groups get no metric: patients, and patients of every class (survival: events)."""
UNKNOWN = "unknown"
LONGEST_NAME = 28


@dataclass(frozen=True)
class Subgroup:
    """One group of patients.

    information: the size on which the precision of the metric depends; see `heterogeneity`
    metric: the main metric; None if the group is too small, for the `reason`
    positives: patients of the positive class of two, or with the event
    shares: for two classes: sensitivity and specificity at the threshold
    """

    variable: str
    name: str
    patients: int
    positives: int | None
    information: float
    metric: Estimate | None
    shares: tuple[Estimate, ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class Interaction:
    """Whether the metric differs between the groups of a variable; None if fewer than two can be compared."""

    variable: str
    test: Heterogeneity | None
    groups: int
    p_holm: float = float("nan")


def subgroups(validated: ValidatedPredictions) -> Part | None:
    """The main metric in every subgroup; None if no variable is given."""
    if not validated.request.by:
        return None
    groups = {variable.name: _groups_of(validated, variable) for variable in validated.request.by}
    interactions = _interactions(groups)
    title = validated.title_of(validated.main_metric)
    flat = [group for of_variable in groups.values() for group in of_variable]
    small = [group for group in flat if group.metric is None]
    blocks: list[Block] = [
        _interaction_sentence(interactions, title),
        Figure(_forest(validated, flat, title), "Forest plot"),
        _table(validated, flat, title),
        _interaction_table(interactions, title),
    ]
    if small:
        names = ", ".join(f"{group.variable} {group.name} ({group.patients})" for group in small)
        blocks.append(f"Too small to say (patients): {names}.")
    content = {
        "metric": validated.main_metric.name,
        "groups": [
            {
                **{name: getattr(group, name) for name in ("variable", "name", "patients", "positives", "reason")},
                "metric": None if group.metric is None else group.metric.to_dict(),
                **{
                    name: share.to_dict()
                    for name, share in zip(("sensitivity", "specificity"), group.shares, strict=False)
                },
            }
            for group in flat
        ],
        "interactions": [_plain(interaction) for interaction in interactions],
    }
    return Part("subgroups", Section("Subgroups", blocks), content, "", tuple(_warnings(interactions, title)))


def _groups_of(validated: ValidatedPredictions, variable: Variable) -> list[Subgroup]:
    names = np.array([name or UNKNOWN for name in validated.group_of(variable)])
    order = variable.order
    listed = sorted(set(names.tolist()), key=lambda name: (name == UNKNOWN, order.get(name, 0), name))
    return [_subgroup(validated, variable.name, name, names == name) for name in listed]


def _subgroup(validated: ValidatedPredictions, variable: str, name: str, inside: Booleans) -> Subgroup:
    run, truth = validated.run, validated.truth[inside]
    n = int(inside.sum())
    counts = [n]
    if run.kind == "survival":
        counts = [int((truth[:, 1] > 0).sum())]
    elif run.kind == "classification":
        counts = np.bincount(truth, minlength=len(run.classes)).tolist()
    positives = counts[validated.positive] if len(counts) == 2 else counts[0] if run.kind == "survival" else None
    shares: tuple[Estimate, ...] = ()
    if run.format.has_threshold:
        right = decided_classes(validated)[inside] == truth
        shares = (proportion(right, truth == validated.positive), proportion(right, truth != validated.positive))
    reason = ""
    if n < FEWEST:
        reason = f"fewer than {FEWEST} patients"
    elif min(counts) < FEWEST_PER_CLASS:
        reason = f"fewer than {FEWEST_PER_CLASS} {'events' if run.kind == 'survival' else 'patients of a class'}"
    metric = None if reason else _metric(validated, inside)
    information = counts[0] * counts[1] / n if len(counts) == 2 else n if run.kind != "survival" else counts[0]
    return Subgroup(variable, name, n, positives, information, metric, shares, reason)


def _metric(validated: ValidatedPredictions, inside: Booleans) -> Estimate:
    function = validated.main_metric.function
    assert function is not None
    truth, predictions = validated.truth[inside], validated.predictions[inside]
    draws = draw_patients(len(truth), validated.request.resamples, validated.request.seed)
    samples = under_draws(lambda weights: {"metric": function(truth, predictions, weights)}, draws, len(truth))
    value = float(function(truth, predictions, np.ones((1, len(truth))))[0])
    patients = validated.patients["patient"][inside].tolist()

    def at_edge() -> Interval:
        return edge_interval(validated.run.format, validated.main_metric, truth, predictions, patients)

    return estimate(value, samples["metric"], at_edge=at_edge, n=len(truth))


def _interactions(groups: dict[str, list[Subgroup]]) -> list[Interaction]:
    """One test per variable, over its groups that are large enough and known."""
    tests: list[Interaction] = []
    for variable, of_variable in groups.items():
        known = [(group, group.metric) for group in of_variable if group.name != UNKNOWN and group.metric is not None]
        usable = [(group, metric) for group, metric in known if metric.interval.is_defined]
        test = None
        if len(usable) > 1:
            errors = [standard_error(metric.interval) for _, metric in usable]
            sizes = [group.information for group, _ in usable]
            test = heterogeneity([metric.value for _, metric in usable], errors, sizes)
        tests.append(Interaction(variable, test, len(usable)))
    tested = [each.test.p for each in tests if each.test is not None]
    adjusted = iter(holm(tested).tolist() if tested else [])
    return [
        Interaction(each.variable, each.test, each.groups, next(adjusted) if each.test is not None else float("nan"))
        for each in tests
    ]


def _interaction_sentence(interactions: Sequence[Interaction], title: str) -> str:
    differing = [each.variable for each in interactions if each.p_holm < 0.05]
    if differing:
        return f"{title} differs between the groups of {', '.join(differing)} (p < 0.05 after Holm's correction)."
    return f"No difference in {title} between subgroups was shown; small groups cannot show one."


def _warnings(interactions: Sequence[Interaction], title: str) -> list[str]:
    return [_interaction_sentence(interactions, title)] if any(each.p_holm < 0.05 for each in interactions) else []


def _table(validated: ValidatedPredictions, groups: Sequence[Subgroup], title: str) -> Table:
    run = validated.run
    binary = run.format.has_threshold
    counted = "events" if run.kind == "survival" else run.classes[validated.positive] if binary else ""
    columns = ["group", "patients", *([counted] if counted else []), title]
    columns += ["sensitivity", "specificity"] * binary
    rows: list[Row] = []
    for group in groups:
        metric = Cell("–", interval="too few") if group.metric is None else estimate_cell(group.metric)
        counts = [str(group.patients), *([str(group.positives)] if counted else [])]
        shares = [estimate_cell(share) for share in group.shares]
        rows.append([f"{group.variable}: {group.name}", *counts, metric, *shares])
    shared = " Sensitivity and specificity at the run's threshold have exact intervals." if binary else ""
    caption = (
        f"{title} with its 95 % interval by patient; groups of fewer than {FEWEST} patients, or {FEWEST_PER_CLASS} "
        f"{'events' if run.kind == 'survival' else 'of a class'}, get none.{shared} Intervals are not adjusted for the "
        "number of groups."
    )
    return Table(
        columns, rows, title="subgroups", caption=caption, in_terminal=True, narrow=frozenset(columns[-2:] * binary)
    )


def _interaction_table(interactions: Sequence[Interaction], title: str) -> Table:
    rows: list[Row] = []
    for each in interactions:
        if each.test is None:
            rows.append([each.variable, str(each.groups), "–", "–", "–"])
        else:
            found = f"{format_number(each.test.q, 2)} ({each.test.df})"
            rows.append([each.variable, str(each.groups), found, format_p(each.test.p), format_p(each.p_holm)])
    caption = (
        f"Cochran's Q with its degrees of freedom: is {title} the same in all groups that are large enough? p (Holm) "
        f"is adjusted over {format_count(sum(each.test is not None for each in interactions), 'variable')}."
    )
    return Table(["variable", "groups compared", "Q (df)", "p", "p (Holm)"], rows, caption=caption)


def _plain(interaction: Interaction) -> dict[str, Any]:
    test = interaction.test
    return {
        "variable": interaction.variable,
        "groups": interaction.groups,
        **({"q": None, "df": None, "p": None} if test is None else vars(test)),
        "p_holm": interaction.p_holm,
    }


def _forest(validated: ValidatedPredictions, groups: Sequence[Subgroup], title: str) -> str:
    overall = validated.measured.metrics[validated.main_metric.name]
    labels = ["all patients", *(f"{group.variable}: {group.name}" for group in groups)]
    sizes = [validated.n_patients, *(group.patients for group in groups)]
    with new_figure(6.4, 0.9 + 0.27 * len(labels), axes_grid_axis="x", axes_spines_left=False) as figure:
        axes = figure.add_subplot()
        axes.axvline(overall.value, color=GUIDE, linewidth=1, linestyle="--")
        for row, metric in enumerate([overall, *(group.metric for group in groups)]):
            if metric is None:
                axes.text(overall.value, row, "too few", ha="center", va="center", fontsize=8, color=EDGE)
                continue
            color = COLORS[1] if row == 0 else COLORS[0]
            axes.plot(list(metric.interval), [row, row], color=color, linewidth=2, solid_capstyle="round")
            axes.plot(metric.value, row, "s", color=color, markersize=5)
        shown = [f"{_short(label)} ({size})" for label, size in zip(labels, sizes, strict=True)]
        axes.set_yticks(range(len(shown)), shown)
        axes.set_ylim(len(shown) - 0.5, -0.5)
        axes.tick_params(axis="y", length=0)
        axes.set(title=f"{title} in subgroups (patients)", xlabel=f"{title} with 95 % interval")
        return svg_text(figure)


def _short(name: str) -> str:
    return plain_text(name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…")
