"""Sm and SmABMIL: the operator against dense algebra, its graph, and where it is applied."""

import pytest
import torch

from asmil import AsmilError, Bag, build
from asmil.models import official
from asmil.models.blocks import smoothing
from asmil.models.blocks.graph import weighted_sum
from asmil.models.blocks.smoothing import GRAPH, smooth, with_graph
from oracles.problem import read_oracle as parse_oracle
from oracles.rule import draw_state
from shared_data import read_oracle

WIDTH = 5


def make_bag(coords, **fields):
    coords = torch.as_tensor(coords)
    features = torch.randn(len(coords), WIDTH, generator=torch.Generator().manual_seed(0))
    return Bag(features, 256 * coords, id="slide-3", **fields)


def grid(side=4):
    return [(x, y) for x in range(side) for y in range(side) if (x, y) != (1, 2)]


def dense(bag):
    return weighted_sum(with_graph(bag, "Sm").extras[GRAPH], torch.eye(len(bag)))


@pytest.mark.parametrize("alpha", [0.2, 0.9])
def test_both_forms_against_dense_algebra(alpha, monkeypatch):
    monkeypatch.setattr(smoothing, "CHANNELS", 2)
    bag = with_graph(make_bag(grid()), "Sm")
    matrix, a = dense(bag), torch.tensor(alpha)
    expected = (1 - alpha) * torch.linalg.solve(torch.eye(len(bag)) - alpha * matrix, bag.features)
    for steps in (None, 400):
        torch.testing.assert_close(smooth(bag.features, bag.extras[GRAPH], a, steps), expected)
    three = bag.features
    for _ in range(3):
        three = alpha * matrix @ three + (1 - alpha) * bag.features
    torch.testing.assert_close(smooth(bag.features, bag.extras[GRAPH], a, 3), three)


@pytest.mark.parametrize("steps", [None, 3])
def test_gradients(steps):
    bag = with_graph(make_bag(grid()), "Sm")
    values = bag.features.double().requires_grad_()
    alpha = torch.tensor(0.6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda u, a: smooth(u, bag.extras[GRAPH], a, steps), (values, alpha))


def test_the_graph_is_that_of_the_official_files():
    problem = parse_oracle("graph", read_oracle("sm_operator")).problem
    edges = problem.listed("neighbour_index")
    expected = torch.zeros(problem.given["n"], problem.given["n"])
    expected[edges[0], edges[1]] = problem.listed("neighbour_value", torch.float32)
    torch.testing.assert_close(dense(problem.bag()), expected)


def test_tiles_that_stand_alone_and_slides_of_one_patient():
    matrix = dense(make_bag([(0, 0), (0, 1), (9, 9)]))
    torch.testing.assert_close(matrix, torch.tensor([[0.0, 1, 0], [1, 0, 0], [0, 0, 0]]))
    assert dense(make_bag([(3, 3)])).item() == 1
    apart = dense(make_bag([(0, 0), (0, 1), (0, 0), (0, 1)], slide_index=torch.tensor([0, 0, 1, 1])))
    torch.testing.assert_close(apart, torch.block_diag(matrix[:2, :2], matrix[:2, :2]))


def test_own_edges_count_in_both_directions():
    bag = make_bag([(0, 0), (5, 5), (9, 9)], extras={"edges": torch.tensor([[0, 1], [1, 2]])})
    matrix = weighted_sum(with_graph(bag, "Sm", own_edges=True).extras[GRAPH], torch.eye(3))
    torch.testing.assert_close(matrix, 0.5**0.5 * torch.tensor([[0.0, 1, 0], [1, 0, 1], [0, 1, 0]]))
    bag.extras["edge_weights"] = torch.ones(2)
    with pytest.raises(AsmilError, match=r"slide-3.*edge_weights"):
        with_graph(bag, "Sm", own_edges=True)


@pytest.mark.parametrize("where", ["early", "mid", "late"])
def test_a_tile_reaches_the_scores_of_its_neighbors_only(where):
    torch.manual_seed(0)
    model = build("sm_abmil", WIDTH, 2, where=where, steps=1).eval()
    bag = make_bag([(x, 0) for x in range(6)])
    changed = Bag(bag.features.clone(), bag.coords)
    changed.features[0] += 1
    moved = (model(bag).scores != model(changed).scores)[0]
    assert moved.tolist() == [True, True, False, False, False, False]


def test_needs_coordinates():
    with pytest.raises(AsmilError, match=r"slide-9.*coordinates"):
        build("sm_abmil", WIDTH, 2)(Bag(torch.randn(4, WIDTH), id="slide-9"))


def test_a_coefficient_without_an_alpha_is_refused():
    content = read_oracle("sm_abmil_early")
    state = draw_state(content["tensors"]) | {"pool.sm.sm.coef": torch.tensor(-0.5)}
    with pytest.raises(AsmilError, match=r"pool\.sm\.sm\.coef"):
        official.load(state, content["config"])


@pytest.mark.parametrize("where", ["early", "mid"])
def test_spectral_normalization_bounds_the_layers(where):
    torch.manual_seed(0)
    model = build("sm_abmil", WIDTH, 2, where=where, spectral_norm=True).eval()
    layers = [model.value, model.weight] if where == "early" else [model.weight]
    for layer in layers:
        largest = torch.linalg.matrix_norm(layer.weight, ord=2)
        torch.testing.assert_close(layer.u @ layer.weight @ layer.v, largest, rtol=0.05, atol=0.0)
