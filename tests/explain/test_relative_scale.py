"""Attention relative to the average tile: one fixed scale, on which a flat map is flat, and words where it is."""

from __future__ import annotations

import numpy as np
import pytest

from asmil import AsmilError
from asmil.explain.caveats import attention_finding
from asmil.explain.color_scale import (
    RELATIVE_TICKS,
    average_weight,
    color_scale,
    lookup_table,
    natural_scale,
    relative_positions,
    scales_of,
)
from asmil.explain.report_panels import slide_panels
from asmil.explain.settings import HeatmapSettings
from asmil.explain.tile_map import TileMap, slide_frame
from asmil.reporting.formats import format_significant

FLAT = np.linspace(0.108, 0.114, 9) / np.linspace(0.108, 0.114, 9).sum()


def weights(relative: list[float]) -> np.ndarray:
    values = np.array(relative)
    return values / values.sum()


def scale_of(values: np.ndarray):
    return natural_scale("attention", values, average_weight("attention", values))


def test_flat_attention_has_the_color_of_the_average_tile():
    colors = scale_of(FLAT).colors(FLAT).astype(int)
    average = lookup_table("viridis")[128].astype(int)
    assert np.abs(colors - average).max() <= 4
    ranks = color_scale(FLAT, "percentile").colors(FLAT).astype(int)
    assert np.abs(ranks - average).max() > 80, "ranks are stretched over all colors, which is why they are an option"


def test_a_color_means_the_same_on_every_slide():
    small, large = weights([4.0, *[0.5] * 6, 0.0]), weights([4.0, *[0.5] * 6, *[1.0] * 92, 0.0])
    assert (small * len(small))[0] != (large * len(large))[0]
    for values in (small, large):
        expected = relative_positions(values * len(values))
        np.testing.assert_allclose(scale_of(values).positions(values), expected)
    assert relative_positions(1.0) == 0.5
    assert relative_positions([0.0, np.nan])[0] == 0


def test_one_tile_with_all_the_attention_is_the_only_bright_one():
    values = weights([1000.0, *[0.01] * 199])
    places = scale_of(values).positions(values)
    assert places[0] == 1
    assert (places[1:] == 0).all()
    ticks = scale_of(values).ticks()
    assert (ticks[0][1][0], ticks[-1][1][0]) == ("≤", "≥"), "the legend says that values lie beyond its ends"
    assert [place for place, _ in ticks] == pytest.approx(relative_positions(RELATIVE_TICKS).tolist())


@pytest.mark.parametrize("kind", ["leave_one_out", "gradient"])
def test_kinds_with_a_sign_keep_zero_in_the_middle_even_if_all_values_are_positive(kind):
    values = np.array([0.1, 0.2, 0.3])
    scale = natural_scale(kind, values, average_weight(kind, values))
    assert scale.kind == "absolute"
    assert scale.positions(0.0) == 0.5
    assert scale.stretched


def test_probabilities_are_drawn_from_zero_to_one():
    values = np.array([0.48, 0.5, 0.52])
    scale = natural_scale("probability", values, average_weight("probability", values))
    assert scale.positions(values) == pytest.approx(values)
    assert not scale.stretched


def test_what_counts_as_weights():
    assert average_weight("attention", [2.0, 4.0]) == 3
    assert average_weight("kept", [0.25, 0.75, np.nan]) == 0.5
    assert average_weight("score", [0.2, 0.9]) is None
    assert average_weight("attention_scores", [-3.0, 1.0]) is None, "scores before the softmax"
    assert average_weight("kept", [0.0, 0.0]) is None
    stretched = natural_scale("score", [0.2, 0.9])
    assert (stretched.kind, stretched.stretched) == ("absolute", True)
    with pytest.raises(AsmilError):
        color_scale([-1.0, 2.0], "relative")
    with pytest.raises(AsmilError):
        color_scale([1.0, 2.0], "relative", limits=(0, 1))


def test_the_legend_says_what_is_there():
    caption = scale_of(FLAT).caption("attention")
    low, high = (format_significant(9 * end) for end in (FLAT[0], FLAT[-1]))
    assert low in caption
    assert high in caption


def test_maps_of_several_runs_share_one_scale_whatever_their_range():
    maps = [TileMap(values, "attention", average=1 / 9) for values in (FLAT, weights([50.0, *[1.0] * 8]))]
    flat, peaked = scales_of(maps, HeatmapSettings())
    assert (flat.low, flat.high) == (peaked.low, peaked.high)
    np.testing.assert_array_equal(flat.positions([0.02, 1 / 9, 0.8]), peaked.positions([0.02, 1 / 9, 0.8]))
    ranks = scales_of(maps, HeatmapSettings(scale="percentile"))
    assert [scale.kind for scale in ranks] == ["percentile"] * 2


@pytest.mark.parametrize(
    ("values", "found"),
    [
        (FLAT, "flat"),
        (weights([3.0, *[1.0] * 30]), ""),
        (weights([0.0] * 50 + [1.5] * 50), ""),  # two kinds of tissue
        (weights([1000.0, *[1.0] * 99]), "91 %"),
        (weights([1.0]), ""),
        (np.zeros(5), ""),
    ],
)
def test_a_finding_about_one_slide(values, found):
    text = attention_finding(values, max(float(values.mean()), 1e-9))
    assert (found in text) if found else not text


def test_a_slide_of_a_patient_is_compared_with_all_tiles_of_the_patient():
    values = np.full(20, 0.001)
    assert "0.1" in attention_finding(values, 0.01)
    assert scale_of(values).positions(values)[0] == pytest.approx(0.5)
    little = natural_scale("attention", values, 0.01)
    assert little.positions(values)[0] == 0, "the tiles of another slide have the attention"


def test_panels_of_reports_say_that_a_map_is_flat_and_repeat_alarms():
    x, y = np.meshgrid(np.arange(3) * 10, np.arange(3) * 10)
    frame = slide_frame("s", np.stack([x.ravel(), y.ravel()], axis=1), tile_px=10.0)
    (flat,) = slide_panels(frame, None, TileMap(FLAT, "attention"), alarms=["seeds disagree"])
    assert "flat" in flat.caption
    assert "seeds disagree" in flat.caption
    (peaked,) = slide_panels(frame, None, TileMap(weights([5.0, *[1.0] * 8]), "attention"))
    assert "flat" not in peaked.caption
