"""Our anchor around models of torchmil, and our models in its trainer."""

import pytest
import torch
from torch import nn

from asmil import Anchor, Bag, build
from peer_software import module

pytestmark = pytest.mark.peers

WIDTH = 12


@pytest.fixture(scope="module")
def models():
    return module("torchmil.models", "torchmil")


def bags(n=24, width=WIDTH):
    """Bags of unequal size; positive ones have three tiles that are different."""
    drawn = torch.Generator().manual_seed(0)
    labels = torch.arange(n) % 2
    found = []
    for label in labels:
        tiles = torch.randn(int(torch.randint(5, 15, (1,), generator=drawn)), width, generator=drawn)
        tiles[:3] += 2.5 * label
        found.append(tiles)
    return found, labels.float()


def loader(batch_size=4):
    """Padded batches with a mask, by torchmil's own function."""
    data = module("torchmil.data", "torchmil")
    tensordict = module("tensordict", "torchmil")
    found, labels = bags()
    items = [tensordict.TensorDict({"X": tiles, "Y": label}) for tiles, label in zip(found, labels, strict=True)]
    return torch.utils.data.DataLoader(items, batch_size=batch_size, shuffle=True, collate_fn=data.collate_fn)


SCORED = {
    "ABMIL": {},
    "gated ABMIL": {"gated": True},
    "CLAM_SB": {"att_dim": 8, "k_sample": 2},
    "TransformerABMIL": {"pool_att_dim": 8, "transf_att_dim": 8, "transf_n_heads": 2},
}


def whole_pass(network, batch):
    X, mask = batch
    return network(X, mask=mask, return_att=True)[1]


@pytest.mark.parametrize("name", SCORED)
def test_the_anchor_holds_attention_of_their_models(models, name):
    torch.manual_seed(0)
    network = getattr(models, name.split()[-1])(in_shape=(WIDTH,), **SCORED[name])
    optimizer = torch.optim.Adam(network.parameters(), lr=5e-3)
    anchor = Anchor(network, scores=whole_pass, momentum=0.9, weight=0.5)
    losses = []
    for batch in [batch for _ in range(4) for batch in loader()]:
        X, mask = batch["X"], batch["mask"].bool()
        _, att = network(X, mask=mask, return_att=True)
        _, own = network.compute_loss(batch["Y"], X, mask=mask)
        held = anchor.loss((X, mask), att, mask=mask)
        loss = sum(own.values()) + held
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        anchor.update(network)
        losses.append(float(loss.detach()))
    assert torch.isfinite(torch.tensor(losses)).all()
    assert sum(losses[-6:]) < sum(losses[:6])
    moved = [
        (mine - theirs).abs().max().item()
        for key, mine in anchor.state_dict().items()
        if key.startswith("copy.") and (theirs := network.state_dict().get(key.removeprefix("copy."))) is not None
    ]
    assert moved
    assert max(moved) > 0


def in_their_trainer(models, method):
    """Our model with the three methods that torchmil's trainer and wrapper call."""

    class Ours(models.MILModel):
        def __init__(self):
            super().__init__()
            self.model = build(method, in_features=WIDTH, n_outputs=2)
            self.anchor = Anchor(self.model, momentum=0.99)

        def outputs(self, X, mask):
            return [self.model(Bag(tiles[real.bool()])) for tiles, real in zip(X, mask, strict=True)]

        def forward(self, X, mask=None, return_att=False):
            outputs = self.outputs(X, mask)
            logits = torch.stack([output.logits for output in outputs])
            chosen = logits[:, 1] - logits[:, 0]
            if not return_att:
                return chosen
            maps = [self.model.tile_map(output) for output in outputs]
            return chosen, nn.utils.rnn.pad_sequence(maps, batch_first=True)

        def compute_loss(self, Y, X, mask=None):
            outputs = self.outputs(X, mask)
            logits = torch.stack([output.logits for output in outputs])
            losses = {"cross_entropy": nn.functional.cross_entropy(logits, Y.long())}
            if outputs[0].scores is not None:
                bags_of_batch = [Bag(tiles[real.bool()]) for tiles, real in zip(X, mask, strict=True)]
                held = [self.anchor.loss(bag, out.scores) for bag, out in zip(bags_of_batch, outputs, strict=True)]
                losses["anchor"] = torch.stack(held).mean()
            return logits[:, 1] - logits[:, 0], losses

        def predict(self, X, mask=None, return_inst_pred=True):
            return self.forward(X, mask, return_att=return_inst_pred)

    return Ours()


@pytest.mark.parametrize("method", ["asmil", "abmil", "dsmil"])
def test_our_models_learn_in_their_trainer(models, method):
    trainer = module("torchmil.utils.trainer", "torchmil")
    torchmetrics = module("torchmetrics", "torchmil")
    torch.manual_seed(0)
    network = in_their_trainer(models, method)
    optimizer = torch.optim.Adam(network.model.parameters(), lr=3e-3)
    optimizer.register_step_post_hook(lambda *_: network.anchor.update(network.model))
    training = trainer.Trainer(
        network,
        optimizer,
        metrics_dict={"accuracy": torchmetrics.Accuracy(task="binary")},
        device="cpu",
        disable_pbar=True,
        verbose=False,
    )
    training.train(12, loader())
    best = training.get_best_model().eval()
    found, labels = bags()
    predicted = []
    for tiles in found:
        with torch.no_grad():
            logit, attention = best(tiles[None], torch.ones(1, len(tiles)), return_att=True)
        assert attention.shape == (1, len(tiles))
        predicted.append(float(logit) > 0)
    assert (torch.tensor(predicted) == labels.bool()).float().mean() > 0.85
