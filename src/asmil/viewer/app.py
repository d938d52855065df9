"""The web application: answers requests of the page, which name slides and runs by number, never by path."""

from __future__ import annotations

import base64
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from asmil.cohort.features import inspect_features
from asmil.errors import AsmilError
from asmil.explain.caveats import Caveats
from asmil.explain.color_scale import BOTH_SIGNS, ONE_SIGN, RELATIVE_TICKS, lookup_table, value_range
from asmil.explain.qupath import write_tiles
from asmil.explain.tile_map import read_frame
from asmil.explain.tile_raster import tile_raster
from asmil.slides.byte_cache import ByteCache
from asmil.slides.image import SlideImage
from asmil.version import __version__
from asmil.viewer.access import AccessControl, OneTimeLinks
from asmil.viewer.collection import Collection, ViewedSlide
from asmil.viewer.content_token import Outdated, features_state, file_state, token
from asmil.viewer.maps import RunMaps, choice_from
from asmil.viewer.open_slides import OpenSlides
from asmil.viewer.packing import outlines_of, pack
from asmil.viewer.pyramid import TilePyramid, encode
from asmil.viewer.run_table import RunTable, read_run_table
from asmil.viewer.tile_values import HIGHEST, TileValues, extremes

STATIC = Path(__file__).parent / "static"
PAGE_FILES = {"index.html": "text/html", "viewer.js": "text/javascript", "viewer.css": "text/css"}
COLOR_MAPS = (*ONE_SIGN, *BOTH_SIGNS, "turbo", "gray")
MOST_CELLS = 2_000_000
"""Largest number of pixels of a map in the browser."""
CACHE_BYTES = 128 << 20
"""Of encoded pictures."""
THUMBNAIL_PX = 128
LARGEST_REGION, LARGEST_PICTURE = 1 << 16, 2048
KEEP_A_YEAR, KEEP_NOTHING = "private, max-age=31536000, immutable", "no-store"
LARGEST_PIXEL = 1 << 31


def require_page(static: Path = STATIC) -> None:
    """Raise if the page was not built."""
    if not all((static / name).is_file() for name in PAGE_FILES):
        raise AsmilError(
            "the page of the viewer is not built; install npm and run `make viewer` in the source folder, or install "
            "asmil from a wheel"
        )


class Viewer:
    """Answers the requests of the page for a collection of slides.

    Addresses contain a token of what they name: `v` of the slide or its image, `r` of the run. If the files now have
    another token, the page is out of date and the answer is 409: another cohort may be served on the same port, and a
    slide, its features or a run may have been replaced. Browsers cache only pictures with a token.
    """

    def __init__(self, collection: Collection, device: str = "auto") -> None:
        self._collection = collection
        self._instance = secrets.token_hex(8)
        self._slides = OpenSlides()
        self._encoded = ByteCache[bytes](CACHE_BYTES)
        self._maps = [RunMaps(run, device) for run in collection.runs]
        self._tables: dict[int, tuple[str, RunTable]] = {}

    def close(self) -> None:
        self._slides.close()

    def routes(self) -> list[Route]:
        return [
            Route("/", self._page),
            Route("/{name:str}", self._page),
            Route("/api/alive", self._alive),
            Route("/api/about", self._about),
            Route("/api/slides/{slide:int}", self._slide),
            Route("/api/slides/{slide:int}/annotations", self._annotations),
            Route("/api/slides/{slide:int}/thumbnail.jpg", self._thumbnail),
            Route("/api/slides/{slide:int}/tiles/{level:int}/{column:int}_{row:int}.jpg", self._tile),
            Route("/api/slides/{slide:int}/region.jpg", self._region),
            Route("/api/slides/{slide:int}/places", self._places),
            Route("/api/slides/{slide:int}/runs/{run:int}/maps", self._list_maps),
            Route("/api/slides/{slide:int}/runs/{run:int}/map", self._map),
            Route("/api/slides/{slide:int}/runs/{run:int}/map.geojson", self._geojson),
        ]

    def _page(self, request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        if name not in PAGE_FILES:
            raise HTTPException(404)
        return FileResponse(STATIC / name, media_type=PAGE_FILES[name], headers={"Cache-Control": "no-cache"})

    def _alive(self, request: Request) -> Response:
        return _json({"instance": self._instance, "runs": [maps.token for maps in self._maps]})

    def _about(self, request: Request) -> Response:
        """The list of slides, with the roles and predictions of every run."""
        versions = [maps.token for maps in self._maps]
        tables = [self._table(number, version) for number, version in enumerate(versions)]
        slides = [
            {
                "id": number,
                "name": slide.name,
                "patient": slide.patient,
                "label": slide.label,
                "site": slide.site,
                "version": self._slide_token(slide),
                "image": self._image_token(slide),
                "features": slide.features is not None,
                "annotated": slide.annotation is not None,
                "runs": [
                    {
                        "role": table.roles.get(slide.name),
                        **table.predictions.get(slide.patient if table.unit == "patient" else slide.name, {}),
                    }
                    for table in tables
                ],
            }
            for number, slide in enumerate(self._collection.slides)
        ]
        runs = [
            {
                "id": number,
                "version": versions[number],
                "name": table.name,
                "method": table.method,
                "task": table.task,
                "classes": list(table.classes),
                "slides": len(run.slides),
            }
            for number, (table, run) in enumerate(zip(tables, self._collection.runs, strict=True))
        ]
        return _json(
            {
                "instance": self._instance,
                "version": __version__,
                "title": self._collection.title,
                "slides": slides,
                "runs": runs,
                "notes": [*self._collection.notes, *(note for table in tables for note in table.notes)],
                "color_maps": color_maps(),
                "signed_color_maps": list(BOTH_SIGNS),
            }
        )

    def _table(self, number: int, version: str) -> RunTable:
        """The predictions and roles of a run, read again when the run has changed."""
        known = self._tables.get(number)
        if known is None or known[0] != version:
            run = self._collection.runs[number]
            try:
                table = read_run_table(run)
            except AsmilError as error:  # its folder was deleted while the page is open
                table = RunTable(run.name, notes=(str(error),))
            known = self._tables[number] = (version, table)
        return known[1]

    def _slide(self, request: Request) -> Response:
        slide = self._known(request)
        about: dict[str, Any] = {"image": None, "image_error": None, "mpp": slide.mpp, "size": None}
        if slide.image is not None:
            try:
                with self._slides.use(slide.image) as pyramid:
                    about |= _image_about(pyramid) | {"image_error": pyramid.unreachable or None}
            except AsmilError as error:
                about["image_error"] = str(error)
        if about["size"] is None and slide.features is not None:
            frame = read_frame(slide.name, slide.features, slide.mpp)
            about |= {"size": frame.size_px, "mpp": frame.mpp}
        elif about["mpp"] is None and slide.features is not None:
            about["mpp"] = inspect_features(slide.features).mpp  # that the user gave when the features were extracted
        if about["size"] is None:
            nothing = f"{slide.name}: there is neither an image nor features of this slide"
            raise AsmilError(about["image_error"] or f"{nothing}; name the folder of images with --slides")
        return _json(about)

    def _annotations(self, request: Request) -> Response:
        slide = self._known(request)
        if slide.annotation is None:
            return _json({"regions": []})
        with ExitStack() as stack:
            image = self._image(slide, stack)
            if image is not None:
                size, origin = image.size, image.bounds_origin
            elif slide.features is not None:
                size, origin = read_frame(slide.name, slide.features, slide.mpp).size_px, (0, 0)
            else:
                raise AsmilError(f"{slide.name}: there is neither an image nor features of this slide")
        return _json({"regions": outlines_of(slide.annotation, size, origin, self._collection.mask_value)})

    def _tile(self, request: Request) -> Response:
        level, column, row = (request.path_params[name] for name in ("level", "column", "row"))

        def stored(pyramid: TilePyramid) -> bytes | None:
            if not pyramid.has(level, column, row):
                raise HTTPException(404)
            return pyramid.stored(level, column, row)

        what = (level, column, row)
        return self._picture(request, what, lambda pyramid: encode(pyramid.pixels(level, column, row)), stored)

    def _region(self, request: Request) -> Response:
        x, y = (_whole_number(request, name, LARGEST_PIXEL, signed=True) for name in ("x", "y"))
        side, wanted = _whole_number(request, "side", LARGEST_REGION), _whole_number(request, "px", LARGEST_PICTURE)
        what = ("region", x, y, side, wanted)
        return self._picture(request, what, lambda pyramid: pyramid.region(x, y, side, wanted))

    def _thumbnail(self, request: Request) -> Response:
        return self._picture(request, ("thumbnail",), lambda pyramid: encode(pyramid.overview(THUMBNAIL_PX)))

    def _picture(
        self,
        request: Request,
        what: tuple[object, ...],
        make: Callable[[TilePyramid], bytes],
        stored: Callable[[TilePyramid], bytes | None] = lambda pyramid: None,
    ) -> Response:
        """A JPEG, which the browser may cache if its address contains the token of the image.

        stored: the JPEG as it is in the file, if it is; otherwise it is made, and kept for the next request
        """
        slide = self._listed(request)
        version = self._image_token(slide)
        asked = request.query_params.get("v")
        if version is None:
            raise HTTPException(404) if asked is None else _outdated(slide.name)
        _check(slide.name, asked, version)
        tag = f'"{version}-{"-".join(map(str, what))}"'
        headers = {"ETag": tag, "Cache-Control": KEEP_NOTHING if asked is None else KEEP_A_YEAR}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        assert slide.image is not None
        with self._slides.use(slide.image) as pyramid:
            content = stored(pyramid) or self._encoded.get_or_make((version, *what), lambda: make(pyramid))
        _check(slide.name, asked, self._image_token(slide))  # replaced while it was read
        return Response(content, media_type="image/jpeg", headers=headers)

    def _image_token(self, slide: ViewedSlide) -> str | None:
        """Changes when the image file does; None without one."""
        image = slide.image
        return None if image is None else token("image", slide.name, image.mpp, file_state(image.path))

    def _slide_token(self, slide: ViewedSlide) -> str:
        """Changes when anything that is shown of a slide does: its row, image, features or annotations."""
        known = [run.slides.get(slide.name) for run in self._collection.runs]
        sources = [slide.features, *(None if in_run is None else in_run.source for in_run in known)]
        outlines = None if slide.annotation is None else file_state(slide.annotation)
        row = (slide.name, slide.patient, slide.label, slide.site, slide.mpp)
        return token("slide", row, self._image_token(slide), [features_state(source) for source in sources], outlines)

    def _places(self, request: Request) -> Response:
        slide = self._known(request)
        source = slide.features
        if "run" in request.query_params:
            number = _whole_number(request, "run", len(self._maps) - 1)
            self._check_run(request, number)
            known = self._collection.runs[number].slides.get(slide.name)
            source = known.source if known is not None else None
        if source is None:
            raise AsmilError(
                f"{slide.name}: there are no features of this slide, so there is no map; extract them with "
                "`asmil extract`, or name their folder with --features"
            )
        with ExitStack() as stack:
            frame = read_frame(slide.name, source, slide.mpp, self._image(slide, stack))
        raster = tile_raster(frame.coords, frame.tile_px, MOST_CELLS)
        about = {
            "tiles": len(frame.coords),
            "tile_px": frame.tile_px,
            "x": raster.left,
            "y": raster.top,
            "cell": raster.cell,
            "rows": raster.index.shape[0],
            "columns": raster.index.shape[1],
        }
        return _packed(pack(about, {"coords": frame.coords.astype(np.int32), "cells": raster.index}))

    def _image(self, slide: ViewedSlide, stack: ExitStack) -> SlideImage | None:
        """The image, open until the stack is closed; None without one, or if it cannot be read."""
        with suppress(AsmilError):
            return None if slide.image is None else stack.enter_context(self._slides.use(slide.image)).image
        return None

    def _list_maps(self, request: Request) -> Response:
        slide, maps = self._known(request), self._run(request)
        recorded = maps.recorded(slide.name)
        answer: dict[str, Any] = {
            "recorded": recorded,
            "why_not_recorded": None if recorded else maps.why_not_recorded(slide.name),
            "kinds": [],
            "trainings": [],
            "note": "",
            "alarms": maps.alarms,
            "error": None,
            "complete": request.query_params.get("models") != "0",
        }
        if not answer["complete"]:
            return _json(answer)  # recorded attention needs no model
        try:
            trainings, note = maps.trainings(slide.name)
            answer |= {"kinds": maps.kinds(slide.name), "trainings": trainings, "note": note}
        except AsmilError as error:
            answer["error"] = str(error)
        return _json(answer)

    def _map(self, request: Request) -> Response:
        shown = self._read_map(request)
        low, high = value_range(shown.values, shown.kind)
        top, bottom = extremes(shown.values)
        about = {
            "shown": top.shape[1],
            "low": low,
            "high": high,
            "moments": len(shown.values),
            "tiles": shown.values.shape[1],
            "scales": shown.scales,
            "relative_ends": [RELATIVE_TICKS[0], RELATIVE_TICKS[-1]],
            "findings": shown.findings,
            **{name: value for name, value in vars(shown).items() if name != "values"},
        }
        arrays: dict[str, Any] = {name: shown.codes(name) for name in shown.scales}
        arrays |= {"top": top, "bottom": bottom}
        if len(shown.values) == 1:
            arrays["exact"] = shown.values[0].astype(np.float32)
        return _packed(pack(about, arrays))

    def _read_map(self, request: Request) -> TileValues:
        shown = self._run(request).read(self._known(request).name, choice_from(request.query_params))
        self._known(request)  # its features may have been replaced, and the run trained again, while it was computed
        self._run(request)
        return shown

    def _geojson(self, request: Request) -> Response:
        """The visible tiles of the map, for QuPath."""
        slide, shown = self._known(request), self._read_map(request)
        moment = _whole_number(request, "moment", len(shown.values) - 1)
        threshold = _whole_number(request, "threshold", HIGHEST)
        name = request.query_params.get("scale", "")
        name = name if name in shown.scales else shown.scales[0]
        visible = np.where(shown.codes(name)[moment] >= threshold, shown.values[moment], np.nan)
        notes = [note for note in (shown.note, *shown.findings[moment : moment + 1]) if note]
        source = self._collection.runs[request.path_params["run"]].slides[slide.name].source
        with ExitStack() as stack:
            image = self._image(slide, stack)
            frame = read_frame(slide.name, source, slide.mpp, image)
            path = Path(stack.enter_context(TemporaryDirectory(prefix="asmil-"))) / "tiles.geojson"
            origin = (0, 0) if image is None else image.bounds_origin
            scale, caveats = shown.color_scale(name, moment), Caveats(self._run(request).alarms, tuple(notes))
            write_tiles(path, frame, visible, shown.kind, scale, origin=origin, caveats=caveats)
            content = path.read_bytes()
        return Response(content, media_type="application/geo+json", headers={"Cache-Control": KEEP_NOTHING})

    def _known(self, request: Request) -> ViewedSlide:
        """The slide of a request; raises if it has changed since the page was loaded."""
        slide = self._listed(request)
        if (asked := request.query_params.get("v")) is not None:
            _check(slide.name, asked, self._slide_token(slide))
        return slide

    def _listed(self, request: Request) -> ViewedSlide:
        number: int = request.path_params["slide"]
        if not 0 <= number < len(self._collection.slides):
            raise HTTPException(404) if "v" not in request.query_params else _outdated("this slide")
        return self._collection.slides[number]

    def _run(self, request: Request) -> RunMaps:
        number: int = request.path_params["run"]
        if not 0 <= number < len(self._maps):
            raise HTTPException(404) if "r" not in request.query_params else _outdated("this run")
        self._check_run(request, number)
        return self._maps[number]

    def _check_run(self, request: Request, number: int) -> None:
        _check(self._collection.runs[number].name, request.query_params.get("r"), self._maps[number].token)


def build_app(
    collection: Collection, host: str = "127.0.0.1", links: OneTimeLinks | None = None, device: str = "auto"
) -> Starlette:
    """The application for a collection.

    host: the address it listens on
    links: for a server on a network, whose browsers need a token
    """
    viewer = Viewer(collection, device)

    @asynccontextmanager
    async def closing(app: Starlette) -> AsyncIterator[None]:
        yield
        viewer.close()

    return Starlette(
        routes=viewer.routes(),
        middleware=[Middleware(AccessControl, host=host, links=links)],
        exception_handlers={AsmilError: _report},
        lifespan=closing,
    )


def color_maps() -> dict[str, str]:
    """The color maps by name: 256 x RGB bytes, in base64."""
    return {name: base64.b64encode(lookup_table(name).tobytes()).decode() for name in COLOR_MAPS}


def _image_about(pyramid: TilePyramid) -> dict[str, Any]:
    image = pyramid.image
    names = ("width", "height", "tile_width", "tile_height", "downsample", "across", "down")
    levels = [{name: getattr(level, name) for name in names} for level in pyramid.levels]
    return {
        "size": image.size,
        "mpp": None if image.resolution is None else image.resolution.mpp,
        "image": {"levels": levels, "reader": image.reader, "vendor": image.vendor},
    }


def _packed(content: bytes) -> Response:
    return Response(content, media_type="application/octet-stream", headers={"Cache-Control": KEEP_NOTHING})


def _json(content: Any, status: int = 200) -> Response:
    return JSONResponse(content, status, headers={"Cache-Control": KEEP_NOTHING})


async def _report(request: Request, error: Exception) -> Response:
    return _json({"error": str(error)}, 409 if isinstance(error, Outdated) else 422)


def _outdated(name: str) -> Outdated:
    return Outdated(f"{name} has changed since the page was loaded; load the page again")


def _check(name: str, asked: str | None, current: str | None) -> None:
    """Raise if the token of the page is not the current one."""
    if asked is not None and asked != current:
        raise _outdated(name)


def _whole_number(request: Request, name: str, most: int, signed: bool = False) -> int:
    text = request.query_params.get(name, "")
    digits = text[1:] if signed and text.startswith("-") else text
    if not (digits.isascii() and digits.isdecimal() and len(digits) < 12 and int(digits) <= most):
        raise HTTPException(400, f"{name} is not a whole number up to {most}")
    if not signed and name in ("side", "px") and int(digits) == 0:
        raise HTTPException(400, f"{name} is 0")
    return int(text)
