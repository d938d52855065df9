"""Maps as GeoJSON for QuPath: every tile with its measurements, and the regions above a cut.

Fields are those that QuPath's own reader uses (`QuPathTypeAdapters`, `ROITypeAdapters` and `PathClassTypeAdapter` of
qupath-core): a `Feature` with a `Polygon`, and in its properties `objectType`, a `classification` with both name and
color (QuPath refuses one without), and `measurements` as an object of numbers. Positions are pixels of the
full image, y downward. QuPath crops slides to the bounds that OpenSlide reports, so positions are relative to these.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from shapely import STRtree, box, points, unary_union
from shapely.geometry import Polygon

from asmil.errors import AsmilError
from asmil.explain.caveats import NO_CAVEATS, Caveats
from asmil.explain.color_scale import ColorScale, lookup_table, percentiles
from asmil.explain.tile_map import SlideFrame
from asmil.files import replacing
from asmil.tables.arrays import Bytes, Floats, Integers

BINS, RELATIVE_BINS = 10, 11
"""Number of classes of tiles, which QuPath colors by class: equal parts of the scale. Odd for a relative scale, so that
all tiles near the average are in one class."""
CUT = 0.9
LINES_AT_ONCE = 4096


def write_tiles(
    path: Path | str,
    frame: SlideFrame,
    values: Floats,
    kind: str,
    scale: ColorScale,
    measurements: Mapping[str, Floats] | None = None,
    origin: tuple[int, int] = (0, 0),
    caveats: Caveats = NO_CAVEATS,
) -> int:
    """Write one object of type `tile` per tile with a value; returns their number.

    measurements: further numbers per tile, by name (probabilities of classes)
    origin: the upper left corner of the slide's bounds, the origin of QuPath's coordinates
    caveats: written into the file; class names show whether there is an alarm
    """
    known = np.flatnonzero(~np.isnan(values))
    if len(known) == 0:
        raise AsmilError(f"{frame.slide}: no tile has a value, so there is nothing to export")
    columns = {kind: values[known]}
    if scale.average is not None:
        columns[_relative_name(kind)] = scale.relative(values[known])
    columns["percentile"] = 100 * percentiles(values[known], np.sort(values[known]))
    columns |= {name: np.asarray(column, dtype=np.float64)[known] for name, column in (measurements or {}).items()}
    for name, column in columns.items():
        if not np.isfinite(column).all():
            count = int((~np.isfinite(column)).sum())
            raise AsmilError(f"{frame.slide}: {name} of {count} tiles is not finite and cannot be exported")
    named = list(_bin_names(scale))
    bins = np.minimum((scale.positions(values[known]) * len(named)).astype(int), len(named) - 1)
    marked = " (alarm)" if caveats.alarms else ""
    classes = [_classification(f"{kind} {name}{marked}", color) for name, color in named]
    with replacing(path) as partial, partial.open("w", encoding="utf-8") as file:
        file.write(f'{{"type":"FeatureCollection","asmil":{json.dumps(vars(caveats))},"features":[\n')
        separator = ""
        for lines in _tile_lines(frame, known, columns, bins, classes, origin):
            file.write(separator + ",\n".join(lines))
            separator = ",\n"
        file.write("\n]}\n")
    return len(known)


def write_regions(
    path: Path | str,
    frame: SlideFrame,
    values: Floats,
    kind: str,
    scale: ColorScale,
    cut: float = CUT,
    origin: tuple[int, int] = (0, 0),
    caveats: Caveats = NO_CAVEATS,
) -> int:
    """Write the regions of connected tiles above the quantile `cut` of all tiles as annotations; returns their number.

    Their measurements: number of tiles, highest and mean value, and for weights also multiples of the average tile.

    caveats: written into the file and into the name and metadata of every region
    """
    classification = json.loads(_classification(f"high {kind}", lookup_table(scale.color_map)[-1]))
    features: list[dict[str, Any]] = []
    for shape, tiles in high_regions(frame, values, cut):
        inside = values[tiles]
        measured = {f"{kind} max": inside.max(), f"{kind} mean": inside.mean()}
        if scale.average is not None:
            measured[f"{_relative_name(kind)} max"] = scale.relative(inside.max())
        features.append(
            {
                "type": "Feature",
                "geometry": {"type": "Polygon", "coordinates": _rings(shape, origin)},
                "properties": {
                    "objectType": "annotation",
                    "name": " ".join([f"{kind} above {100 * cut:g} % of the tiles.", *caveats.texts]),
                    "classification": classification,
                    "measurements": {"tiles": len(inside)}
                    | {name: _short(float(value)) for name, value in measured.items()},
                    "metadata": {name: " ".join(texts) for name, texts in vars(caveats).items() if texts},
                },
            }
        )
    with replacing(path) as partial:
        content = {"type": "FeatureCollection", "asmil": vars(caveats), "features": features}
        partial.write_text(json.dumps(content) + "\n", encoding="utf-8")
    return len(features)


def high_regions(frame: SlideFrame, values: Floats, cut: float) -> list[tuple[Polygon, Integers]]:
    """Polygons of connected tiles above the cut, each with its tiles; sorted by the highest tile."""
    high = high_tiles(values, cut)
    if len(high) == 0:
        return []
    corners = frame.coords[high].astype(np.float64)
    squares = box(corners[:, 0], corners[:, 1], corners[:, 0] + frame.tile_px, corners[:, 1] + frame.tile_px)
    merged = unary_union(squares)
    polygons = [part for part in getattr(merged, "geoms", [merged]) if isinstance(part, Polygon)]
    inside, owner = STRtree(polygons).query(points(corners + frame.tile_px / 2), predicate="within")
    order = np.argsort(owner, kind="stable")
    groups = np.split(high[inside[order]], np.flatnonzero(np.diff(owner[order])) + 1)
    regions = [(polygons[number], tiles) for number, tiles in zip(np.unique(owner).tolist(), groups, strict=True)]
    return sorted(regions, key=lambda region: -float(values[region[1]].max()))


def high_tiles(values: Floats, cut: float) -> Integers:
    """The tiles above the quantile `cut` of all tiles that have a value."""
    if not 0 <= cut < 1:
        raise AsmilError(f"the cut {cut:g} is not a share of the tiles; give a number from 0 to below 1, such as 0.9")
    known = np.flatnonzero(~np.isnan(values))
    return known[percentiles(values[known], np.sort(values[known])) > cut] if len(known) else known


def _tile_lines(
    frame: SlideFrame,
    known: Integers,
    columns: Mapping[str, Floats],
    bins: Integers,
    classes: Sequence[str],
    origin: tuple[int, int],
) -> Iterator[list[str]]:
    measured = ",".join(json.dumps(name).replace("%", "%%") + ":%.6g" for name in columns)
    corners = frame.coords[known] - np.asarray(origin)
    ends = corners + frame.tile_px
    if frame.tile_px == round(frame.tile_px):
        ends = ends.astype(np.int64)
    line = (
        '{"type":"Feature","geometry":{"type":"Polygon","coordinates":'
        "[[[%s,%s],[%s,%s],[%s,%s],[%s,%s],[%s,%s]]]},"
        '"properties":{"objectType":"tile","classification":%s,"measurements":{' + measured + "}}}"
    )
    for start in range(0, len(known), LINES_AT_ONCE):
        part = slice(start, start + LINES_AT_ONCE)
        numbers = zip(*(column[part].tolist() for column in columns.values()), strict=True)
        yield [
            line % (left, top, right, top, right, bottom, left, bottom, left, top, classes[number], *measures)
            for (left, top), (right, bottom), number, measures in zip(
                corners[part].tolist(), ends[part].tolist(), bins[part].tolist(), numbers, strict=True
            )
        ]


def _bin_names(scale: ColorScale) -> Iterator[tuple[str, Bytes]]:
    table = lookup_table(scale.color_map)
    count = RELATIVE_BINS if scale.kind == "relative" else BINS
    for number in range(count):
        if scale.kind == "relative":
            name = f"{_ends_of_bin(scale, number, count)} x average"
        else:
            low, high = (100 * end // count for end in (number, number + 1))
            name = f"{low}-{high} %" + (" of the scale" if scale.kind == "absolute" else "")
        yield name, table[round((number + 0.5) / count * 255)]


def _ends_of_bin(scale: ColorScale, number: int, count: int) -> str:
    """The ends of one of `count` bins of a relative scale, as multiples of the average."""
    low, high = (scale.low * (scale.high / scale.low) ** (end / count) for end in (number, number + 1))
    if number == 0:
        return f"to {high:.2g}"
    return f"from {low:.2g}" if number == count - 1 else f"{low:.2g}-{high:.2g}"


def _relative_name(kind: str) -> str:
    return f"{kind} relative to average"


def _classification(name: str, color: Bytes) -> str:
    # a colon would make QuPath derive one class from another
    return json.dumps({"name": name.replace(":", " "), "color": [int(part) for part in color]})


def _rings(shape: Polygon, origin: tuple[int, int]) -> list[list[list[float]]]:
    rings = (shape.exterior, *shape.interiors)
    return [[[_short(x - origin[0]), _short(y - origin[1])] for x, y in ring.coords] for ring in rings]


def _short(value: float) -> float:
    """Whole numbers as integers, others with eight digits."""
    return int(value) if value == int(value) else float(f"{value:.8g}")
