"""Slides one by one, or a patient's slides joined into one bag."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from asmil import Bag
from asmil.cohort.features import Provenance, write_features
from asmil.cohort.loader import BagLoader
from asmil.cohort.manifest import Slide
from asmil.cohort.source import LOWRES, LOWRES_TILES, FeatureSource
from asmil.cohort.units import Unit, joined_bag, units_of
from asmil.errors import AsmilError
from asmil.models.registry import build
from made_up_cohorts import cohort_of

WIDTH = 6


def bag(n, seed, width=WIDTH, **fields):
    draw = np.random.default_rng(seed)
    return Bag(draw.normal(size=(n, width)).astype(np.float32), **{"coords": draw.integers(0, 99, (n, 2)), **fields})


def test_patients_stand_where_the_manifest_first_names_them():
    slides = [Slide(name, patient, None, FeatureSource(name)) for name, patient in ("ay", "bx", "cy", "dz")]
    assert [unit.name for unit in units_of(slides, "slide")] == ["a", "b", "c", "d"]
    joined = units_of(slides, "patient")
    assert [(unit.name, [slide.slide for slide in unit.slides]) for unit in joined] == [
        ("y", ["a", "c"]),
        ("x", ["b"]),
        ("z", ["d"]),
    ]


def test_a_joined_bag_is_the_tiles_of_its_slides_in_order():
    parts = [bag(3, 0), bag(5, 1), bag(1, 2)]
    whole = joined_bag(parts, "p")
    assert whole.id == "p"
    assert torch.equal(whole.features, torch.cat([part.features for part in parts]))
    assert torch.equal(whole.coords, torch.cat([part.coords for part in parts]))
    assert whole.slide_index.tolist() == [0] * 3 + [1] * 5 + [2]
    kept = whole.subset(torch.tensor([0, 4, 8]))
    assert kept.slide_index.tolist() == [0, 1, 2]


def test_what_a_slide_lacks_the_joined_bag_lacks():
    lowres = {LOWRES: {LOWRES_TILES: torch.zeros(3, 4, 4, 3)}}
    assert joined_bag([bag(3, 0), bag(2, 1, coords=None)], "p").coords is None
    assert joined_bag([bag(3, 0, extras=lowres), bag(2, 1)], "p").extras == {}
    both = joined_bag([bag(3, 0, extras=lowres), bag(3, 1, extras=lowres)], "p")
    assert both.extras[LOWRES][LOWRES_TILES].shape == (6, 4, 4, 3)


def test_slides_of_other_widths_are_refused_with_the_patient():
    with pytest.raises(AsmilError, match=r"p: .*6 and 7 features"):
        joined_bag([bag(3, 0), bag(3, 0, width=7)], "p")


def dense(matrix):
    n_tiles = len(matrix["row_starts"])
    ends = torch.cat([matrix["row_starts"][1:], torch.tensor([len(matrix["columns"])])])
    rows = torch.repeat_interleave(torch.arange(n_tiles), ends - matrix["row_starts"])
    found = torch.zeros(n_tiles, n_tiles)
    found[rows, matrix["columns"]] = matrix.get("values", torch.ones(1)).float()
    return found


@pytest.mark.parametrize("method", ["patch_gcn", "camil"])
def test_neighbors_are_of_the_same_slide(method):
    """The slides lie in the same coordinates, so that tiles of the other slide would be nearest."""
    grid = np.stack([np.arange(12) % 4, np.arange(12) // 4], axis=1) * 256
    parts = [bag(12, seed, width=24, coords=grid) for seed in (0, 1)]
    model = build(method, in_features=24, n_outputs=2)
    whole, *alone = (dense(model.prepare(bag).extras["adjacency"]) for bag in (joined_bag(parts, "p"), *parts))
    assert whole.any()
    assert not whole[:12, 12:].any()
    assert not whole[12:, :12].any()
    torch.testing.assert_close(whole[:12, :12], alone[0])
    torch.testing.assert_close(whole[12:, 12:], alone[1])


@pytest.fixture
def slides(tmp_path):
    made = []
    for number in range(5):
        path = tmp_path / f"s{number}.h5"
        draw = np.random.default_rng(number)
        n = 3 + number
        write_features(path, draw.normal(size=(n, WIDTH)), np.zeros((n, 2), np.int64), Provenance())
        made.append(Slide(f"s{number}", f"p{number // 2}", None, FeatureSource(path)))
    return made


@pytest.mark.parametrize("cache", ["none", "memory", "disk"])
def test_the_loader_joins_the_slides_of_a_patient(slides, tmp_path, cache):
    alone = BagLoader(slides, "none")
    joined = BagLoader(units_of(slides, "patient"), cache, tmp_path / "cache")
    assert len(joined) == 3
    for found, members in zip(joined.stream([0, 1, 2]), ([0, 1], [2, 3], [4]), strict=True):
        expected = torch.cat([alone.bag(i).features for i in members]).half()
        assert torch.equal(found.features.half(), expected)
    assert [bag.id for bag in joined.stream([2, 0])] == ["p2", "p0"]
    assert joined.bag(2).slide_index is None
    assert joined.bag(1).slide_index.tolist() == [0] * 5 + [1] * 6


def test_a_slide_that_cannot_be_read_is_named(slides):
    slides[3].source.path.write_bytes(b"broken")
    joined = BagLoader(units_of(slides, "patient"), "none", prefetch=0)
    with pytest.raises(AsmilError, match="s3"):
        joined.bag(1)


def test_another_preparation_shares_nothing(slides):
    def adding(value):
        return lambda bag: Bag(bag.features, bag.coords, bag.id, extras={"k": value})

    first = BagLoader(slides, "memory", prepare=adding(1))
    assert first.bag(0).extras["k"] == 1
    second = first.preparing(adding(2))
    assert second.bag(0).extras["k"] == 2
    assert first.bag(0).extras["k"] == 1


def test_a_slide_is_a_unit_of_its_own():
    slide = cohort_of([{"label": "a"}]).slides[0]
    assert Unit.of_slide(slide) == units_of([slide], "slide")[0]
