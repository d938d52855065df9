"""The methods: from a bag to scores and logits."""

from asmil.models.base import Loss, MILModel, ModelConfig, Output
from asmil.models.registry import Method, build, find_method, methods, register

__all__ = ["Loss", "MILModel", "Method", "ModelConfig", "Output", "build", "find_method", "methods", "register"]
