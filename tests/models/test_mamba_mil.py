from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from asmil import AsmilError, Bag, build
from asmil.models.blocks import selective_scan as scans
from asmil.models.inference import LiveBytes, infer
from asmil.models.mamba_mil import usual_step
from plain_methods.mamba_mil import PlainMambaMIL

WIDTH = 20


def make(**options):
    torch.manual_seed(3)
    return build("mamba_mil", WIDTH, 2, **{"inner": 8, "states": 3, "blocks": 2, **options}).eval()


def grid_bag(rows: int = 4, columns: int = 5, step: int = 512, keep: float = 0.7) -> Bag:
    draw = torch.Generator().manual_seed(rows * columns)
    places = torch.cartesian_prod(torch.arange(rows), torch.arange(columns)).flip(1) * step
    chosen = torch.rand(len(places), generator=draw) < keep
    chosen[:2] = chosen[-1] = True
    places = places[chosen] + 3 * step
    return Bag(torch.randn(len(places), WIDTH, generator=draw), places, id="slide-g")


def drawn(*lead: int, channels: int = 3, states: int = 2) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(sum(lead))
    sizes = [(*lead, channels), (*lead, channels), (channels, states), (*lead, states), (*lead, states)]
    dt, u, a, b, c = (torch.randn(size, generator=draw, dtype=torch.float64) for size in sizes)
    return [part.requires_grad_() for part in (functional.softplus(dt).detach(), u, -a.exp().detach(), b, c)]


def one_by_one(dt, u, a, b, c):
    """The recurrence of a sequence, tile by tile."""
    state, ys = torch.zeros_like(a), []
    for t in range(len(dt)):
        state = torch.exp(dt[t, :, None] * a) * state + (dt[t] * u[t])[:, None] * b[t]
        ys.append(state @ c[t])
    return torch.stack(ys)


def cell_by_cell(dt, u, a, b, c):
    """The recurrence of a grid, cell by cell."""
    above, ys = [torch.zeros_like(a)] * dt.shape[1], []
    for i in range(len(dt)):
        left, states = torch.zeros_like(a), []
        for j in range(dt.shape[1]):
            decay = torch.exp(dt[i, j, :, None] * a)
            left = decay * left + (dt[i, j] * u[i, j])[:, None] * b[i, j]
            states.append(decay * above[j] + left)
        above = states
        ys.append(torch.stack([state @ c[i, j] for j, state in enumerate(states)]))
    return torch.stack(ys)


def assert_same_with_gradients(found, expected, inputs):
    torch.testing.assert_close(found, expected)
    upstream = torch.randn(found.shape, generator=torch.Generator().manual_seed(1), dtype=found.dtype)
    pairs = zip(*(torch.autograd.grad(y, inputs, upstream) for y in (found, expected)), strict=True)
    for ours, plain in pairs:
        torch.testing.assert_close(ours, plain)


@pytest.mark.parametrize("tiles", [1, 2, 16, 17, 53])
def test_a_scan_in_chunks_is_the_recurrence(tiles, monkeypatch):
    monkeypatch.setitem(scans.CHUNK_VALUES, "cpu", 1)
    inputs = drawn(tiles)
    assert_same_with_gradients(scans.selective_scan(*inputs), one_by_one(*inputs), inputs)


@pytest.mark.parametrize("shape", [(1, 1), (1, 6), (6, 1), (5, 4)])
@pytest.mark.parametrize("values", [1, 50, 1 << 20])
def test_a_scan_of_a_grid_is_the_recurrence(shape, values, monkeypatch):
    monkeypatch.setitem(scans.BAND_VALUES, "cpu", values)
    inputs = drawn(*shape)
    assert_same_with_gradients(scans.grid_scan(*inputs), cell_by_cell(*inputs), inputs)


def test_a_scan_of_large_steps_forgets_and_stays_finite():
    dt, u, a, b, c = (part.detach() for part in drawn(40))
    y = scans.selective_scan(1e4 * dt, u, a, b, c)
    torch.testing.assert_close(y, (1e4 * dt * u) * (b * c).sum(dim=1, keepdim=True))


def test_training_keeps_no_states_of_all_tiles(monkeypatch):
    tiles, channels, states = 2048, 8, 16
    inputs = [part.detach().float().requires_grad_() for part in drawn(tiles, channels=channels, states=states)]
    monkeypatch.setitem(scans.CHUNK_VALUES, "cpu", 64 * channels * states)
    with LiveBytes() as live:
        scans.selective_scan(*inputs).sum().backward()
    assert live.peak < 4 * tiles * channels * states


@pytest.mark.parametrize("inner_norms", [False, True])
def test_equals_the_plain_formulas(inner_norms):
    model, bag = make(inner_norms=inner_norms).double(), grid_bag(5, 6)
    torch.testing.assert_close(model(bag).logits, PlainMambaMIL(model)(bag.features.double()))


def test_tiles_know_only_those_before_them():
    model = make()
    bag = grid_bag()
    first = model(bag).scores[:, :5]
    torch.testing.assert_close(model(Bag(bag.features[:5])).scores, first)


@pytest.mark.parametrize("pool_empty_cells", [False, True])
def test_on_a_grid_the_order_of_the_list_has_no_effect(pool_empty_cells):
    model, bag = make(scan="2d", pool_empty_cells=pool_empty_cells), grid_bag()
    order = torch.randperm(len(bag), generator=torch.Generator().manual_seed(0))
    whole, shuffled = model(bag), model(bag.subset(order))
    torch.testing.assert_close(shuffled.logits, whole.logits)
    torch.testing.assert_close(shuffled.scores, whole.scores[:, order])
    torch.testing.assert_close(model.attend(bag), whole.scores)
    assert model.tile_map(whole).sum() == pytest.approx(1)


def test_a_full_row_of_tiles_is_a_sequence():
    sequence, grid = make(), make(scan="2d")
    grid.load_state_dict({**sequence.state_dict(), "pad": grid.pad.detach()})
    bag = grid_bag(1, 9, keep=1.0)
    torch.testing.assert_close(grid(bag).logits, sequence(bag).logits)


def test_the_grid_is_the_box_of_the_tiles_or_that_of_the_settings():
    bag = grid_bag(4, 5)
    own = make(scan="2d").lay_out(bag)
    assert own.shapes == [(4, 5)]
    assert int(own.cells[0]) == 0
    given = make(scan="2d", grid_step=512, grid_width=9 * 512, grid_height=8 * 512).lay_out(bag)
    assert given.shapes == [(9, 10)]
    assert int(given.cells[0]) == 3 * 10 + 3
    with pytest.raises(AsmilError, match=r"slide-g.*grid_width = 2048"):
        make(scan="2d", grid_step=512, grid_width=2048).lay_out(bag)
    moved = replace(bag, coords=bag.coords + torch.tensor([100_000, 0]))
    torch.testing.assert_close(make(scan="2d")(moved).logits, make(scan="2d")(bag).logits)


def test_slides_of_a_patient_have_a_grid_each():
    model, first, second = make(scan="2d"), grid_bag(3, 4), grid_bag(4, 5)
    both = Bag(
        torch.cat([first.features, second.features]),
        torch.cat([first.coords, second.coords]),
        slide_index=torch.tensor([0] * len(first) + [1] * len(second)),
    )
    scores = torch.cat([model(first).scores, model(second).scores], dim=1)
    torch.testing.assert_close(model(both).scores, scores)


def test_the_later_of_two_tiles_in_a_cell_counts():
    model, bag = make(scan="2d", grid_step=512), grid_bag()
    twice = bag.subset(torch.tensor([1, *range(len(bag))]))
    twice.coords[0] = twice.coords[1]  # at the place of another tile, which follows it
    torch.testing.assert_close(model(twice).scores[:, 1:], model(bag).scores)


def test_coordinates_are_needed_and_must_make_a_grid():
    model = make(scan="2d")
    with pytest.raises(AsmilError, match=r"slide-7.*coords"):
        model(Bag(torch.randn(3, WIDTH), id="slide-7"))
    far = Bag(torch.randn(4, WIDTH), torch.tensor([[0, 0], [1, 0], [0, 10**6], [10**6, 0]]), id="slide-8")
    with pytest.raises(AsmilError, match=r"slide-8.*grid_step"):
        model(far)
    assert usual_step(torch.tensor([[0.0, 0.0], [224.0, 0.0], [448.0, 0.0], [0.0, 448.0]])) == 224
    assert usual_step(torch.zeros(1, 2)) == 1


def test_the_share_of_empty_cells_is_reported():
    model, bag = make(scan="2d", pool_empty_cells=True), grid_bag()
    output = infer(model, bag)
    attention = torch.softmax(output.extras["cell_scores"], dim=1)[0]
    cells = model.lay_out(bag).cells
    assert float(output.extras["padding_attention"]) == pytest.approx(1 - float(attention[cells].sum()), abs=1e-6)


def test_mamba_starts_with_small_steps():
    zero = torch.zeros(1, 1)
    official, mamba = (
        functional.softplus(make(init=init).blocks[0].mixer.step(zero)) for init in ("official", "mamba")
    )
    torch.testing.assert_close(official, torch.full_like(official, 0.6931472))
    assert mamba.min() >= 0.001 - 1e-6
    assert mamba.max() <= 0.1 + 1e-6


def test_half_precision_scans_in_float32():
    model, bag = make(), grid_bag()
    expected = infer(model, bag).logits
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(bag).logits
    torch.testing.assert_close(logits.float(), expected, rtol=0.05, atol=0.05)
