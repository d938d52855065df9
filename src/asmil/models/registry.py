"""The methods by name."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from asmil.errors import AsmilError, did_you_mean
from asmil.machine.lazy_names import import_modules
from asmil.models.base import MILModel, ModelConfig
from asmil.settings.config import parse_settings


@dataclass(frozen=True)
class Method:
    """A registered method: its model, where it comes from, and how it differs from the common training settings.

    defaults: settings that belong to the method in every preset
    presets: named trees of settings laid over the defaults ("official", "released", ...)
    """

    name: str
    model: type[MILModel]
    summary: str
    paper: str
    year: int
    defaults: Mapping[str, Any] = field(default_factory=dict)
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


_METHODS: dict[str, Method] = {}
ModelType = TypeVar("ModelType", bound=type[MILModel])


def register(
    name: str,
    *,
    summary: str = "",
    paper: str = "",
    year: int = 0,
    defaults: Mapping[str, Any] | None = None,
    presets: Mapping[str, Mapping[str, Any]] | None = None,
) -> Callable[[ModelType], ModelType]:
    """Make a model class known under `name`, for `build`, `train` and `MILClassifier` of this process.

    summary, paper, year: shown by `asmil methods`
    defaults: settings that belong to the method, as a tree: {"training": {"lr": 3e-4}}
    presets: named trees of settings laid over the defaults
    """

    def keep(model: ModelType) -> ModelType:
        remember(Method(name, model, summary, paper, year, defaults or {}, presets or {}))
        return model

    return keep


def remember(method: Method) -> None:
    """Register a method; a name that another class has is refused."""
    other = _METHODS.get(method.name)
    # running a notebook cell again creates another class of the same name
    if other is not None and other.model.__qualname__ != method.model.__qualname__:
        raise AsmilError(
            f"method {method.name!r} is {other.model.__module__}.{other.model.__qualname__}; give yours another name"
        )
    _METHODS[method.name] = method


def known_methods() -> Mapping[str, Method]:
    """The methods that are registered so far, without importing any."""
    return _METHODS


def methods() -> dict[str, Method]:
    """All registered methods, by name: every module of `asmil.models` may register some."""
    import_modules("asmil.models")
    return dict(sorted(_METHODS.items()))


def find_method(name: str) -> Method:
    """The method called `name`; an error for an unknown name suggests the nearest ones."""
    known = methods()
    if name not in known:
        raise AsmilError(f"unknown method {name!r}: {did_you_mean(name, known)}")
    return known[name]


def build(
    name: str, in_features: int, n_outputs: int | None = None, config: ModelConfig | None = None, **options: Any
) -> MILModel:
    """A model by its name, e.g. `build("asmil", in_features=1024, n_outputs=2, tokens=16)`.

    n_outputs: the number of outputs per bag: one per class, label, target or time bin
    options: the keys of the `model` section, unless a complete `config` is given

    `n_classes` is the deprecated name of `n_outputs`.
    """
    if "n_classes" in options:
        warnings.warn("build(n_classes=...) is deprecated; write n_outputs=...", DeprecationWarning, stacklevel=2)
        given, n_outputs = n_outputs, options.pop("n_classes")
        if given is not None:
            raise AsmilError(f"build: n_classes={n_outputs} and n_outputs={given} mean the same; give only n_outputs")
    if n_outputs is None:
        raise AsmilError("build: n_outputs is missing; give the number of outputs, for classification the classes")
    model = find_method(name).model
    if config is None:
        config = parse_settings(model.config_type, options, section="model")
    return model(in_features, n_outputs, config)
