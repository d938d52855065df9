"""For every tile the k tiles with the largest dot products, without an N x N matrix.

The products are computed for some rows at a time, in float32 at least: rounded to half precision, many would be equal.
Among equal products the tiles with lower indices come first, so that the answer does not depend on the machine.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from asmil.models.blocks.exporting import is_exporting
from asmil.models.blocks.layers import floating, full_precision
from asmil.models.blocks.randomness import draws_batched

BLOCK_VALUES = {"cpu": 2**22, "cuda": 2**26}
"""How many products are computed at once."""
GROUP = 64


@torch.no_grad()
def most_similar(queries: Tensor, keys: Tensor, k: int, mask: Tensor | None = None) -> Tensor:
    """N x d, N x d -> N x min(k, N): for every query the indices of the keys, the largest product first.

    mask: N, true for tiles, of a padded bag of at least k tiles
    An exported model always gives k indices, -1 beyond the tiles of a small bag.
    """
    queries, keys = floating(queries), floating(keys)
    with full_precision(queries):
        if is_exporting():
            products = functional.pad(queries @ keys.t(), (0, k), value=-torch.inf)
            values, indices = products.topk(k, dim=1)
            return indices.masked_fill(values == -torch.inf, -1)
        n_tiles = keys.shape[0]
        if draws_batched() or mask is not None:  # no value of a single bag can be read
            products = queries @ keys.t()
            products = products if mask is None else products.masked_fill(~mask, -torch.inf)
            return products.topk(min(k, n_tiles), dim=1).indices
        rows = max(1, BLOCK_VALUES.get(queries.device.type, BLOCK_VALUES["cuda"]) // n_tiles)
        return torch.cat([_largest(some @ keys.t(), min(k, n_tiles)) for some in queries.split(rows)])


def _largest(products: Tensor, k: int) -> Tensor:
    """n x N -> n x k, by (largest product, lowest index).

    They are in the k groups of neighboring products with the largest maxima (of equal ones the first), so that most
    products are read once, for the maximum of their group.
    """
    whole = products.shape[1] - products.shape[1] % GROUP
    if whole < 2 * k * GROUP:
        return _largest_of_few(products, k)
    groups = products[:, :whole].unflatten(1, (-1, GROUP))
    chosen = _largest(groups.amax(dim=2), k).sort(dim=1).values.unsqueeze(2)
    numbers = torch.arange(products.shape[1], device=products.device)
    members = (chosen * GROUP + numbers[:GROUP]).flatten(1)
    indices = torch.cat([members, numbers[whole:].expand(len(products), -1)], dim=1)
    return indices.gather(1, _largest_of_few(products.gather(1, indices), k))


def _largest_of_few(products: Tensor, k: int) -> Tensor:
    values, indices = products.topk(k, dim=1)
    indices, order = indices.sort(dim=1)
    order = values.gather(1, order).argsort(dim=1, descending=True, stable=True)
    indices = indices.gather(1, order)
    tied = (products >= values[:, -1:]).sum(dim=1) > k
    if bool(tied.any()):
        indices[tied] = products[tied].argsort(dim=1, descending=True, stable=True)[:, :k]
    return indices
