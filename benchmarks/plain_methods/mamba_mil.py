"""Mamba MIL written plainly, for comparison: decays and states of all tiles are stored, and scanned as a tree."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional

from asmil.models.base import MILModel
from asmil.models.mamba_mil import KERNEL, MambaMIL, Mixer


class PlainPath:
    """Along the sequence, with torch's convolution and a parallel scan of N x E x S tensors."""

    def convolve(self, mixer: Mixer, u: Tensor) -> Tensor:
        padded = functional.pad(u.t(), (KERNEL - 1, 0)).unsqueeze(0)
        mixed = functional.conv1d(padded, mixer.kernel.unsqueeze(1), mixer.kernel_bias, groups=len(mixer.kernel))
        return mixed.squeeze(0).t()

    def scan(self, mixer: Mixer, dt: Tensor, u: Tensor, b: Tensor, c: Tensor) -> Tensor:
        decays = torch.exp(dt.unsqueeze(2) * mixer.rates())
        states = parallel_scan(decays, (dt * u).unsqueeze(2) * b.unsqueeze(1))
        return (states @ c.unsqueeze(2)).squeeze(2)


def parallel_scan(decays: Tensor, inputs: Tensor) -> Tensor:
    """s_t = a_t s_{t-1} + b_t: pairs of tiles are joined, their scan gives every second state, and then the others."""
    if len(inputs) == 1:
        return inputs
    pairs = len(inputs) // 2 * 2
    first, second = decays[:pairs:2], decays[1:pairs:2]
    joined = parallel_scan(first * second, second * inputs[:pairs:2] + inputs[1:pairs:2])
    before = torch.cat([torch.zeros_like(joined[:1]), joined])[: len(inputs[::2])]
    states = torch.empty_like(inputs)
    states[::2] = decays[::2] * before + inputs[::2]
    states[1::2] = joined
    return states


class PlainMambaMIL(nn.Module):
    def __init__(self, model: MambaMIL) -> None:
        super().__init__()
        model = copy.deepcopy(model)
        self.embedding, self.blocks, self.norm = model.embedding, model.blocks, model.norm
        self.attention, self.head = model.attention, model.head

    def forward(self, features: Tensor) -> Tensor:
        tiles = self.embedding(features)
        for block in self.blocks:
            tiles = block(tiles, PlainPath())
        tiles = self.norm(tiles)
        logits: Tensor = self.head(torch.softmax(self.attention(tiles), dim=1) @ tiles)[0]
        return logits


def plain_form(model: MILModel) -> PlainMambaMIL:
    assert isinstance(model, MambaMIL)
    return PlainMambaMIL(model)
