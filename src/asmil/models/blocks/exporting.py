"""Models that are recorded for another runtime: torch.export, torch.onnx.export, torch.jit.trace.

A recording follows one example bag. Wherever Python computes with the number of its tiles, the recording may contain
that number as a constant, and the exported model then works only for bags of the same size.
"""

from __future__ import annotations

import warnings

import torch

from asmil.errors import AsmilError, AsmilWarning

# Before torch 2.7 export cannot be distinguished from torch.compile.
_torch_is_exporting = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)


def is_exporting() -> bool:
    """Whether the model is being recorded for another runtime."""
    return bool(_torch_is_exporting()) or bool(torch.jit.is_tracing())  # type: ignore[attr-defined, no-untyped-call]


def warn_of_fixed_size(why: str) -> None:
    """To be called where a bag's size becomes a constant: warns that the exported model works only for this size."""
    if is_exporting():
        warnings.warn(
            f"the exported model works only for bags with as many tiles as the example: {why}; run this method in "
            "Python, or export another one",
            AsmilWarning,
            stacklevel=2,
        )


def refuse_in_export(what: str) -> None:
    """To be called where values of the bag leave torch: an exported model would repeat those of the example."""
    if is_exporting():
        raise AsmilError(
            f"{what} cannot be part of an exported model; run this method in Python, or export another one"
        )
