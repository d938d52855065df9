"""The work on one slide: tissue, tiles, features, file. A worker processes several slides at once with one encoder."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast, get_args

import cv2
import numpy as np
from numpy.typing import NDArray

from asmil.cohort.features import Provenance, write_features
from asmil.engine.jobs import Place, Report, ignore, made_progress
from asmil.errors import AsmilError, did_you_mean
from asmil.extraction.batching import CPU_BATCH, GPU_BATCH, Batcher, Rows, Tiles
from asmil.extraction.settings import ExtractionConfig
from asmil.extraction.store import EncoderIdentity, about_text
from asmil.files import bytes_of
from asmil.machine.memory import keep_freed_memory
from asmil.slides.encoders.base import Encoder, Precision
from asmil.slides.encoders.registry import load_encoder
from asmil.slides.file_names import slide_content
from asmil.slides.image import Resolution, SlideImage
from asmil.slides.opening import open_slide, require_resolution
from asmil.slides.overview import read_overview
from asmil.slides.qc import PICTURE_SIDE_PX, draw_tissue, write_jpeg
from asmil.slides.quality import Stain, TileQuality, artifact_notes, measure_quality, tissue_stain
from asmil.slides.resolution import resolution_notes
from asmil.slides.settings import Artifact
from asmil.slides.tiling import TileReader, keep_tiles, parent_tiles, place_tiles, tile_side_level0
from asmil.slides.tissue.finding import find_tissue
from asmil.slides.tissue.regions import Tissue
from asmil.tables.arrays import Booleans, Integers


@dataclass(frozen=True)
class SlideJob:
    """A slide and the feature files that it becomes, one for each magnification, finest first.

    mpp: the user's value, None to read it from the file; tissue: the user's file of its outlines, if there is one
    """

    name: str
    path: Path
    mpp: float | None
    features: tuple[Path, ...]
    picture: Path | None
    tissue: Path | None = None


@dataclass(frozen=True)
class SlideReport:
    """The result of a slide. notes: what the user should check."""

    n_tiles: int
    tissue_share: float
    seconds: float
    notes: tuple[str, ...]


GROUPS_AHEAD = 2
REPORT_SECONDS = 0.5
ReadGroup = TypeVar("ReadGroup")


@dataclass(frozen=True)
class WorkerPlan:
    """Makes workers, in this process or another.

    encoder: the expected encoder; a machine with other weights is an error
    readers: threads that read tiles
    named: the encoder's name in the files; default: as in the settings
    """

    config: ExtractionConfig
    encoder: EncoderIdentity
    weights: Path | None = None
    precision: Precision = "auto"
    batch_size: int | None = None
    readers: int = 1
    named: str | None = None

    def __call__(self, worker: Place) -> SlideWorker:
        """Load the encoder; the process must do nothing else."""
        keep_freed_memory()
        cv2.setNumThreads(1)  # tiles are read by several threads already
        encoder = load_encoder(self.config.encoder, self.weights, worker.device, self.precision)
        if encoder.weights_hash != self.encoder.weights_hash:
            raise AsmilError(
                f"encoder {encoder.name}: the weights found here (SHA-256 {encoder.weights_hash[:12]}) are not those "
                f"of this extraction ({self.encoder.weights_hash[:12]}); put the same file on every machine"
            )
        config = self.config
        if self.named is not None:
            config, encoder.name = config.model_copy(update={"encoder": self.named}), self.named
        report = now_and_then(worker.report)
        return SlideWorker(config, encoder, self.batch_size, self.readers, report, self.encoder.code)


class SlideWorker:
    """Writes the feature file and the picture of a slide when it is called; several threads may call it."""

    def __init__(
        self,
        config: ExtractionConfig,
        encoder: Encoder,
        batch_size: int | None = None,
        readers: int = 1,
        on_encoded: Callable[[int], None] = ignore,
        code: str | None = None,
    ) -> None:
        self.config, self._code = config, code
        self._encoder = encoder
        default = GPU_BATCH if encoder.device.type == "cuda" else CPU_BATCH
        self._batcher = Batcher(encoder, encoder.width, encoder.device, batch_size or default, on_encoded)
        self._n_readers = readers
        self._readers = ThreadPoolExecutor(readers, thread_name_prefix="asmil-tiles")

    def close(self) -> None:
        self._readers.shutdown(cancel_futures=True)
        self._batcher.close()

    def __call__(self, job: SlideJob) -> SlideReport:
        started = time.perf_counter()
        tiling = self.config.tiling
        with open_slide(job.path, job.mpp) as image:
            resolution = require_resolution(image)
            side = tile_side_level0(tiling, resolution, job.name)
            made_progress()
            tissue = find_tissue(image, self.config.tissue, job.tissue)
            made_progress()
            coords = place_tiles(image, tissue, self.config.tissue, tiling, side)
            # also for the stain of the tissue, which must not depend on whether a picture is drawn
            overview = read_overview(image, max_side=PICTURE_SIDE_PX)

            def write_picture(corners: Integers, artifacts: Mapping[Artifact, Booleans] | None = None) -> None:
                if job.picture is not None:
                    drawn = draw_tissue(overview.pixels, overview.downsample, tissue, corners, side, artifacts)
                    write_jpeg(job.picture, drawn)

            write_picture(coords)
            made_progress()
            if not len(coords):
                raise AsmilError(_nothing_to_do(job.name, tissue, "no tile has enough tissue"))
            stain = tissue_stain(overview, resolution, tissue)
            tiles = self._encode(TileReader(image, side, tiling.tile_px), coords, stain)
            flags = tiles.quality.flags(self.config.quality)
            if any(flagged.any() for flagged in flags.values()):
                write_picture(coords, flags)
            kept, features = tiles.kept, tiles.features
            if not kept.any():
                raise AsmilError(_nothing_to_do(job.name, tissue, _why_nothing_is_left(flags, self.config)))
            coords, quality, lowres = coords[kept], tiles.quality[kept], tiles.lowres
            self._refuse_infinite(job.name, features)
            artifacts = {str(name): int(flagged.sum()) for name, flagged in flags.items()}
            artifacts["left_out"] = tiles.left_out
            provenance = self._provenance(job, image, resolution, side, tissue, artifacts)
            for path, ratio in zip(job.features[1:], self.config.coarser, strict=True):
                self._write_parents(path, image, coords, ratio, provenance)
            # the finest file is the last, so that a slide with this file is complete
            write_features(job.features[0], features, coords, provenance, self.config.dtype, lowres, asdict(quality))
        notes = (*resolution_notes(resolution), *tissue.notes, *artifact_notes(flags, self.config.leave_out))
        return SlideReport(len(coords), tissue.share, time.perf_counter() - started, notes)

    def _write_parents(
        self, path: Path, image: SlideImage, coords: Integers, ratio: int, provenance: Provenance
    ) -> None:
        """Encode the tiles of a coarser grid that contain the centers of tiles, and write them to a file."""
        tiling, tile_px_level0 = self.config.tiling, provenance.tile_px_level0
        assert tile_px_level0 is not None
        side = tile_px_level0 * ratio
        corners = parent_tiles(coords, tile_px_level0, side)
        reader = TileReader(image, side, tiling.tile_px)
        with self._batcher.feed(len(corners), self.config.dtype) as feed:
            for rows, tiles in self._read(reader, corners, reader.read):
                feed.add(tiles, rows)
                made_progress()
            features = feed.features()
        self._refuse_infinite(path.stem, features)
        known = replace(provenance, tile_um=tiling.tile_um * ratio, tile_px_level0=side)
        write_features(path, features, corners, known, self.config.dtype)

    def _refuse_infinite(self, slide: str, features: NDArray[np.floating]) -> None:
        if not np.isfinite(features.sum(dtype=np.float64)):
            raise AsmilError(
                f"{slide}: the encoder gave features that are not finite in {self.config.dtype}; try "
                "--set dtype=float32 into another folder, and --precision float32 on a GPU"
            )

    def _encode(self, reader: TileReader, coords: Integers, stain: Stain) -> _EncodedTiles:
        """Measure all tiles, and encode those that are kept."""
        tiling, lowres_px = self.config.tiling, self.config.lowres_px
        kept, quality, left_out = np.ones(len(coords), np.bool_), TileQuality.unmeasured(len(coords)), 0
        lowres = None if lowres_px is None else np.empty((len(coords), lowres_px, lowres_px, 3), np.uint8)

        def read_and_measure(corners: Integers) -> tuple[Tiles, TileQuality]:
            tiles = reader.read(corners)
            return tiles, measure_quality(tiles, tiling.mpp, stain)

        with self._batcher.feed(len(coords), self.config.dtype) as feed:
            for rows, (tiles, measured) in self._read(reader, coords, read_and_measure):
                quality.put(rows, measured)
                flags = measured.flags(self.config.quality)
                for name in self.config.leave_out:
                    kept[rows] &= ~flags[name]
                left_out += int(np.count_nonzero(~kept[rows]))
                if tiling.white is not None or tiling.black is not None:
                    kept[rows] &= keep_tiles(tiles, tiling.white, tiling.black)
                rows, tiles = rows[kept[rows]], tiles[kept[rows]]
                if lowres is not None:
                    lowres[rows] = shrunk(tiles, lowres.shape[1])
                if len(rows):
                    feed.add(tiles, rows)
                made_progress()
            features = feed.features()
            made_progress()
        if not kept.all():
            features, lowres = features[kept], None if lowres is None else lowres[kept]
        return _EncodedTiles(features, kept, quality, lowres, left_out)

    def _read(
        self, reader: TileReader, coords: Integers, read_group: Callable[[Integers], ReadGroup]
    ) -> Iterator[tuple[Rows, ReadGroup]]:
        """Groups of neighboring tiles, read ahead by the threads."""
        waiting: deque[tuple[Rows, Future[ReadGroup]]] = deque()
        try:
            for rows in reader.groups(coords):
                waiting.append((rows, self._readers.submit(read_group, coords[rows])))
                if len(waiting) > self._n_readers + GROUPS_AHEAD:
                    read, tiles = waiting.popleft()
                    yield read, tiles.result()
            while waiting:
                read, tiles = waiting.popleft()
                yield read, tiles.result()
        finally:
            # the image is closed next, so no thread may read from it anymore
            for _, tiles in waiting:
                if not tiles.cancel():
                    tiles.exception()

    def _provenance(
        self,
        job: SlideJob,
        image: SlideImage,
        resolution: Resolution,
        side: int,
        tissue: Tissue,
        artifacts: Mapping[str, int],
    ) -> Provenance:
        tiling = self.config.tiling
        slide = {
            "file": job.path.name,
            "bytes": bytes_of(job.path),
            "reader": image.reader,
            "vendor": image.vendor,
            "levels": [list(size) for size in image.level_sizes],
            "mpp_x": resolution.mpp_x,
            "mpp_y": resolution.mpp_y,
            "content": slide_content(job.path).stored().model_dump(),
        }
        about_tissue: dict[str, Any] = {
            "share": tissue.share,
            "threshold": tissue.threshold,
            "notes": list(tissue.notes),
        }
        if tissue.source is not None:
            about_tissue["source"] = {**asdict(tissue.source), "content": tissue.source.content.model_dump()}
        return Provenance(
            encoder=self._encoder.name,
            weights_hash=self._encoder.weights_hash,
            tile_um=tiling.tile_um,
            tile_px=tiling.tile_px,
            tile_px_level0=side,
            mpp=resolution.mpp,
            mpp_source=resolution.source,
            slide_width_px=image.size[0],
            slide_height_px=image.size[1],
            extraction=about_text(self.config, slide, about_tissue, self._encoder.precision, artifacts, self._code),
        )


@dataclass(frozen=True)
class _EncodedTiles:
    """The tiles of a slide after encoding.

    kept, quality: of all tiles; features, lowres: of those that are kept
    left_out: tiles that are not kept because they are blurred, folded, ...
    """

    features: NDArray[np.floating]
    kept: Booleans
    quality: TileQuality
    lowres: NDArray[np.uint8] | None
    left_out: int


def now_and_then(report: Report) -> Callable[[int], None]:
    """Counts tiles and reports them, but not more than twice a second."""
    waiting, last = 0, time.monotonic()

    def count(n_tiles: int) -> None:
        nonlocal waiting, last
        waiting += n_tiles
        if time.monotonic() - last > REPORT_SECONDS:
            report(waiting)
            waiting, last = 0, time.monotonic()

    return count


def parse_precision(text: str) -> Precision:
    """A precision by its name."""
    known = get_args(Precision)
    if text not in known:
        raise AsmilError(f"--precision {text}: {did_you_mean(text, known)}")
    return cast(Precision, text)


def shrunk(tiles: Tiles, side_px: int) -> NDArray[np.uint8]:
    """Tiles at a lower magnification: every pixel is the mean of those that it covers."""
    small = [cv2.resize(tile, (side_px, side_px), interpolation=cv2.INTER_AREA) for tile in tiles]
    return np.stack(small) if small else np.empty((0, side_px, side_px, 3), np.uint8)


def _why_nothing_is_left(flags: Mapping[Artifact, Booleans], config: ExtractionConfig) -> str:
    counts = [f"{int(flags[name].sum())} are {name}" for name in config.leave_out if flags[name].any()]
    if not counts:
        return "every tile was filtered as white or black"
    return f"no tile is left: {' and '.join(counts)}"


def _nothing_to_do(name: str, tissue: Tissue, reason: str) -> str:
    notes = f" ({'; '.join(tissue.notes)})" if tissue.notes else ""
    return (
        f"{name}: {reason}{notes}; look at its picture with `asmil tissue`, then change the settings of tissue and "
        "tiling, or leave the slide out"
    )
