"""The DICOM files of one slide."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydicom import Dataset
from shapely.geometry import MultiPolygon

from asmil.explain.asked_slides import AskedSlide
from asmil.explain.caveats import Caveats
from asmil.explain.dicom.annotations import bulk_annotations
from asmil.explain.dicom.identity import Algorithm
from asmil.explain.dicom.parametric_map import parametric_map
from asmil.explain.dicom.report import prediction_report
from asmil.explain.dicom.source_image import source_image
from asmil.explain.slide_maps import SlideMaps
from asmil.explain.tile_map import SlideFrame
from asmil.files import replacing
from asmil.slides.annotations import AnnotatedRegion
from asmil.slides.image import SlideImage
from asmil.tables.names import file_in

UNNAMED = "annotation"


def write_dicom(
    out: Path,
    asked: AskedSlide,
    frame: SlideFrame,
    image: SlideImage | None,
    slide_maps: SlideMaps,
    method: str,
    cut: float,
    regions: Sequence[AnnotatedRegion],
    caveats: Caveats,
) -> list[Path]:
    """Write the main map, the annotations and, for maps of a run, the report; returns the paths.

    method: of the run, or the name of the scores
    """
    source = source_image(frame, asked.image, image, None if asked.slide is None else asked.slide.patient)
    shown, algorithm = slide_maps.maps[slide_maps.main], Algorithm(method)
    outlines: dict[str, list[MultiPolygon]] = {}
    for region in regions:
        outlines.setdefault(region.group or UNNAMED, []).append(region.shape)

    predicted, given = slide_maps.prediction, (source, frame, shown.values, shown.kind)
    objects: dict[str, Dataset | None] = {
        "overview": source.dataset if source.is_derived else None,
        "map": parametric_map(*given, algorithm, caveats),
        "annotations": bulk_annotations(*given, cut, algorithm, outlines, caveats),
        "report": None if predicted is None else prediction_report(source, predicted, algorithm, caveats),
    }
    written = []
    for name, dataset in objects.items():
        if dataset is not None:
            written.append(file_in(out, asked.name, f"_{name}.dcm"))
            with replacing(written[-1]) as partial:
                dataset.save_as(partial, enforce_file_format=True)
    return written
