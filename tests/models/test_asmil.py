import sys

import pytest
import torch

from asmil import AsmilError, Bag, build
from asmil.models.asmil import TokenDrop
from asmil.models.base import inner_width
from asmil.models.blocks.randomness import Dropout
from asmil.models.inference import infer
from plain_methods.asmil import PlainASMIL


def bag(tiles=40, width=32):
    return Bag(torch.randn(tiles, width, generator=torch.Generator().manual_seed(tiles)))


@pytest.mark.parametrize("heads", [1, 4, 8])
@pytest.mark.parametrize("tokens", [1, 3])
def test_folded_equals_the_form_with_keys_and_values(heads, tokens):
    torch.manual_seed(heads)
    model = build("asmil", 32, 3, heads=heads, tokens=tokens, init_std=1.0).double().eval()
    plain = PlainASMIL.from_folded(model).double().eval()
    features = bag().features.double()
    output = model(Bag(features))
    logits, scores = plain(features)
    torch.testing.assert_close(output.logits, logits)
    torch.testing.assert_close(output.scores.view(heads, tokens, -1), scores)
    torch.testing.assert_close(plain.attend(features), scores)


def test_gradients_of_the_folded_form_equal_those_of_the_plain_one():
    torch.manual_seed(0)
    model = build("asmil", 32, 2, init_std=1.0, drop=0.0, dropout=0.0).double()
    plain = PlainASMIL.from_folded(model).double().eval()
    features = bag().features.double()
    model(Bag(features)).logits[0].backward()
    plain(features)[0][0].backward()
    torch.testing.assert_close(model.embedding.layers[0].weight.grad, plain.embedding.weight.grad)
    torch.testing.assert_close(model.tokens.grad, plain.tokens.grad)
    for token, block in enumerate(plain.blocks):
        torch.testing.assert_close(model.token_block.v_weight.grad[token], block.v.weight.grad)
        torch.testing.assert_close(model.token_block.k_weight.grad[token], block.k.weight.grad)


def test_shared_projections_equal_per_token_ones_with_equal_weights():
    torch.manual_seed(0)
    shared = build("asmil", 32, 2, projections="shared", tokens=4, init_std=1.0).eval()
    own = build("asmil", 32, 2, tokens=4).eval()
    state = {
        name: value.expand(4, *value.shape[1:]) if name.startswith("token_block.") else value
        for name, value in shared.state_dict().items()
    }
    own.load_state_dict(state)
    torch.testing.assert_close(own(bag()).logits, shared(bag()).logits)
    assert sum(p.numel() for p in shared.parameters()) < sum(p.numel() for p in own.parameters())


def test_no_key_or_value_matrix_is_formed():
    """Of all that a forward pass allocates, only the embedding, the scores and the attention grow with the tiles."""
    from torch.utils._python_dispatch import TorchDispatchMode

    made: dict[int, torch.Tensor] = {}

    class Allocations(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor) and out.numel() >= 1000:
                made[out.untyped_storage().data_ptr()] = out
            return out

    model, one = build("asmil", 64, 2), bag(1000, 64)
    with Allocations():
        model(one)
    own = {tensor.untyped_storage().data_ptr() for tensor in (one.features, *model.parameters())}
    grown = sorted(t.numel() // 1000 for pointer, t in made.items() if pointer not in own and t.numel() % 1000 == 0)
    assert grown == [32, 64, 64]


def test_tokens_are_dropped_independently_and_never_all():
    drop = TokenDrop(0.5).train()
    drop.generator = torch.Generator().manual_seed(0)
    kept = torch.stack([drop(torch.zeros(4, 2)) for _ in range(4000)])
    assert kept.any(dim=1).all()
    # keeping one of four when all fall adds 1/4 * 1/16 to each token's chance
    expected = 0.5 + 0.25 / 16
    assert (kept.double().mean(dim=0) - expected).abs().max() < 0.03
    pairs = (kept[:, 0] & kept[:, 1]).double().mean()
    assert abs(pairs - 0.25) < 0.03
    assert TokenDrop(1.0).train()(torch.zeros(5, 2)).sum() == 1
    assert drop.eval()(torch.zeros(4, 2)) is None


def test_exactly_so_many_tokens_are_dropped_on_request():
    drop = TokenDrop(count=3).train()
    kept = torch.stack([drop(torch.zeros(8, 2)) for _ in range(50)])
    assert (kept.sum(dim=1) == 5).all()
    assert (kept.sum(dim=0) > 0).all()


def test_dropped_tokens_do_not_reach_the_bag():
    torch.manual_seed(0)
    model = build("asmil", 32, 2, drop=0.5, dropout=0.0).train()
    output = model(bag())
    kept = output.extras["kept_rows"][: model.config.tokens]
    gradient = torch.autograd.grad(output.logits.sum(), output.extras["token_features"])[0]
    assert torch.equal(gradient.abs().sum(dim=1) > 0, kept)
    assert 0 < kept.sum() < model.config.tokens


@pytest.mark.parametrize("size", [100, 100_000])  # few values are drawn in another way than many
@pytest.mark.parametrize("p", [0.1, 0.25, 0.9])
def test_dropout_drops_its_share_and_keeps_the_mean(p, size):
    dropout = Dropout(p).train()
    dropout.generator = torch.Generator().manual_seed(0)
    x = torch.ones(400_000 // size, size)
    out = torch.stack([dropout(row) for row in x])
    assert abs(float((out == 0).float().mean()) - p) < 0.003
    assert len(out.unique()) == 2
    assert float(out.max()) == pytest.approx(1 / (1 - p), rel=1e-4)
    assert not torch.equal(out[0], out[1])
    dropout.generator.manual_seed(0)
    assert torch.equal(dropout(x[0]), out[0])
    assert torch.equal(dropout.eval()(x), x)


def test_widths_follow_the_study():
    assert [inner_width(d) for d in (384, 512, 768, 1024, 1536)] == [128, 256, 384, 512, 768]
    assert inner_width(166) % 8 == 0


def test_impossible_sizes_are_refused():
    with pytest.raises(AsmilError, match="heads"):
        build("asmil", 32, 2, inner=30)
    with pytest.raises(AsmilError, match="drop fewer"):
        build("asmil", 32, 2, tokens=2, drop_count=2)


def test_extreme_scores_stay_finite():
    model = build("asmil", 32, 2).eval()
    with torch.no_grad():
        model.tokens.mul_(1e4)
    output = infer(model, Bag(100 * bag().features), chunk_tiles=7)
    assert output.scores.abs().max() > 60
    assert torch.isfinite(output.logits).all()


MEMORY_SCRIPT = """
import resource, torch
from asmil import Bag, build
from asmil.models.inference import infer
torch.set_num_threads(2)
bag = Bag(torch.randn(200_000, 384))
model = build("asmil", 384, 2)
infer(model, Bag(torch.randn(10, 384)))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
output = infer(model, bag)
assert output.scores.shape == (64, 200_000)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1e6)
"""


def test_two_hundred_thousand_tiles_need_little_memory():
    import subprocess

    done = subprocess.run([sys.executable, "-c", MEMORY_SCRIPT], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 1.5
