"""A method of the user's own: a class, or its name `module:Class` or `file.py:Class`.

The class is a subclass of `MILModel`. Before it is trained, it is tested on random bags, and all problems are reported
at once. A run names its method; a run that names code is opened only if the user names the code too, because a run
folder may come from anyone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from asmil.cohort.bag import Bag
from asmil.errors import AsmilError, did_you_mean
from asmil.models.base import MILModel, ModelConfig, Output
from asmil.models.registry import Method, known_methods, remember
from asmil.settings.own_code import describe, own_module, same_attribute

WIDTH, OUTPUTS = 8, 3
TILES = (1, 7)
"""The sizes of the random bags and models of a trial."""


def is_own(name: str) -> bool:
    """Whether a method is named as code, `module:Class` or `file.py:Class`.

    >>> is_own("abmil"), is_own("my_models:Mine"), is_own("work/mine.py:Mine")
    (False, True, True)
    """
    return ":" in name


def method_name(method: str | type[MILModel]) -> str:
    """The name of a method given as a name, as `module:Class` or as a class; the last two are tested."""
    if isinstance(method, str):
        return load_own(method) if is_own(method) and method not in known_methods() else method
    if not isinstance(method, type) or not issubclass(method, MILModel):
        raise AsmilError(f"method = {method!r}: give the name of a method or a subclass of asmil.MILModel")
    registered = next((known.name for known in known_methods().values() if known.model is method), None)
    if registered is not None:
        return registered
    name = f"{method.__module__}:{method.__qualname__}"
    _accept(name, method)
    return name


def load_own(name: str, as_name: str | None = None) -> str:
    """Import a method that the user names, test and register it; returns its name.

    as_name: the name that a run has for it, if its file was elsewhere then
    """
    source, _, attribute = name.rpartition(":")
    module = own_module(source, f"--method {name}")
    model_type = getattr(module, attribute, None)
    if model_type is None:
        classes = [key for key, value in vars(module).items() if isinstance(value, type) and value is not MILModel]
        raise AsmilError(f"--method {name}: {source} has no class {attribute!r}; {did_you_mean(attribute, classes)}")
    if not isinstance(model_type, type) or not issubclass(model_type, MILModel):
        raise AsmilError(
            f"--method {name}: {attribute} is not a subclass of asmil.MILModel; write class {attribute}(MILModel)"
        )
    _accept(as_name or name, model_type)
    return as_name or name


def confirm(name: str, given: str | None, named_by: str) -> None:
    """Register the method of a run if it is code that the user has named too; other code is refused.

    given: the method as the user names it
    named_by: the file that names the method
    """
    if not is_own(name):
        if given not in (None, name):
            raise AsmilError(f"--method {given}: {named_by} names the method {name}; leave --method out")
        return
    if given is not None:
        if not same_attribute(name, given):
            raise AsmilError(f"--method {given}: {named_by} names the method {name}; give the same class")
        if given in known_methods():
            remember(replace(known_methods()[given], name=name))
        else:
            load_own(given, name)
    elif name not in known_methods():
        raise AsmilError(
            f"{named_by} names the method {name}, which is code that would be executed here; look at it, and if you "
            f"trust it, confirm it with --method {name} (in Python: load_run(..., method={name!r}))"
        )


def _accept(name: str, model_type: type[MILModel]) -> None:
    if problems := list(problems_of(model_type)):
        raise AsmilError(f"method {name}: it cannot be trained:" + "".join(f"\n  - {problem}" for problem in problems))
    summary = next(iter((model_type.__doc__ or "").strip().splitlines()), "")
    remember(Method(name, model_type, summary, "", 0))


def problems_of(model_type: type[MILModel]) -> Iterator[str]:
    """The problems of a class on random bags, one sentence each; none if it can be trained."""
    if not (isinstance(model_type.config_type, type) and issubclass(model_type.config_type, ModelConfig)):
        yield "config_type is not a subclass of ModelConfig"
        return
    try:
        torch.manual_seed(0)
        model = model_type(WIDTH, OUTPUTS, model_type.config_type())
    except Exception as error:  # noqa: BLE001
        yield f"__init__(in_features, n_outputs, config) fails with {describe(error)}"
        return
    if not isinstance(getattr(model, "in_features", None), int):
        yield "__init__ does not call super().__init__(in_features, n_outputs, config)"
        return
    if not any(parameter.requires_grad for parameter in model.parameters()):
        yield "it has no parameters to train"
    for tiles in TILES:
        if problems := list(_problems_with_bag(model.eval(), tiles)):
            yield from problems
            return
    yield from _problems_with_gradients(model.train())


def _problems_with_bag(model: MILModel, tiles: int) -> Iterator[str]:
    draw = torch.Generator().manual_seed(tiles)
    coords = torch.stack([torch.arange(tiles), torch.arange(tiles)], dim=1) * 256
    where = f"for a bag of {tiles} tile{'s' * (tiles > 1)} of {WIDTH} features"
    try:
        bag = model.prepare(Bag(torch.randn(tiles, WIDTH, generator=draw), coords, id="trial"))
        with torch.no_grad():
            output, again = model(bag), model(bag)
    except Exception as error:  # noqa: BLE001
        yield f"forward fails {where} with {describe(error)}"
        return
    try:
        with torch.no_grad():
            model(replace(bag, features=bag.features.half()))
    except Exception as error:  # noqa: BLE001
        yield f"forward fails for float16 features, as files hold them ({describe(error)}); use bag.features.float()"
        return
    if not isinstance(output, Output):
        yield f"forward returns a {type(output).__name__}; return Output(logits, scores, embedding)"
        return
    yield from _problems_of_tensor("logits", output.logits, (OUTPUTS,), f"one number per output, here {OUTPUTS}", where)
    yield from _problems_of_tensor("embedding", output.embedding, (None,), "one vector", where)
    if isinstance(output.logits, Tensor) and not torch.equal(output.logits.nan_to_num(), again.logits.nan_to_num()):
        yield "two calls of forward in eval mode give different logits; draw random numbers in training only"
    if output.scores is None:
        if model.score_axes:
            yield f"score_axes = {model.score_axes} promises scores, and Output.scores is None"
        return
    problems = list(_problems_of_tensor("scores", output.scores, (None, tiles), f"A x N, here A x {tiles}", where))
    yield from problems
    if not model.score_axes:
        yield 'it returns scores without saying what their rows are; set score_axes, e.g. score_axes = ("head",)'
    elif not problems:
        yield from _problems_of_attend(model, bag, output)


def _problems_of_attend(model: MILModel, bag: Bag, output: Output) -> Iterator[str]:
    assert output.scores is not None
    try:
        with torch.no_grad():
            scores, heat = model.attend(bag), model.tile_map(output)
    except Exception as error:  # noqa: BLE001
        yield f"attend or tile_map fails with {describe(error)}"
        return
    if not isinstance(scores, Tensor) or not torch.allclose(scores, output.scores, atol=1e-5):
        yield "attend(bag) does not return the scores of forward; the anchor and the maps read them there"
    if heat.shape != (len(bag),):
        yield f"tile_map has shape {tuple(heat.shape)}; it must have one value per tile"


def _problems_with_gradients(model: MILModel) -> Iterator[str]:
    bag = model.prepare(Bag(torch.randn(TILES[-1], WIDTH, generator=torch.Generator().manual_seed(1)), id="trial"))
    try:
        model(bag).logits.logsumexp(dim=0).backward()
    except Exception as error:  # noqa: BLE001
        yield f"no gradient can be computed: {describe(error)}"
        return
    if not any(weight.grad is not None and bool(weight.grad.abs().sum() > 0) for weight in model.parameters()):
        yield "the logits do not depend on any parameter, so nothing would be learned"


def _problems_of_tensor(name: str, value: Any, shape: tuple[int | None, ...], wanted: str, where: str) -> Iterator[str]:
    if not isinstance(value, Tensor):
        yield f"Output.{name} is a {type(value).__name__}, not a tensor"
    elif value.ndim != len(shape) or any(want not in (None, has) for want, has in zip(shape, value.shape, strict=True)):
        yield f"Output.{name} has shape {' x '.join(map(str, value.shape)) or '()'} {where}; it must be {wanted}"
    elif not bool(torch.isfinite(value).all()):
        yield f"Output.{name} holds NaN or infinity {where}"
