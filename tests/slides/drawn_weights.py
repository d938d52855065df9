"""Weights for networks whose published ones are not here: drawn, the same every time."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def drawn_state(network: nn.Module, seed: int = 0) -> dict[str, Tensor]:
    """A state dict as training would leave it: no two tensors alike, positive variances."""
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for name, tensor in network.state_dict().items():
        if not tensor.is_floating_point():
            state[name] = torch.zeros(tensor.shape, dtype=tensor.dtype)
        elif name.endswith("running_var") or (name.endswith("weight") and tensor.dim() == 1):
            state[name] = 0.5 + torch.rand(tensor.shape, generator=generator)
        else:
            fan = max(1, tensor[0].numel()) if tensor.dim() > 1 else 25
            state[name] = torch.randn(tensor.shape, generator=generator) * (1.7 / fan) ** 0.5
    return state


def drawn_tiles(count: int, side_px: int, seed: int = 0) -> Tensor:
    """Tiles, uint8 n x p x p x 3, of soft blobs: networks see edges and plains, not only noise."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, 3, 9, 9, generator=generator)
    smooth = nn.functional.interpolate(coarse, (side_px, side_px), mode="bilinear")
    noisy = smooth + 0.05 * torch.randn(smooth.shape, generator=generator)
    return (noisy * 255).clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1).contiguous()
