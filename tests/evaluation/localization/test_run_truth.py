"""The truth of slides: from outlines, masks and tables of tiles, and notes about it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tifffile

from asmil.errors import AsmilError
from asmil.evaluation.localization.annotation_truth import AnnotationTruth
from asmil.evaluation.localization.tile_maps import MaskFrame, TileTruth
from asmil.slides.annotations import ClassNames, find_annotations

FRAME = MaskFrame("s", np.zeros((1, 2), dtype=np.int64), 256, (1024, 768), 0.25, True, 32)


def feature(name: str, left: float, top: float, side: float) -> dict[str, object]:
    ring = [[left, top], [left + side, top], [left + side, top + side], [left, top + side], [left, top]]
    geometry = {"type": "Polygon", "coordinates": [ring]}
    return {"type": "Feature", "geometry": geometry, "properties": {"classification": {"name": name}}}


def truth_of(folder: Path, slides: list[str], **options: object) -> AnnotationTruth:
    return AnnotationTruth(find_annotations(folder, slides), ClassNames(), **options)


def test_outlines_and_masks_agree(tmp_path):
    (tmp_path / "a.geojson").write_text(json.dumps([feature("Tumor", 256, 256, 256)]))
    full = np.zeros((768, 1024), np.uint8)
    full[256:512, 256:512] = 2
    full[:100] = 1
    tifffile.imwrite(tmp_path / "b_mask.tif", full, compression="zlib")
    truth = truth_of(tmp_path, ["a", "b", "c"], mask_value=2)
    outlines, mask = truth.tumor("a", FRAME), truth.tumor("b", FRAME)
    assert outlines.shape == (24, 32)
    assert outlines.sum() == 64
    np.testing.assert_array_equal(outlines, mask)
    assert truth.tumor("c", FRAME) is None


def test_notes_name_what_was_read(tmp_path):
    regions = [feature("Tumor", 0, 0, 100), feature("Fat", 0, 0, 50), feature("exclusion", 10, 10, 20)]
    (tmp_path / "a.geojson").write_text(json.dumps(regions))
    (tmp_path / "a.xml").write_text("<ASAP_Annotations/>")
    (tmp_path / "lost.xml").write_text("<ASAP_Annotations/>")
    truth = truth_of(tmp_path, ["a"])
    truth.tumor("a", FRAME)
    notes = "\n".join(truth.notes())
    for found in ("Tumor (1)", "exclusion (1)", "Fat (1)", "a.geojson", "a.xml", "lost.xml"):
        assert found in notes


def test_regions_outside_of_the_slide_and_clashing_files(tmp_path):
    (tmp_path / "a.geojson").write_text(json.dumps([feature("Tumor", 90_000, 0, 100)]))
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "b.xml").write_text("<ASAP_Annotations/>")
    truth = truth_of(tmp_path, ["a", "b"])
    with pytest.raises(AsmilError, match=r"a: .*a\.geojson .*1024 x 768 px"):
        truth.tumor("a", FRAME)
    with pytest.raises(AsmilError, match=r"b: .*b\.xml"):
        truth.tumor("b", FRAME)


def test_where_only_tiles_tell_the_size_regions_beyond_them_stay(tmp_path):
    (tmp_path / "a.geojson").write_text(json.dumps([feature("Tumor", 1000, 700, 640)]))
    extent = replace(FRAME, size_is_stated=False)
    truth = truth_of(tmp_path, ["a"])
    assert truth.tumor("a", extent).shape == (42, 52)
    assert truth.tumor("a", FRAME).sum() < truth.tumor("a", extent).sum() == 400


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_table_of_tiles(tmp_path, suffix):
    table = pd.DataFrame(
        {"slide": "001", "x": [0, 256, 512], "y": [0, 0, 256], "tumor": [True, False, True], "focus": 1}
    )
    path = tmp_path / f"truth.{suffix}"
    table.to_csv(path, index=False) if suffix == "csv" else table.to_parquet(path)
    truth = TileTruth(path)
    mask = truth.tumor("001", FRAME)
    assert mask[:8, :8].all()
    assert mask[8:16, 16:24].all()
    assert mask.sum() == 128
    assert truth.tumor("002", FRAME) is None


def test_the_truth_of_tiles_that_overlap_is_that_of_their_rows(tmp_path):
    coords = np.array([[0, 0], [100, 0], [512, 256]])
    pd.DataFrame({"slide": "a", "x": coords[:, 0], "y": coords[:, 1], "tumor": [True, False, False]}).to_csv(
        tmp_path / "truth.csv", index=False
    )
    truth = TileTruth(tmp_path / "truth.csv")
    assert truth.tiles("a", replace(FRAME, coords=coords[::-1])).tolist() == [False, False, True]
    assert truth.tiles("a", replace(FRAME, coords=coords + 1)) is None
    assert truth.tiles("b", FRAME) is None


def test_tables_that_cannot_be_used(tmp_path):
    for name, text, named in (
        ("a.csv", "slide,x,y\ns,1,2\n", "columns tumor"),
        ("b.csv", "slide,x,y,tumor\ns,1,2,yes\n", "tumor"),
        ("c.csv", "slide,x,y,tumor\ns,1,,1\n", "x, y"),
        ("d.parquet", "no parquet", "Parquet"),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(AsmilError, match=rf"{name}: .*{named}"):
            TileTruth(tmp_path / name)
    with pytest.raises(AsmilError, match=r"none\.csv"):
        TileTruth(tmp_path / "none.csv")
