"""Which tiles are masked: the rules by themselves."""

import pytest
import torch

from asmil.models.mhim_masking import MaskRatios, choose_masked, cosine, ranked


def refuse_to_draw(count):
    raise AssertionError(f"{count} random numbers were drawn where nothing is left to chance")


def draws(seed):
    generator = torch.Generator().manual_seed(seed)
    return lambda count: torch.rand(count, generator=generator)


def test_each_stage_ranks_all_tiles_and_the_sets_are_united():
    scores = torch.tensor([[3.0, 1.0, 2.0, 9.0, 8.0, 7.0, 0.0, 4.0, 6.0, 5.0]])
    mask = choose_masked(scores, MaskRatios(low=0.25, high=0.11), refuse_to_draw)
    assert mask.low.tolist() == [1, 2, 6]  # ceil(2.5)
    assert mask.high.tolist() == [3, 4]  # ceil(1.1)
    assert mask.masked.tolist() == [1, 2, 3, 4, 6]
    assert mask.kept.tolist() == [0, 5, 7, 8, 9]
    mask = choose_masked(scores, MaskRatios(random=0.5, low=0.5, high=0.5), draws(0))
    assert len(mask.random) == 5
    assert set(mask.masked.tolist()) == set(range(10)) - set(mask.kept.tolist())


@pytest.mark.parametrize(("ratio", "share", "candidates", "masked"), [(0.1, 0.5, 20, 10), (0.07, 0.5, 15, 8)])
def test_a_random_share_of_the_highest(ratio, share, candidates, masked):
    scores = torch.randperm(100, generator=torch.Generator().manual_seed(0)).float().unsqueeze(0)
    seen = set()
    for seed in range(40):
        mask = choose_masked(scores, MaskRatios(high=ratio, share=share), draws(seed))
        assert len(mask.high) == masked
        seen |= set(mask.high.tolist())
    assert seen == set(scores[0].topk(candidates).indices.tolist())


def test_a_share_too_small_for_the_ratio_draws_from_all_tiles():
    scores = torch.arange(50.0).unsqueeze(0)
    seen = set()
    for seed in range(60):
        mask = choose_masked(scores, MaskRatios(high=0.3, share=0.2), draws(seed))
        assert len(mask.masked) == 15
        seen |= set(mask.masked.tolist())
    assert seen == set(range(50))


def test_the_random_stage_treats_all_tiles_alike():
    counts = torch.zeros(10)
    draw = draws(0)
    for _ in range(2000):
        counts[choose_masked(torch.arange(10.0).unsqueeze(0), MaskRatios(random=0.3), draw).masked] += 1
    assert (counts / 2000 - 0.3).abs().max() < 0.05


def test_heads_vote_and_equal_votes_go_by_the_mean():
    #                      0    1    2    3    4
    scores = torch.tensor([[9.0, 8.0, 1.0, 0.0, 2.0], [0.0, 8.0, 1.0, 9.0, 2.0], [0.0, 8.0, 7.0, 1.0, 2.0]])
    # top 2 of each head: (0 1), (3 1), (1 2): tile 1 has three votes, 0, 2 and 3 one each, means 3, 3, 3.33
    assert ranked(scores, 2, largest=True)[:2].tolist() == [1, 3]
    assert choose_masked(scores, MaskRatios(high=0.4), refuse_to_draw).masked.tolist() == [1, 3]
    # lowest 2 of each head: (3 2), (0 2), (0 3): two votes each, by the mean 0 and 2 are equal and 3 is higher
    assert ranked(scores, 2, largest=False)[:2].tolist() == [0, 2]


@pytest.mark.parametrize("tiles", [1, 2, 3, 7])
@pytest.mark.parametrize("ratios", [MaskRatios(1.0, 1.0, 1.0), MaskRatios(low=0.5, high=0.5), MaskRatios(high=1.0)])
def test_one_tile_is_always_kept(tiles, ratios):
    scores = torch.arange(float(tiles)).unsqueeze(0)
    mask = choose_masked(scores, ratios, draws(0))
    assert len(mask.kept) >= 1
    assert sorted(mask.kept.tolist() + mask.masked.tolist()) == list(range(tiles))
    if tiles == 1:
        assert mask.kept.tolist() == [0]


def test_which_tile_is_kept_when_all_would_be_masked():
    scores = torch.tensor([[5.0, 1.0, 4.0, 2.0]])
    assert choose_masked(scores, MaskRatios(low=0.75, high=0.25), refuse_to_draw).kept.tolist() == [2]
    assert choose_masked(scores, MaskRatios(high=1.0), refuse_to_draw).kept.tolist() == [1]


def test_any_ratio_above_zero_masks_a_tile():
    assert len(choose_masked(torch.rand(1, 30), MaskRatios(high=1e-9), refuse_to_draw).masked) == 1
    assert len(choose_masked(torch.rand(1, 30), MaskRatios(), refuse_to_draw).masked) == 0


def test_a_cosine_starts_at_its_first_value_and_does_not_quite_reach_the_last():
    values = [cosine(0.9999, 1.0, t, 8) for t in range(8)]
    assert values[0] == pytest.approx(0.9999)
    assert values == sorted(values)
    assert values[4] == pytest.approx(0.99995)
    assert values[-1] < 1
