"""CAMIL as its sources run it: all softmax matrices of the Nystrom attention stored, q . k of all pairs of tiles."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from asmil import Bag, MILModel
from asmil.models.blocks.nystrom import NystromAttention
from asmil.models.camil import CAMIL, HeadConvolution


class PlainCAMIL(nn.Module):
    """Shares the weights of our model; takes prepared bags."""

    takes_bags = True

    def __init__(self, model: CAMIL) -> None:
        super().__init__()
        self.model = model

    def forward(self, bag: Bag) -> Tensor:
        model = self.model
        features = bag.features.to(model.head.weight.dtype)
        x = features if model.projection is None else model.projection(features)
        whole = x + self._attend(model.nystrom, x if model.norm is None else model.norm(x))
        if model.mlp is not None:
            whole = whole + model.mlp(whole)
        matrix = bag.extras["adjacency"]
        counts = torch.diff(matrix["row_starts"], append=matrix["row_starts"].new_tensor([len(matrix["columns"])]))
        centers = torch.arange(len(bag), device=counts.device).repeat_interleave(counts)
        dense = whole.new_zeros(len(bag), len(bag))
        dense[centers, matrix["columns"]] = matrix["values"].to(whole.dtype)
        products = model.query(whole) @ model.key(whole).t() * model.query.out_features**-0.5
        weights = torch.softmax((products * dense).sum(dim=1), dim=0)
        fused = model.fuse(model.local_tiles(x, whole, weights), whole)
        pooled = torch.softmax(model.attention(fused if model.is_official else whole), dim=1) @ fused
        logits: Tensor = model.head(pooled)
        return logits[0]

    def _attend(self, layer: NystromAttention, x: Tensor) -> Tensor:
        run = -(-len(x) // layer.landmarks)
        padded = functional.pad(x, (0, 0, run * layer.landmarks - len(x), 0))
        q, k, v = (
            part.view(len(padded), layer.heads, -1).transpose(0, 1) for part in layer.to_qkv(padded).chunk(3, dim=1)
        )
        q = q * layer.head_width**-0.5
        query_marks, key_marks = (part.unflatten(1, (layer.landmarks, run)).mean(dim=2) for part in (q, k))
        first = torch.softmax(q @ key_marks.transpose(1, 2), dim=-1)
        second = torch.softmax(query_marks @ key_marks.transpose(1, 2), dim=-1)
        third = torch.softmax(query_marks @ k.transpose(1, 2), dim=-1)
        inverse = second.transpose(1, 2) / (second.sum(dim=1).max() * second.sum(dim=2).max())
        eye = torch.eye(layer.landmarks, device=x.device)
        for _ in range(layer.iterations):
            both = second @ inverse
            inverse = inverse @ (13 * eye - both @ (15 * eye - both @ (7 * eye - both))) / 4
        out = first @ inverse @ (third @ v)
        if isinstance(layer.residual, HeadConvolution):
            out = out + _convolved(v, layer.residual.weight)
        joined: Tensor = layer.to_out(out.transpose(0, 1).flatten(1))
        return joined[-len(x) :]


def _convolved(values: Tensor, kernel: Tensor) -> Tensor:
    """The official value residual: features are channels, the convolution goes along the heads."""
    taps, block, width = kernel.shape
    channels_first = values.permute(2, 0, 1).unsqueeze(0)
    weight = kernel.permute(2, 1, 0).unsqueeze(3)
    mixed = functional.conv2d(channels_first, weight, padding=((taps - 1) // 2, 0), groups=width // block)
    return mixed[0].permute(1, 2, 0)


def plain_form(model: MILModel) -> PlainCAMIL:
    """The plain form of a CAMIL."""
    assert isinstance(model, CAMIL)
    return PlainCAMIL(model)
