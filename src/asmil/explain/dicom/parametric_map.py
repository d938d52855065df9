"""A heat map as a DICOM parametric map: one pixel per tile, in the frame of reference of the slide."""

from __future__ import annotations

import highdicom
import numpy as np
from highdicom.pm import ParametricMap, RealWorldValueMapping

from asmil.errors import AsmilError
from asmil.explain.caveats import NO_CAVEATS, Caveats
from asmil.explain.dicom.identity import NO_UNIT, Algorithm, clipped, instance, own_code
from asmil.explain.dicom.source_image import SourceImage
from asmil.explain.tile_map import SlideFrame
from asmil.explain.tile_raster import NO_TILE, tile_raster
from asmil.tables.arrays import Floats

FRAME_PX = 256
LONGEST_LABEL = 16


def parametric_map(
    source: SourceImage,
    frame: SlideFrame,
    values: Floats,
    kind: str,
    algorithm: Algorithm,
    caveats: Caveats = NO_CAVEATS,
) -> ParametricMap:
    """The map of the values (one per tile, nan: none). Where there is no tile, pixels have the padding value.

    caveats: written into the image comments
    """
    known = values[~np.isnan(values)]
    if len(known) == 0 or not np.isfinite(known).all():
        raise AsmilError(f"{frame.slide}: no tile has a finite {kind}, so there is no map to write as DICOM")
    raster = tile_raster(frame.coords, frame.tile_px)
    low, high = float(np.float32(known.min())), float(np.float32(known.max()))
    padding = float(np.floor(low)) - 1.0
    shown = np.append(np.where(np.isnan(values), padding, values), padding).astype(np.float32)  # index -1 is NO_TILE
    assert NO_TILE == -1
    cell = np.array(raster.cell)
    center = (raster.left + raster.cell[0] / 2, raster.top + raster.cell[1] / 2)
    width_mm, height_mm = (cell * source.level0_mm).tolist()
    written = ParametricMap(
        source_images=[source.dataset],
        pixel_array=shown[raster.index],
        **instance("map", algorithm.name),
        contains_recognizable_visual_features=False,
        real_world_value_mappings=[
            RealWorldValueMapping(
                lut_label=kind[:LONGEST_LABEL],
                lut_explanation=clipped(f"{kind} of tiles"),
                unit=NO_UNIT,
                value_range=(low, high),
                slope=1.0,
                intercept=0.0,
                quantity_definition=own_code(kind),
            )
        ],
        voi_lut_transformations=[
            highdicom.VOILUTTransformation(
                window_center=(low + high) / 2,
                window_width=max(high - low, 1e-9),
                voi_lut_function="LINEAR_EXACT",  # the others do not allow a width below 1
            )
        ],
        content_description=clipped(f"{kind} of tiles by {algorithm.name}"),
        pixel_measures=highdicom.PixelMeasuresSequence([height_mm, width_mm], source.thickness_mm),
        plane_orientation=highdicom.PlaneOrientationSequence("SLIDE", source.dataset.ImageOrientationSlide),
        plane_positions=[highdicom.PlanePositionSequence("SLIDE", source.position_mm(*center), (1, 1))],
        tile_pixel_array=True,
        tile_size=tuple(min(FRAME_PX, side) for side in raster.index.shape),
        dimension_organization_type="TILED_FULL",
    )
    written.FloatPixelPaddingValue = padding
    if caveats.texts:
        written.ImageComments = " ".join(caveats.texts)
    return written
