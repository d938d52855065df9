"""Microns per pixel from the metadata of a file; implausible values are ignored."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from xml.etree import ElementTree

from asmil.slides.image import Resolution

PLAUSIBLE_MPP = (0.05, 20.0)
"""Limits of plausible resolutions: 72, 96 and 300 dpi, written by image programs, are 353, 265 and 85 um/px."""
ANISOTROPY = 0.02
UM_PER_UNIT = {"inch": 25_400.0, "centimeter": 10_000.0, "millimeter": 1_000.0, "micrometer": 1.0}
OME_UNITS = {"m": 1e6, "cm": 1e4, "mm": 1e3, "µm": 1.0, "μm": 1.0, "um": 1.0, "nm": 1e-3, "Å": 1e-4, "pm": 1e-6}
VENDOR_KEYS = (
    ("aperio.MPP", "aperio.MPP"),
    ("mirax.LAYER_0_LEVEL_0_SECTION.MICROMETER_PER_PIXEL_X", "mirax.LAYER_0_LEVEL_0_SECTION.MICROMETER_PER_PIXEL_Y"),
    ("ventana.ScanRes", "ventana.ScanRes"),
)
POWER_KEYS = ("openslide.objective-power", "aperio.AppMag", "hamamatsu.SourceLens", "sakura.NominalLensMagnification")


def from_properties(properties: Mapping[str, str]) -> Resolution | None:
    """From OpenSlide's properties: its own mpp, the vendor's keys, TIFF resolution, objective power."""
    return next((resolution for resolution in _stated_by(properties) if resolution is not None), None)


def from_pixels_per_unit(x: float | None, y: float | None, unit: str) -> Resolution | None:
    """From a TIFF's pixels per unit of length ("inch", "centimeter", ...)."""
    um = UM_PER_UNIT.get(unit.lower())
    if um is None:
        return None
    return plausible(um / x if x else None, um / y if y else None, "tiff")


def from_objective(powers: Iterable[object]) -> Resolution | None:
    """10 / objective power, for the first power stated: a guess, since scanners with the same power differ by 10 %."""
    power = next((number for text in powers if (number := _number(text)) is not None and number > 0), None)
    if power is None:
        return None
    return plausible(10 / power, 10 / power, f"objective power {power:g} (guess)")


def from_ome(xml: str) -> Resolution | None:
    """From the first image of an OME-XML text."""
    try:
        root = ElementTree.fromstring(xml)
    except ElementTree.ParseError:
        return None
    pixels = root.find(".//{*}Pixels")
    if pixels is None:
        return None
    x, y = (_physical_size(pixels, axis) for axis in "XY")
    powers = (objective.get("NominalMagnification") for objective in root.iterfind(".//{*}Objective"))
    return plausible(x, y, "ome") or from_objective(powers)


def plausible(mpp_x: float | None, mpp_y: float | None, source: str) -> Resolution | None:
    """A resolution, if it is plausible for a scanner; an axis that is not stated equals the other."""
    x, y = mpp_x or mpp_y, mpp_y or mpp_x
    if x is None or y is None:
        return None
    finest, coarsest = PLAUSIBLE_MPP
    return Resolution(x, y, source) if finest <= x <= coarsest and finest <= y <= coarsest else None


def resolution_notes(resolution: Resolution) -> tuple[str, ...]:
    """Caveats about a resolution; empty if there are none."""
    notes = []
    x, y = resolution.mpp_x, resolution.mpp_y
    if abs(x - y) > ANISOTROPY * min(x, y):
        notes.append(f"pixels are not square: {x:.4g} um wide and {y:.4g} um high")
    if "guess" in resolution.source:
        notes.append(f"{resolution.mpp:.3g} um/px is guessed from the {resolution.source.removesuffix(' (guess)')}")
    if not PLAUSIBLE_MPP[0] <= resolution.mpp <= PLAUSIBLE_MPP[1]:
        notes.append(f"{resolution.mpp:g} um/px is not the resolution of a slide scanner")
    return tuple(notes)


def _stated_by(properties: Mapping[str, str]) -> Iterator[Resolution | None]:
    def number(key: str) -> float | None:
        return _number(properties.get(key))

    yield plausible(number("openslide.mpp-x"), number("openslide.mpp-y"), "openslide")
    for x, y in VENDOR_KEYS:
        yield plausible(number(x), number(y), x)
    unit = properties.get("tiff.ResolutionUnit", "")
    yield from_pixels_per_unit(number("tiff.XResolution"), number("tiff.YResolution"), unit)
    yield from_objective(properties.get(key) for key in POWER_KEYS)


def _physical_size(pixels: ElementTree.Element, axis: str) -> float | None:
    um = OME_UNITS.get(pixels.get(f"PhysicalSize{axis}Unit", "µm"))
    size = _number(pixels.get(f"PhysicalSize{axis}"))
    return size * um if size is not None and um is not None else None


def _number(value: object) -> float | None:
    """A finite positive number; some Aperio files use a decimal comma."""
    try:
        number = float(str(value).strip().replace(",", "."))
    except ValueError:
        return None
    return number if math.isfinite(number) and number > 0 else None
