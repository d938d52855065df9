"""Whether a device computes in bf16."""

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


def require_bf16(device: torch.device, asked: str, instead: str) -> None:
    """Refuse bf16 on a device without it; `asked` names the setting, `instead` the one to use."""
    if not has_bf16(device):
        name = "CPU" if device.type == "cpu" else "GPU"
        raise AsmilError(f"{asked}: this {name} cannot compute in bf16 (`asmil doctor` shows it); use {instead}")
