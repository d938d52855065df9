"""Performance in subgroups of patients: table, forest plot, and tests for interaction with Holm's correction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from asmil.evaluation.statistics import holm
from asmil.evaluation.statistics.group_differences import Heterogeneity, differing_shares, heterogeneity
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
SIGNIFICANT = 0.05
SHARES = ("sensitivity", "specificity")
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

    @property
    def in_short(self) -> str:
        """Why there is no metric, for tables and figures."""
        return self.reason if self.reason.startswith("only") else "too few"


@dataclass(frozen=True)
class Interaction:
    """Whether a metric differs between the groups of a variable; None if fewer than two can be compared."""

    variable: str
    metric: str
    test: Heterogeneity | None
    groups: int
    p_holm: float = float("nan")


def subgroups(validated: ValidatedPredictions) -> Part | None:
    """The main metric in every subgroup; None if no variable is given."""
    if not validated.request.by:
        return None
    groups = {variable.name: _groups_of(validated, variable) for variable in validated.request.by}
    title = validated.title_of(validated.main_metric)
    interactions = _interactions(groups, title)
    flat = [group for of_variable in groups.values() for group in of_variable]
    small = [group for group in flat if group.metric is None]
    blocks: list[Block] = [
        _interaction_sentence(interactions),
        Figure(_forest(validated, flat, title), "Forest plot", "Dashed line: all patients."),
        _table(validated, flat, title),
        _interaction_table(interactions),
    ]
    if small:
        names = ", ".join(f"{group.variable} {group.name} ({group.patients}, {group.reason})" for group in small)
        blocks.append(f"Groups without {title} (patients, reason): {names}.")
    content = {
        "metric": validated.main_metric.name,
        "groups": [
            {
                **{name: getattr(group, name) for name in ("variable", "name", "patients", "positives", "reason")},
                "metric": None if group.metric is None else group.metric.to_dict(),
                **{name: share.to_dict() for name, share in zip(SHARES, group.shares, strict=False)},
            }
            for group in flat
        ],
        "interactions": [_plain(interaction) for interaction in interactions],
    }
    warnings = [*_of_one_class_each(groups, title), *_differences(interactions)]
    return Part("subgroups", Section("Subgroups", blocks), content, "", tuple(warnings))


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
    elif run.kind == "classification" and max(counts) == n:
        reason = f"only {run.classes[counts.index(n)]}"
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


def _interactions(groups: dict[str, list[Subgroup]], title: str) -> list[Interaction]:
    """The tests of every variable, over its groups that are known and large enough."""
    tests: list[Interaction] = []
    for variable, of_variable in groups.items():
        known = [group for group in of_variable if group.name != UNKNOWN]
        usable = [
            (group, metric) for group in known if (metric := group.metric) is not None and metric.interval.is_defined
        ]
        test = None
        if len(usable) > 1:
            errors = [standard_error(metric.interval) for _, metric in usable]
            sizes = [group.information for group, _ in usable]
            test = heterogeneity([metric.value for _, metric in usable], errors, sizes)
        tests.append(Interaction(variable, title, test, len(usable)))
        tests += [_share_test(variable, name, known, i) for i, name in enumerate(SHARES) if known and known[0].shares]
    tested = [each.test.p for each in tests if each.test is not None]
    adjusted = iter(holm(tested).tolist() if tested else [])
    return [each if each.test is None else replace(each, p_holm=next(adjusted)) for each in tests]


def _share_test(variable: str, name: str, groups: Sequence[Subgroup], index: int) -> Interaction:
    """The test of sensitivity (index 0) or specificity (1) over groups with enough patients of the class."""
    shares = [group.shares[index] for group in groups]
    counts = [(round(share.value * share.n), share.n) for share in shares if share.n and share.n >= FEWEST_PER_CLASS]
    test = None
    if len(counts) > 1:
        test = differing_shares([right for right, _ in counts], [n for _, n in counts])
    return Interaction(variable, name, test, len(counts))


def _interaction_sentence(interactions: Sequence[Interaction]) -> str:
    said = _differences(interactions)
    metrics = list(dict.fromkeys(each.metric for each in interactions))
    if not said and any(each.test is not None for each in interactions):
        said = [
            f"No difference in {' or '.join(metrics)} between subgroups was shown, which does not mean that there is "
            "none: small groups cannot show one."
        ]
    tested = {each.variable for each in interactions if each.test is not None}
    untested = list(dict.fromkeys(each.variable for each in interactions if each.variable not in tested))
    if untested:
        said.append(f"Not tested, since fewer than two groups are large enough: {', '.join(untested)}.")
    return " ".join(said)


def _differences(interactions: Sequence[Interaction]) -> list[str]:
    """One sentence if a test shows a difference."""
    shown = [f"{each.metric} by {each.variable}" for each in interactions if each.p_holm < SIGNIFICANT]
    return [f"Subgroups differ in {', '.join(shown)} (p < {SIGNIFICANT:g} after Holm's correction)."] if shown else []


def _of_one_class_each(groups: dict[str, list[Subgroup]], title: str) -> list[str]:
    """A warning for variables whose groups have patients of one class each, so that groups and classes are mixed up."""
    mixed_up = [
        variable
        for variable, of_variable in groups.items()
        if all(group.shares and group.positives in (0, group.patients) for group in of_variable)
        and {group.positives == 0 for group in of_variable if group.patients >= FEWEST_PER_CLASS} == {True, False}
    ]
    return [
        f"Every group of {variable} has patients of one class only, so {title} cannot tell whether the model "
        "recognizes the class or the group."
        for variable in mixed_up
    ]


def _table(validated: ValidatedPredictions, groups: Sequence[Subgroup], title: str) -> Table:
    run = validated.run
    binary = run.format.has_threshold
    counted = "events" if run.kind == "survival" else run.classes[validated.positive] if binary else ""
    columns = ["group", "patients", *([counted] if counted else []), title]
    columns += ["sensitivity", "specificity"] * binary
    rows: list[Row] = []
    for group in groups:
        metric = Cell("–", interval=group.in_short) if group.metric is None else estimate_cell(group.metric)
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


def _interaction_table(interactions: Sequence[Interaction]) -> Table:
    rows: list[Row] = []
    for each in interactions:
        first = [each.variable, each.metric, str(each.groups)]
        if each.test is None:
            rows.append([*first, "–", "–", "–"])
        else:
            found = f"{format_number(each.test.q, 2)} ({each.test.df})"
            rows.append([*first, found, format_p(each.test.p), format_p(each.p_holm)])
    shares = any(each.metric in SHARES for each in interactions)
    tests = format_count(sum(each.test is not None for each in interactions), "test")
    permuted = " Sensitivity and specificity: permutation test of Pearson's chi-square." * shares
    caption = (
        "Is the metric the same in all groups that are large enough? Cochran's Q with its degrees of freedom."
        f"{permuted} p (Holm) is adjusted over {tests}."
    )
    return Table(["variable", "metric", "groups compared", "Q (df)", "p", "p (Holm)"], rows, caption=caption)


def _plain(interaction: Interaction) -> dict[str, Any]:
    test = interaction.test
    return {
        "variable": interaction.variable,
        "metric": interaction.metric,
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
        for row, group in enumerate(groups, 1):
            if group.metric is None:
                axes.text(overall.value, row, group.in_short, ha="center", va="center", fontsize=8, color=EDGE)
        for row, metric in enumerate([overall, *(group.metric for group in groups)]):
            if metric is None:
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
