"""How much each tile contributed to a prediction: all kinds of maps behind one function.

    attention             the method's own heat map, as its authors draw it
    attention_logit       attention times the evidence of the tile alone, a_i f(x_i)
    leave_one_out         f(all tiles) - f(all but this one)
    gradient              the tile times the gradient, sum_d x_id df / dx_id
    integrated_gradients  (x_i - m) times the mean gradient between m and x, m the mean tile of the slide

f is the evidence for what is explained: the log-odds of a class, a risk, or a value (`Task.evidence`). All kinds
except attention have a sign: a tile can be evidence against a class. Integrated gradients of all tiles add up to
f(slide) - f(a slide of mean tiles only).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from asmil.cohort.bag import Bag
from asmil.engine.jobs import made_progress
from asmil.errors import AsmilError, did_you_mean
from asmil.explain import pooled_tiles, whole_bags
from asmil.explain.pooled_tiles import pools_tiles
from asmil.machine.arithmetic import exact_arithmetic
from asmil.models.base import MILModel, Output, explains_logits, toward_evidence
from asmil.models.inference import infer
from asmil.tasks.base import Task

STEPS = 16
"""Steps of integrated gradients: the midpoints of equal intervals."""
ATTENTION = "attention"


@dataclass(frozen=True)
class Explained:
    """One value per tile, and what it explains.

    values: N, float64, on the CPU
    name: the class, label or number that is explained
    evidence: the evidence for it in the whole bag; shown: the same as a probability, risk or value
    """

    values: Tensor
    kind: str
    name: str
    evidence: float
    shown: float
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Question:
    """A model with its bag, and the index of what is explained among the task's `explained_names`."""

    model: MILModel
    task: Task
    bag: Bag
    device: torch.device
    output: Output
    index: int

    def evidence(self, logits: Tensor) -> Tensor:
        return self.task.evidence(logits, self.index)

    def features(self) -> Tensor:
        return _features(self.model, self.bag, self.device)


TITLES = {
    "attention_logit": "attention x tile logit",
    "net_contribution": "contribution less an empty tile's",
    "gradient": "gradient x input",
    "random": "random order",
    "oracle": "true tumor tiles first",
}
"""Titles of kinds of maps, and of the orders that they are compared with, whose names are not clear."""


def titled(kind: str) -> str:
    """The title of a kind of map.

    >>> titled("attention_logit"), titled("leave_one_out")
    ('attention x tile logit', 'leave one out')
    """
    return TITLES.get(kind, kind.replace("_", " "))


def kinds_of(model: MILModel) -> dict[str, str | None]:
    """Every kind of map by name: None if the model has it, otherwise why not; its own kinds come first."""
    own: dict[str, str | None] = dict.fromkeys(model.map_kinds if model.has_tile_map else ())
    return own | {name: kind.missing(model) for name, kind in KINDS.items() if name not in own}


@exact_arithmetic()
def explain_bag(
    model: MILModel,
    task: Task,
    bag: Bag,
    kind: str | None = None,
    name: str | None = None,
    device: torch.device | str | None = None,
    output: Output | None = None,
) -> Explained:
    """How much each tile of a bag contributed to the prediction of one model.

    kind: one of `kinds_of`; default: the method's own map
    name: the class or label to explain; default: the predicted one
    output: the model's output for the bag, if known
    """
    model.eval()
    model.refuse_misfit(bag)
    at = next(model.parameters()).device if device is None else torch.device(device)
    known = kinds_of(model)
    available = [name for name, missing in known.items() if missing is None]
    kind = kind or next(iter(available), ATTENTION)
    if kind not in known:
        raise AsmilError(f"there is no kind of map {kind!r}; {did_you_mean(kind, known)}")
    if (why := known[kind]) is not None:
        raise AsmilError(f"{type(model).__name__} has no map {kind!r}: {why}; it has {', '.join(available)}")
    output = output or infer(model, model.prepare(bag), at)
    index = _explained_index(task, output.logits, name)
    question = _Question(model, task, bag, at, output, index)
    compute = KINDS[kind].compute if kind in KINDS else (lambda asked: _own_map(asked, kind))
    values, notes = compute(question)
    values = values.detach().double().cpu()
    if not bool(values.isfinite().all()):
        raise AsmilError(f"{bag.id}: the {kind} of {int((~values.isfinite()).sum())} tiles is not a finite number")
    return Explained(
        values,
        kind,
        task.explained_names[index],
        float(question.evidence(output.logits[None])),
        float(task.shown(output.logits[None], index)),
        notes,
    )


def _explained_index(task: Task, logits: Tensor, name: str | None) -> int:
    if name is None:
        return task.explained_first(logits)
    if name not in task.explained_names:
        raise AsmilError(f"there is no class {name!r} to explain; {did_you_mean(name, task.explained_names)}")
    return task.explained_names.index(name)


SHARES_OF_LOGITS = ("contribution", "net_contribution")
"""Maps of methods that split a logit among the tiles."""
Computed = tuple[Tensor, tuple[str, ...]]


def _own_map(asked: _Question, kind: str) -> Computed:
    """The method's own map; methods with one row per class take the row of the class with the highest logit."""
    output, names = asked.output, asked.task.explained_names
    if not explains_logits(asked.task):
        output = toward_evidence(output, asked.task, asked.index)
    elif len(output.logits) > 1:
        logits = torch.zeros_like(output.logits)
        logits[asked.index] = 1.0
        output = replace(output, logits=logits)
    values = asked.model.tile_map(output, kind)
    # one logit for two classes: what is for the second one is against the first
    is_against = kind in SHARES_OF_LOGITS and len(output.logits) == 1 and len(names) == 2 and asked.index == 0
    return (-values if is_against else values), ()


def tile_logits(model: MILModel, bag: Bag, output: Output, device: torch.device) -> Tensor | None:
    """N x C, the logits of single tiles; None for a method that does not classify them."""
    if pools_tiles(model):
        return pooled_tiles.tile_logits(model, _features(model, bag, device)).cpu()
    return None if output.instance_logits is None else output.instance_logits.double()


def logits_after_removal(
    model: MILModel, bag: Bag, order: Tensor, counts: Sequence[int], device: torch.device
) -> Tensor:
    """R x C, float64: the logits of a bag after the first `counts` tiles of an order are removed."""
    model.eval()
    if pools_tiles(model):
        return pooled_tiles.logits_after_removal(model, _features(model, bag, device), order, counts).cpu()
    bags = [bag.subset(order[count:].sort().values) if count else bag for count in counts]
    return torch.stack([infer(model, model.prepare(rest), device).logits.double() for rest in bags])


def _attention_logit(asked: _Question) -> Computed:
    model = asked.model
    logits = tile_logits(model, asked.bag, asked.output, asked.device)
    assert logits is not None
    evidence = asked.evidence(logits)
    if model.weighted_instance_logits:
        return evidence, ()
    attention, _ = _own_map(asked, model.map_kinds[0])
    return attention.double().cpu() * evidence, ()


def _no_tile_logit(model: MILModel) -> str | None:
    if model.score_axes and not (pools_tiles(model) or model.classifies_tiles):
        return "the method has no logits of single tiles"
    if model.weighted_instance_logits and model.n_outputs > 2:
        return "its logits of tiles are shares of those of the bag, whose odds compare two classes"
    return _no_attention(model)


def _leave_one_out(asked: _Question) -> Computed:
    if len(asked.bag) < 2:
        raise AsmilError(f"{asked.bag.id}: it has one tile, and without it nothing is left; ask for another kind")
    if pools_tiles(asked.model):
        return pooled_tiles.evidence_lost(asked.model, asked.features(), asked.evidence), ()
    lost, together = whole_bags.evidence_lost(asked.model, asked.bag, asked.evidence, asked.device)
    notes = (f"up to {together} neighboring tiles were left out together",) if together > 1 else ()
    return lost, notes


def _gradient(asked: _Question) -> Computed:
    features = asked.features()
    return (features * _gradient_at(asked, features)).sum(dim=1), ()


def _integrated_gradients(asked: _Question) -> Computed:
    features = asked.features()
    mean = features.mean(dim=0, keepdim=True)
    total = torch.zeros_like(features)
    for step in range(STEPS):
        share = (step + 0.5) / STEPS
        total += _gradient_at(asked, mean + share * (features - mean))
        made_progress()
    return ((features - mean) * total / STEPS).sum(dim=1), ()


def _gradient_at(asked: _Question, features: Tensor) -> Tensor:
    if pools_tiles(asked.model):
        return pooled_tiles.gradient(asked.model, features, asked.evidence)
    bag = replace(asked.bag, features=features.cpu())
    return whole_bags.gradient(asked.model, bag, asked.evidence, asked.device)


def _features(model: MILModel, bag: Bag, device: torch.device) -> Tensor:
    return bag.features.to(device, next(model.parameters()).dtype)


@dataclass(frozen=True)
class _Kind:
    """How a map is computed, and why a model lacks it (None: it has it)."""

    compute: Callable[[_Question], Computed]
    missing: Callable[[MILModel], str | None] = lambda model: None


def _no_attention(model: MILModel) -> str | None:
    return None if model.score_axes else "it has no attention"


KINDS: dict[str, _Kind] = {
    ATTENTION: _Kind(lambda asked: _own_map(asked, ATTENTION), _no_attention),
    "attention_logit": _Kind(_attention_logit, _no_tile_logit),
    "leave_one_out": _Kind(_leave_one_out),
    "gradient": _Kind(_gradient),
    "integrated_gradients": _Kind(_integrated_gradients),
}
