"""Survival: the time until an event, from partly censored follow-up times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from asmil.errors import AsmilError
from asmil.reporting import jsonable
from asmil.tables.arrays import Booleans, Floats
from asmil.tasks.base import Columns, Metric, PredictionFormat, Table, Task, TaskKind, Truth, numbers
from asmil.tasks.checked_arrays import checked_outcomes
from asmil.tasks.concordance import concordance, concordance_pairs, weighted_concordance
from asmil.tasks.survival_curves import mean_survival_time, risk, survival_from_hazards, survival_from_incidence
from asmil.tasks.survival_losses import cox_nll, hazard_nll, incidence_nll

SurvivalLoss = Literal["incidence", "hazard", "cox"]
RiskKind = Literal["survival_sum", "mean_time", "log_risk"]

MOST_BASELINE_TIMES = 50
LARGEST_EXPONENT = 500.0


@dataclass(frozen=True)
class Baseline:
    """The cumulative hazard of a patient with log-risk `center`, a step function: `hazard_k` from `times_k` on."""

    times: tuple[float, ...]
    hazard: tuple[float, ...]
    center: float


class Survival(Task):
    """Discrete time (incidences or hazards in C bins) or Cox; a target is (time, event), event 1 observed, 0 censored.

    edges: C + 1 edges of the time bins (`fit_bins` of the training patients); None for Cox
    alpha: how much less weight censored patients have in training, 0 to 1
    risk: the number that ranks patients: `survival_sum` (default), `mean_time` (as in VLSA), or `log_risk` (Cox only)
    baseline: of a Cox model, from `fit_baseline`; without a baseline it predicts risks but no curves
    """

    kind: TaskKind = "survival"

    def __init__(
        self,
        edges: Sequence[float] | npt.NDArray[np.floating] | None,
        loss: SurvivalLoss = "incidence",
        alpha: float = 0.0,
        risk: RiskKind | None = None,
        baseline: Baseline | None = None,
    ) -> None:
        self.loss_kind = loss
        self.risk_kind: RiskKind = risk or ("log_risk" if loss == "cox" else "survival_sum")
        self.alpha = alpha
        self.baseline = baseline
        self.edges = None if edges is None else np.asarray(edges, dtype=np.float64)
        self.joint = loss == "cox"
        self.loss_name = "cox" if loss == "cox" else "nll"
        self._refuse_misfits()

    @property
    def n_outputs(self) -> int:
        """C, the number of time bins; 1 for Cox."""
        return 1 if self.edges is None else len(self.edges) - 1

    @property
    def directions(self) -> Floats:
        """C x 1: hazards of all bins together; incidences from early to late bins, standardized."""
        if self.loss_kind != "incidence":
            return np.ones((self.n_outputs, 1))
        bins = np.arange(self.n_outputs, dtype=np.float64)
        return np.asarray((bins - bins.mean()) / (bins.std() or 1.0))[:, None]

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The mean loss of B patients; logits B x C, targets B x 2 (time, event)."""
        return self._loss(logits, targets, self.alpha)

    def unfitted(self) -> Survival:
        """The same task with bins of length 1."""
        edges = None if self.edges is None else np.arange(len(self.edges), dtype=np.float64)
        return Survival(edges, self.loss_kind, self.alpha, self.risk_kind)

    def unfitted_targets(self, targets: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The middle of the bin of each time, and the events."""
        if self.edges is None:
            return targets
        bins = np.searchsorted(self.edges[1:-1].astype(targets.dtype), targets[:, 0], side="right")
        return np.stack([bins + 0.5, targets[:, 1]], axis=1)

    def survival(self, logits: Tensor) -> Floats | None:
        """B x m survival at `survival_times`; None for Cox without a baseline."""
        logits = logits.detach().double().cpu()
        if self.edges is not None:
            of_bins = survival_from_incidence if self.loss_kind == "incidence" else survival_from_hazards
            return of_bins(logits).numpy()
        if self.baseline is None:
            return None
        relative = _relative(logits[:, 0].numpy(), self.baseline.center)
        return np.asarray(np.exp(-np.outer(relative, self.baseline.hazard)))

    @property
    def survival_times(self) -> Floats | None:
        """m times at which survival is predicted: the right edges of the bins, or the times of the baseline."""
        if self.edges is not None:
            return self.edges[1:]
        return None if self.baseline is None else np.array(self.baseline.times)

    def risks(self, logits: Tensor) -> Floats:
        """B risks, higher is worse; minus infinity if the mean survival time is infinite."""
        if self.edges is None:
            return logits.detach().double().cpu()[:, 0].numpy()
        survival = self.survival(logits)
        assert survival is not None
        if self.risk_kind == "mean_time":
            return -mean_survival_time(survival, self.edges)
        return risk(torch.from_numpy(survival)).numpy()

    def measure(self, targets: npt.NDArray[Any], logits: Tensor) -> dict[str, float]:
        """The loss (alpha = 0) and the C-index (Harrell's ties); nan if no two patients can be compared."""
        targets = np.asarray(targets, dtype=np.float64)
        time, event = targets[:, 0], targets[:, 1]
        loss = self._loss(logits.detach().double().cpu(), torch.from_numpy(targets), alpha=0.0)
        risks = self.risks(logits)
        defined = concordance_pairs(time, event, risks).comparable[0] > 0
        return {"loss": float(loss), "c_index": concordance(time, event, risks) if defined else float("nan")}

    def selection_score(self, measures: Mapping[str, float | None]) -> float:
        """The C-index; 0 if it is undefined."""
        c_index = measures.get("c_index")
        return 0.0 if c_index is None or np.isnan(c_index) else float(c_index)

    def columns(self, logits: Tensor) -> Columns:
        """`risk`, and if there are curves `survival_times` and `survival`, one list per patient."""
        columns: Columns = {"risk": self.risks(logits)}
        survival, times = self.survival(logits), self.survival_times
        if survival is not None and times is not None:
            columns["survival_times"] = [times.tolist()] * len(survival)
            columns["survival"] = survival.tolist()
        return columns

    def fit_baseline(self, log_risk: npt.ArrayLike, time: npt.ArrayLike, event: npt.ArrayLike) -> Survival:
        """The Cox task with Breslow's baseline, from the log-risks of the training patients.

        H(t) = sum over event times t_k <= t of d_k / sum_{t_j >= t_k} exp(r_j - mean r), at up to 50 event times.
        """
        if self.edges is not None:
            raise AsmilError("only a Cox model has a baseline; this model predicts its curves in time bins")
        times, events = checked_outcomes(time, event)
        if not events.any():
            raise AsmilError("no patient has an event, so no baseline can be fitted; add patients with an event")
        log_risks = np.asarray(log_risk, dtype=np.float64)
        if log_risks.shape != times.shape or not np.isfinite(log_risks).all():
            raise AsmilError(
                f"a baseline needs a finite log-risk for each of the {len(times)} patients, but only "
                f"{int(np.isfinite(log_risks).sum())} are finite"
            )
        center = float(log_risks.mean())
        relative = _relative(log_risks, center)
        event_times, deaths = np.unique(times[events], return_counts=True)
        order = np.argsort(times, kind="stable")
        at_risk_from = np.cumsum(relative[order][::-1])[::-1]
        hazard = np.cumsum(deaths / at_risk_from[np.searchsorted(times[order], event_times, side="left")])
        count = min(len(event_times), MOST_BASELINE_TIMES)
        kept = np.unique(np.linspace(0, len(event_times) - 1, count).round().astype(np.int64))
        baseline = Baseline(tuple(event_times[kept].tolist()), tuple(hazard[kept].tolist()), center)
        return Survival(None, "cox", self.alpha, self.risk_kind, baseline)

    @property
    def explained_names(self) -> tuple[str, ...]:
        return ("risk",)

    def evidence(self, logits: Tensor, name: int) -> Tensor:
        """The log-risk of Cox, or minus the sum of the survival over the bins.

        Models that rank patients by the mean survival time are also explained by this sum: it always has a gradient.
        """
        if self.edges is None:
            return logits[:, 0]
        of_bins = survival_from_incidence if self.loss_kind == "incidence" else survival_from_hazards
        return risk(of_bins(logits))

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "loss": self.loss_kind,
            "alpha": self.alpha,
            "risk": self.risk_kind,
            "edges": None if self.edges is None else self.edges.tolist(),
            "baseline": jsonable(self.baseline),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Survival:
        """Rebuild a task from the result of `to_dict`."""
        stored = values.get("baseline")
        baseline = (
            None if stored is None else Baseline(tuple(stored["times"]), tuple(stored["hazard"]), stored["center"])
        )
        return cls(values["edges"], values["loss"], values["alpha"], values["risk"], baseline)

    def _loss(self, logits: Tensor, targets: Tensor, alpha: float) -> Tensor:
        time, event = targets[:, 0], targets[:, 1]
        if self.edges is None:
            return cox_nll(logits[:, 0], time, event, largest=None)
        # edges have the dtype of the times, so that a time on an edge stays on it after rounding
        inner = torch.as_tensor(self.edges[1:-1], dtype=time.dtype, device=time.device)
        bins = (time[:, None] >= inner).sum(dim=1)
        negative_log_likelihood = incidence_nll if self.loss_kind == "incidence" else hazard_nll
        return negative_log_likelihood(logits, bins, event, alpha)

    def _refuse_misfits(self) -> None:
        if self.loss_kind not in ("incidence", "hazard", "cox"):
            raise AsmilError(f"the loss of a survival task must be incidence, hazard or cox, not {self.loss_kind!r}")
        if not 0 <= self.alpha <= 1:
            raise AsmilError(f"alpha of a survival task is {self.alpha}; it must be between 0 and 1")
        if self.loss_kind == "cox":
            if self.edges is not None:
                raise AsmilError("a Cox model has no time bins; leave the edges out, or choose another loss")
            if self.risk_kind != "log_risk":
                raise AsmilError(f"the risk of a Cox model is 'log_risk', not {self.risk_kind!r}; leave it out")
            return
        if self.baseline is not None:
            raise AsmilError("only a Cox model has a baseline; leave it out, or choose the loss 'cox'")
        if self.risk_kind not in ("survival_sum", "mean_time"):
            raise AsmilError(
                f"the risk of a model with time bins must be survival_sum or mean_time, not {self.risk_kind!r}"
            )
        if self.edges is None or self.edges.ndim != 1 or not (np.diff(self.edges) > 0).all():
            raise AsmilError(f"the loss {self.loss_kind!r} needs increasing bin edges; compute them with fit_bins")
        fewest = 2 if self.loss_kind == "incidence" or self.risk_kind == "mean_time" else 1
        if len(self.edges) - 1 < fewest:
            raise AsmilError(
                f"there is {len(self.edges) - 1} time bin, but at least {fewest} are needed; use more bins, or train "
                "with more patients that have an event"
            )


def completed_task(task: Task, logits: Tensor, targets: npt.NDArray[Any]) -> Task:
    """The task, completed with the logits (n x C) and targets of the training bags: a Cox task with its baseline."""
    if not isinstance(task, Survival) or not task.joint:
        return task
    return task.fit_baseline(logits[:, 0].numpy(), targets[:, 0], targets[:, 1])


def _relative(log_risk: Floats, center: float) -> Floats:
    """The hazard of a patient relative to the baseline, clipped to stay finite."""
    return np.asarray(np.exp(np.clip(log_risk - center, -LARGEST_EXPONENT, LARGEST_EXPONENT)))


def risk_format(names: tuple[str, ...] = ()) -> PredictionFormat:
    """Predictions of a risk: `time` and `event` of a patient, its `risk`, and survival curves if the model has them."""

    def problems(table: Table) -> Iterator[tuple[Booleans, str]]:
        time = table["time"].to_numpy(dtype=np.float64)
        yield ~(np.isfinite(time) & (time >= 0)), "has a missing or negative time; fix the manifest"
        yield np.asarray(~table["event"].isin([0, 1])), "has an event that is neither 0 nor 1; fix the manifest"
        twice = table.duplicated(["patient", "fold", "seed", "role"]).to_numpy()
        yield twice, "belongs to a patient that the same training predicts twice"
        differ = table.groupby("patient")[["time", "event"]].transform("nunique").gt(1).any(axis=1).to_numpy()
        yield differ, "belongs to a patient with two times or events; fix the manifest and train again"
        has_curves, has_times = "survival" in table, "survival_times" in table
        if has_curves != has_times:
            present, absent = ("survival", "survival_times") if has_curves else ("survival_times", "survival")
            yield np.ones(len(table), dtype=np.bool_), f"has a column {present}, but no column {absent}"
        elif has_curves:
            curves = zip(table["survival_times"], table["survival"], strict=True)
            broken = np.array([not _is_curve(*pair) for pair in curves], dtype=np.bool_)
            yield broken, "has a survival curve whose times do not increase or whose values rise"

    def c_index(time_and_event: Truth, risk: Floats, weights: Floats) -> Floats:
        return weighted_concordance(time_and_event[:, 0], time_and_event[:, 1], risk[:, 0], weights)

    brier = (0.0, 0.3)
    return PredictionFormat(
        kind="survival",
        names=names,
        truth_columns=("time", "event"),
        prediction_columns=("risk",),
        truth=lambda table: numbers(table, ("time", "event")),
        target_columns=lambda targets: {"time": targets[:, 0], "event": targets[:, 1].astype(np.int64)},
        problems=problems,
        metrics=(
            # the risks of two models have no common scale, so patients of different folds are never compared
            Metric("c_index", "C-index", c_index, joins_folds=False),
            Metric("c_index_strict", "C-index, strict", in_terminal=False),
            Metric("mean_auc", "mean AUC(t)"),
            Metric("integrated_brier", "integrated Brier", larger_is_better=False, scale=brier),
            Metric("reference_brier", "Kaplan-Meier Brier", larger_is_better=False, scale=brier),
        ),
        selected_by="C-index",
        may_be_infinite=True,
        by_patient=True,
        in_words=lambda outcomes, risk, values, unit: (
            f"orders {100 * values['c_index']:.0f} % of the comparable pairs of patients correctly (chance: 50 %)"
        ),
    )


def _is_curve(times: Any, survival: Any) -> bool:
    if times is None or survival is None:
        return times is None and survival is None
    try:
        times, survival = np.asarray(times, dtype=np.float64), np.asarray(survival, dtype=np.float64)
    except (TypeError, ValueError):  # text, or lists of different lengths
        return False
    if times.ndim != 1 or times.shape != survival.shape or len(times) == 0:
        return False
    rounding = 1e-6
    falling = np.diff(np.r_[1.0, survival, 0.0]) <= rounding
    return bool(np.isfinite(times).all() and times[0] >= 0 and (np.diff(times) > 0).all() and falling.all())
