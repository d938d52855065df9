"""The prediction of a slide as a DICOM structured report: a measurement report by template TID 1500."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import highdicom
import numpy as np
from highdicom.sr import (
    AlgorithmIdentification,
    Comprehensive3DSR,
    DeviceObserverIdentifyingAttributes,
    Measurement,
    MeasurementReport,
    MeasurementsAndQualitativeEvaluations,
    ObservationContext,
    ObserverContext,
    QualitativeEvaluation,
    RelationshipTypeValues,
    SourceImageForMeasurementGroup,
    TextContentItem,
    TrackingIdentifier,
)
from pydicom.sr.codedict import codes
from pydicom.sr.coding import Code

from asmil.explain.caveats import NO_CAVEATS, Caveats
from asmil.explain.dicom.identity import MANUFACTURER, NO_UNIT, Algorithm, clipped, instance, own_code
from asmil.explain.dicom.source_image import SourceImage
from asmil.explain.slide_maps import SlidePrediction
from asmil.tables.arrays import Floats

WHOLE_SLIDE_IMAGING = Code("112703", "DCM", "Whole Slide Imaging")
COMMENT = codes.DCM.Comment
DERIVATIONS: Mapping[str, Callable[[Floats], Any]] = {"Mean": np.mean, "Minimum": np.min, "Maximum": np.max}


def prediction_report(
    source: SourceImage, prediction: SlidePrediction, algorithm: Algorithm, caveats: Caveats = NO_CAVEATS
) -> Comprehensive3DSR:
    """The mean, lowest and highest prediction of the models, and the predicted class.

    caveats: written as comments
    """
    device = DeviceObserverIdentifyingAttributes(
        uid=highdicom.UID(), name=MANUFACTURER, manufacturer_name=MANUFACTURER, model_name=clipped(algorithm.name)
    )
    group = MeasurementsAndQualitativeEvaluations(
        tracking_identifier=TrackingIdentifier(uid=highdicom.UID(), identifier=clipped(prediction.of)),
        algorithm_id=AlgorithmIdentification(name=clipped(algorithm.name), version=algorithm.version),
        source_images=[SourceImageForMeasurementGroup.from_source_image(source.dataset)],
        measurements=list(_measurements(prediction)),
        qualitative_evaluations=[QualitativeEvaluation(own_code("Predicted class"), own_code(prediction.decided))]
        * bool(prediction.decided),
    )
    for text in (prediction.about, *caveats.texts):
        comment = TextContentItem(COMMENT, text, relationship_type=RelationshipTypeValues.CONTAINS)
        group[0].ContentSequence.append(comment)
    content = MeasurementReport(
        observation_context=ObservationContext(ObserverContext(codes.DCM.Device, device)),
        procedure_reported=WHOLE_SLIDE_IMAGING,
        imaging_measurements=[group],
    )
    given = instance("report", algorithm.name)
    return Comprehensive3DSR(evidence=[source.dataset], content=content[0], is_complete=True, **given)


def _measurements(prediction: SlidePrediction) -> Iterator[Measurement]:
    for name, values in prediction.by_model.items():
        code = own_code(f"Probability of {name}" if len(prediction.by_model) > 1 else name)
        for derivation, function in DERIVATIONS.items():
            if len(values) > 1:
                yield Measurement(code, float(function(values)), NO_UNIT, derivation=getattr(codes.SCT, derivation))
        if len(values) == 1:
            yield Measurement(code, float(values[0]), NO_UNIT)
