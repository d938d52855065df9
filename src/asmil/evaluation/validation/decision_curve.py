"""Decision curves: the net benefit of acting on predictions, beside acting on all patients or on none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from asmil.evaluation.statistics.decisions import net_benefit, survival_net_benefit
from asmil.evaluation.validation.validated import Part, ValidatedPredictions
from asmil.reporting import Block, Estimate, Figure, Interval, Row, Section, SideBySide, Table
from asmil.reporting.document import estimate_cell
from asmil.reporting.drawing import COLORS, EDGE, ONE_COLUMN, new_figure, plain_text, svg_text
from asmil.reporting.formats import format_number, format_share
from asmil.tables.arrays import Floats
from asmil.tasks.intervals import under_draws

THRESHOLDS = np.arange(1, 100) / 100
SHOWN = (0.05, 0.1, 0.2, 0.3, 0.5)
DRAWS = 500


@dataclass(frozen=True)
class DecisionCurve:
    """Net benefit at T thresholds: of the model with its 95 % band, and of acting on all patients.

    better: the model minus the better of acting on all and on none, with its band
    """

    model: Floats
    low: Floats
    high: Floats
    treat_all: Floats
    better: Floats
    better_low: Floats
    better_high: Floats

    def at(self, threshold: float) -> tuple[Estimate, float, Estimate]:
        """Model, acting on all, and the gain of the model at one threshold."""
        t = int(np.argmin(np.abs(THRESHOLDS - threshold)))
        model = Estimate(float(self.model[t]), Interval(float(self.low[t]), float(self.high[t])))
        gain = Estimate(float(self.better[t]), Interval(float(self.better_low[t]), float(self.better_high[t])))
        return model, float(self.treat_all[t]), gain


def decision_curve(validated: ValidatedPredictions) -> Part | None:
    """One curve per class (of two: the positive one) or per survival time; None for other tasks."""
    curves = _curves(validated)
    if not curves:
        return None
    rows: list[Row] = []
    for name, curve in curves.items():
        for threshold in SHOWN:
            model, everyone, gain = curve.at(threshold)
            shown = format_share(threshold), estimate_cell(model), format_number(everyone), estimate_cell(gain)
            rows.append([name, *shown])
    figures = [Figure(_draw(name, curve), f"Decision curve: {name}") for name, curve in curves.items()]
    caption = (
        "Net benefit: true positives minus weighted false positives, per patient. The threshold probability is the "
        "lowest risk at which one would act (treat, test): 10 % means that nine unnecessary actions are accepted for "
        "one that is needed. Gain: the model minus the better of acting on all patients and on none (0); above 0 the "
        "model helps. With 95 % intervals by patient, each for one threshold alone: that the model is better in a "
        "narrow range of thresholds can be chance."
    )
    if any(np.isnan(curve.model).any() for curve in curves.values()):
        caption += " Gaps: the patients above these thresholds were not followed long enough."
    useful = [name for name, curve in curves.items() if (curve.better_low > 0).any()]
    blocks: list[Block] = [
        " ".join(_in_words(name, curve) for name, curve in curves.items()),
        SideBySide(figures),
        "Line: net benefit of the model, with a 95 % band by patient.",
        Table(["", "threshold", "model", "act on all", "gain"], rows, caption=caption),
    ]
    content = {
        "thresholds": THRESHOLDS,
        "useful": useful,
        "curves": {name: vars(curve) for name, curve in curves.items()},
    }
    return Part("decision_curve", Section("Decision curve", blocks), content)


def _curves(validated: ValidatedPredictions) -> dict[str, DecisionCurve]:
    run, truth = validated.run, validated.truth
    curves = {}
    for k in validated.classes_shown if run.kind == "classification" else ():

        def of_class(weights: Floats, p: Floats, k: int = k) -> Floats:
            return net_benefit((truth == k).astype(np.float64), p, THRESHOLDS, weights)

        curves[run.classes[k]] = _with_band(validated, of_class, validated.predictions[:, k])
    for t, survival in validated.survival_at.items() if run.kind == "survival" else ():

        def by_time(weights: Floats, p: Floats, t: float = t) -> Floats:
            return survival_net_benefit(truth[:, 0], truth[:, 1], p, t, THRESHOLDS, weights)

        curves[f"event by {t:.3g} {run.time_unit}"] = _with_band(validated, by_time, 1 - survival)
    return curves


def _with_band(
    validated: ValidatedPredictions, measure: Callable[[Floats, Floats], Floats], probabilities: Floats
) -> DecisionCurve:
    everyone = np.ones_like(probabilities)

    def under(weights: Floats) -> Mapping[str, Floats]:
        model, treat_all = measure(weights, probabilities), measure(weights, everyone)
        return {"model": model, "all": treat_all, "better": model - np.maximum(treat_all, 0.0)}

    plain = {name: values[0] for name, values in under(np.ones((1, validated.n_patients))).items()}
    drawn = under_draws(under, validated.draws[:DRAWS], validated.n_patients)
    # a limit is nan where a resample is undefined
    (low, high), (better_low, better_high) = (
        np.percentile(drawn[name], [2.5, 97.5], axis=0) for name in ("model", "better")
    )
    return DecisionCurve(plain["model"], low, high, plain["all"], plain["better"], better_low, better_high)


def _in_words(name: str, curve: DecisionCurve) -> str:
    helps = THRESHOLDS[curve.better_low > 0]
    if not len(helps):
        return f"{name}: at no threshold is the model clearly better than acting on all patients or on none."
    return (
        f"{name}: the model is clearly better than acting on all patients or on none at thresholds from "
        f"{format_share(helps[0])} to {format_share(helps[-1])}{_gaps(helps)}."
    )


def _gaps(helps: Floats) -> str:
    return " (with gaps)" * bool(len(helps) > 1 and np.diff(helps).max() > 1.5 * (THRESHOLDS[1] - THRESHOLDS[0]))


def _draw(name: str, curve: DecisionCurve) -> str:
    top = float(np.nanmax([curve.model[0], curve.treat_all[0], 0.01]))
    with new_figure(ONE_COLUMN, 3.8) as figure:
        axes = figure.add_subplot()
        axes.axhline(0, color=EDGE, linewidth=1.2, label="act on none")
        axes.plot(THRESHOLDS, curve.treat_all, "--", color=COLORS[1], linewidth=1.4, label="act on all")
        axes.fill_between(THRESHOLDS, curve.low, curve.high, color=COLORS[0], alpha=0.15, linewidth=0)
        axes.plot(THRESHOLDS, curve.model, color=COLORS[0], linewidth=1.8, label="model")
        axes.set(xlim=(0, 1), ylim=(-0.25 * top, 1.15 * top), title=f"Decision curve: {plain_text(name)}")
        axes.set(xlabel="threshold probability", ylabel="net benefit")
        axes.legend(loc="upper right")
        return svg_text(figure)
