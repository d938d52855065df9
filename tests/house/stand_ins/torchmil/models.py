"""ABMIL with the signatures, shapes and returned values of torchmil 1.0.2 (as on PyPI, read on 2026-11-16).

There `pool` and the model return scores before softmax, padding included, and only with `return_att=True`.
A test compares the signatures with those of an installed torchmil.
"""

import torch
from torch import nn


class AttentionPool(nn.Module):
    def __init__(self, in_dim=None, att_dim=128, act="tanh", gated=False):
        super().__init__()
        assert act == "tanh"
        assert not gated
        self.fc1 = nn.Linear(in_dim, att_dim)
        self.fc2 = nn.Linear(att_dim, 1, bias=False)

    def forward(self, X, mask=None, return_att=False):
        f = self.fc2(torch.tanh(self.fc1(X))).squeeze(-1)
        read = f if mask is None else f.masked_fill(mask == 0, -torch.inf)
        z = (torch.softmax(read, dim=1).unsqueeze(1) @ X).squeeze(1)
        return (z, f) if return_att else z


class ABMIL(nn.Module):
    def __init__(
        self,
        in_shape=None,
        att_dim=128,
        att_act="tanh",
        gated=False,
        feat_ext=nn.Identity(),  # noqa: B008 - as recorded
        criterion=nn.BCEWithLogitsLoss(),  # noqa: B008
    ):
        super().__init__()
        self.criterion = criterion
        self.feat_ext = feat_ext
        self.pool = AttentionPool(in_shape[-1], att_dim, att_act, gated)
        self.classifier = nn.Linear(in_shape[-1], 1)

    def forward(self, X, mask=None, return_att=False):
        pooled = self.pool(self.feat_ext(X), mask, return_att)
        z, f = pooled if return_att else (pooled, None)
        logits = self.classifier(z).squeeze(-1)
        return (logits, f) if return_att else logits
