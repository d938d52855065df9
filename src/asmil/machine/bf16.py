"""Whether a device can compute in bf16, and whether it does."""

from __future__ import annotations

import torch

from asmil.errors import AsmilError


def has_bf16(device: torch.device) -> bool:
    """Whether a device computes in bf16."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported())
    return device.type == "cpu" and cpu_has_bf16()


def cpu_has_bf16() -> bool:
    """Whether this CPU has the instructions for bf16; without them torch refuses convolutions in bf16."""
    return torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def uses_bf16(precision: str, device: torch.device, setting: str = "training.precision", full: str = "fp32") -> bool:
    """Whether to compute in bf16: if it is asked for, or if the precision is "auto" on a GPU that has it.

    setting: the name of the setting, for the error if the device has no bf16
    full: what the setting calls float32
    """
    if precision == "bf16" and not has_bf16(device):
        name = "CPU" if device.type == "cpu" else "GPU"
        raise AsmilError(
            f"{setting} = bf16: this {name} cannot compute in bf16 (`asmil doctor` shows it); use {full} or auto"
        )
    return precision == "bf16" or (precision == "auto" and device.type == "cuda" and has_bf16(device))
