"""The DICOM image that maps refer to: that of the slide or, for other formats, an overview that is made from it.

Maps, annotations and reports copy the patient, the study and the frame of reference of this image.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import highdicom
import numpy as np
from highdicom.frame import encode_frame
from highdicom.spatial import ImageToReferenceTransformer
from pydicom import Dataset, FileMetaDataset, dcmread
from pydicom.encaps import encapsulate
from pydicom.sr.codedict import codes
from pydicom.uid import JPEGBaseline8Bit, VLWholeSlideMicroscopyImageStorage, generate_uid

from asmil.errors import AsmilError
from asmil.explain.dicom.identity import MANUFACTURER, SERIES, clipped
from asmil.explain.figure import GLASS
from asmil.explain.tile_map import SlideFrame
from asmil.slides.file_names import DICOM_SUFFIX, dicom_files, slide_content
from asmil.slides.image import SlideImage
from asmil.slides.overview import read_overview
from asmil.tables.arrays import Floats
from asmil.version import __version__

OVERVIEW_PX = 2048
"""Longer side of the overview."""
SECTION_MM = 0.005
"""The usual thickness of a section. A pixel needs a depth in DICOM."""
NOMINAL_ORIGIN_MM, NOMINAL_ORIENTATION = (25.0, 50.0), [0.0, -1.0, 0.0, -1.0, 0.0, 0.0]
"""Where other formats do not state it: a slide with its label on the left, scanned from the upper right corner."""
DERIVED = "Overview of {}, made by asmil because the slide is not DICOM. Its frame of reference is not the scanner's."


class SourceImage:
    """A DICOM whole-slide image and the way from level-0 pixels into it.

    dataset: the image, for an existing one without its pixels
    is_derived: whether asmil made it; then it has to be written together with what refers to it
    """

    def __init__(self, dataset: Dataset, size_px: tuple[int, int], is_derived: bool) -> None:
        self.dataset, self.is_derived = dataset, is_derived
        columns, rows = dataset.TotalPixelMatrixColumns, dataset.TotalPixelMatrixRows
        self._level0_px: Floats = np.array([size_px[0] / columns, size_px[1] / rows])

    @property
    def _measures(self) -> Any:
        return self.dataset.SharedFunctionalGroupsSequence[0].PixelMeasuresSequence[0]

    @property
    def level0_mm(self) -> Floats:
        """Width and height of a level-0 pixel in millimeters."""
        row, column = map(float, self._measures.PixelSpacing)
        return np.array([column, row]) / self._level0_px

    @property
    def thickness_mm(self) -> float:
        return float(self._measures.get("SliceThickness") or SECTION_MM)

    def pixels(self, level0: Floats) -> Floats:
        """Positions in level-0 pixels (N x 2, x and y) as positions in the pixel matrix of the image."""
        return level0 / self._level0_px

    def position_mm(self, x: float, y: float) -> tuple[float, float, float]:
        """A position in level-0 pixels in the coordinates of the slide."""
        origin = self.dataset.TotalPixelMatrixOriginSequence[0]
        at = (origin.XOffsetInSlideCoordinateSystem, origin.YOffsetInSlideCoordinateSystem)
        to_slide = ImageToReferenceTransformer(
            image_position=[*map(float, at), float(origin.get("ZOffsetInSlideCoordinateSystem", 0.0))],
            image_orientation=[float(part) for part in self.dataset.ImageOrientationSlide],
            pixel_spacing=[float(part) for part in self._measures.PixelSpacing],
        )
        left, top, depth = to_slide(self.pixels(np.array([[x, y]])))[0].tolist()
        return left, top, depth


def source_image(
    frame: SlideFrame, path: Path | None, image: SlideImage | None, patient: str | None = None
) -> SourceImage:
    """The DICOM image of a slide, or a new overview of a slide in another format.

    path: of the slide image, None if there is none; image: the same, opened
    patient: becomes the patient of an overview
    """
    if path is not None and (path.is_dir() or path.suffix.lower() == DICOM_SUFFIX):
        return SourceImage(_largest_level(frame, path), frame.size_px, is_derived=False)
    if frame.mpp is None:
        raise AsmilError(f"{frame.slide}: its resolution is unknown, which DICOM needs; give --mpp")
    return SourceImage(_overview(frame, path, image, patient or frame.slide), frame.size_px, is_derived=True)


def _largest_level(frame: SlideFrame, path: Path) -> Dataset:
    files = dicom_files(path if path.is_dir() else path.parent)
    headers = (dcmread(file, stop_before_pixels=True) for file in files)
    levels = [
        header
        for header in headers
        if header.SOPClassUID == VLWholeSlideMicroscopyImageStorage and "VOLUME" in header.ImageType
    ]
    for level in levels:
        if (level.TotalPixelMatrixColumns, level.TotalPixelMatrixRows) == frame.size_px:
            return level
    raise AsmilError(
        f"{frame.slide}: no DICOM image in {path} has the {frame.size_px[0]} x {frame.size_px[1]} pixels of the slide; "
        "restore the file of the full resolution"
    )


def _overview(frame: SlideFrame, path: Path | None, image: SlideImage | None, patient: str) -> Dataset:
    assert frame.mpp is not None
    # the same slide always has the same study and frame of reference, so that all its maps fit together
    known = [frame.slide, str(frame.size_px), str(frame.mpp), "" if path is None else slide_content(path).checksum]

    def uid(what: str) -> str:
        return str(generate_uid(entropy_srcs=[*known, what]))

    if image is not None:
        pixels = read_overview(image, max_side=OVERVIEW_PX).pixels
    else:
        shrink = max(1.0, max(frame.size_px) / OVERVIEW_PX)
        pixels = np.full((*(max(1, round(side / shrink)) for side in frame.size_px[::-1]), 3), GLASS, dtype=np.uint8)
    rows, columns = pixels.shape[:2]
    width_mm, height_mm = (side * frame.mpp / 1000 for side in frame.size_px)
    data = Dataset()
    data.file_meta = FileMetaDataset()
    data.file_meta.TransferSyntaxUID = JPEGBaseline8Bit
    data.file_meta.MediaStorageSOPClassUID = data.SOPClassUID = VLWholeSlideMicroscopyImageStorage
    data.file_meta.MediaStorageSOPInstanceUID = data.SOPInstanceUID = highdicom.UID()
    data.SpecificCharacterSet = "ISO_IR 192"
    data.ImageType = ["DERIVED", "PRIMARY", "VOLUME", "RESAMPLED"]
    data.Modality = "SM"
    for empty in ("StudyDate", "StudyTime", "AccessionNumber", "ReferringPhysicianName", "StudyID"):
        setattr(data, empty, "")
    data.PatientName = data.PatientBirthDate = data.PatientSex = ""
    data.PatientID = clipped(patient)
    data.StudyInstanceUID, data.SeriesInstanceUID = uid("study"), highdicom.UID()
    data.SeriesNumber, data.InstanceNumber = SERIES["image"], 1
    data.FrameOfReferenceUID, data.PositionReferenceIndicator = uid("frame of reference"), "SLIDE_CORNER"
    data.Manufacturer, data.ManufacturerModelName = MANUFACTURER, "overview"
    data.DeviceSerialNumber, data.SoftwareVersions = "none", __version__
    now = datetime.now()
    data.ContentDate, data.ContentTime, data.AcquisitionDateTime = now.date(), now.time(), now
    data.ImageComments = DERIVED.format(frame.slide)
    data.VolumetricProperties, data.BurnedInAnnotation, data.SpecimenLabelInImage = "VOLUME", "NO", "NO"
    data.FocusMethod, data.ExtendedDepthOfField = "AUTO", "NO"
    data.ContainerIdentifier, data.AcquisitionContextSequence = clipped(frame.slide), []
    data.IssuerOfTheContainerIdentifierSequence = []
    data.ContainerTypeCodeSequence = [_item(codes.SCT.MicroscopeSlide)]
    data.SpecimenDescriptionSequence = [
        highdicom.SpecimenDescription(specimen_id=clipped(frame.slide), specimen_uid=uid("specimen"))
    ]
    origin = Dataset()
    origin.XOffsetInSlideCoordinateSystem, origin.YOffsetInSlideCoordinateSystem = NOMINAL_ORIGIN_MM
    data.TotalPixelMatrixOriginSequence = [origin]
    data.ImageOrientationSlide = NOMINAL_ORIENTATION
    data.ImagedVolumeWidth, data.ImagedVolumeHeight, data.ImagedVolumeDepth = width_mm, height_mm, SECTION_MM * 1000
    data.TotalPixelMatrixColumns, data.TotalPixelMatrixRows, data.TotalPixelMatrixFocalPlanes = columns, rows, 1
    data.Rows, data.Columns, data.NumberOfFrames, data.SamplesPerPixel = rows, columns, 1, 3
    data.BitsAllocated, data.BitsStored, data.HighBit, data.PixelRepresentation = 8, 8, 7, 0
    data.PhotometricInterpretation, data.PlanarConfiguration = "YBR_FULL_422", 0
    data.LossyImageCompression, data.LossyImageCompressionMethod = "01", "ISO_10918_1"
    data.NumberOfOpticalPaths = 1
    data.OpticalPathSequence = [_optical_path()]
    data.DimensionOrganizationType = "TILED_FULL"
    organization = Dataset()
    organization.DimensionOrganizationUID = uid("dimensions")
    data.DimensionOrganizationSequence = [organization]
    groups, frame_type = Dataset(), Dataset()
    frame_type.FrameType = data.ImageType
    groups.WholeSlideMicroscopyImageFrameTypeSequence = [frame_type]
    groups.PixelMeasuresSequence = highdicom.PixelMeasuresSequence(
        pixel_spacing=[height_mm / rows, width_mm / columns], slice_thickness=SECTION_MM
    )
    data.SharedFunctionalGroupsSequence = [groups]
    encoded = encode_frame(pixels, JPEGBaseline8Bit, 8, 8, data.PhotometricInterpretation, 0, 0)
    data.LossyImageCompressionRatio = round(pixels.nbytes / len(encoded), 2)
    data.PixelData = encapsulate([encoded])
    return data


def _optical_path() -> Dataset:
    path = Dataset()
    path.OpticalPathIdentifier = "0"
    path.IlluminationTypeCodeSequence = [_item(codes.DCM.BrightfieldIllumination)]
    path.IlluminationColorCodeSequence = [_item(codes.SCT.FullSpectrum)]
    path.ICCProfile = _srgb_profile()
    return path


def _srgb_profile() -> bytes:
    from PIL import ImageCms

    return ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()


def _item(code: Any) -> highdicom.sr.CodedConcept:
    return highdicom.sr.CodedConcept.from_code(code)
