"""Work that half precision would spoil: as float32 at least, and outside autocast."""

from __future__ import annotations

import torch
from torch import Tensor


def floating(tensor: Tensor) -> Tensor:
    """In float32 at least."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def full_precision(like: Tensor) -> torch.autocast:
    """A block in which autocast is off, on the device of `like`."""
    return torch.autocast(like.device.type, enabled=False)
