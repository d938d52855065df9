"""From slides to features: find tissue, extract features, encode slides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asmil.api.inputs import PathLike, tree, warn
from asmil.console import progress_bar
from asmil.errors import AsmilError

if TYPE_CHECKING:
    from asmil.extraction.extract import Done
    from asmil.extraction.settings import ExtractionConfig
    from asmil.extraction.slide_encoding import Encoded
    from asmil.slides.discovery import SlideFile
    from asmil.slides.survey import SurveyResult

TISSUE_METHODS = ("auto", "clam", "none")
"""Those that search; `files` is chosen by giving a folder."""


def tissue(
    slides: PathLike,
    out: PathLike,
    *,
    mpp: float | None = None,
    method: str | None = None,
    preset: str | None = None,
    tile_um: float | None = None,
    tile_px: int | None = None,
    quality: bool = False,
    settings: Mapping[str, Any] | None = None,
    workers: int | None = None,
    item_timeout: float | None = None,
    again: bool = False,
    progress: bool = True,
) -> SurveyResult:
    """Find the tissue of every slide: masks, contours for QuPath, overlays and a contact sheet; see docs/tissue.md.

    slides: a folder of slides, one slide, or a table of slides; out: the folder for the files
    mpp: microns per level-0 pixel; overrides the files
    method: auto (default), clam, none (the whole slide), or a folder of outlines or masks; preset: one of CLAM,
        which implies its method
    tile_um, tile_px: side of the counted tiles in microns, and in pixels as an encoder gets them
    quality: whether to count blurred and folded tiles, which reads all of their pixels
    settings: further settings by their dotted names, e.g. {"tissue.min_area_um2": 10000}
    workers: slides at the same time; default: up to 4
    item_timeout: give up on a slide after this many seconds without progress; 0: no limit; default: 1800
    again: do slides again that were replaced or done with other settings, instead of refusing
    """
    import os

    from asmil.settings.config import merge, parse_settings
    from asmil.settings.made_from import DoneBefore
    from asmil.slides.discovery import find_slides
    from asmil.slides.survey import SurveyConfig, SurveyFolder, survey_engine, survey_slides

    sizes = {name: side for name, side in (("tile_um", tile_um), ("tile_px", tile_px)) if side is not None}
    tissue_files = _tissue_files(method)
    asked = {"mpp": mpp, "tissue": _tissue(method, preset, "--method", tissue_files), "tiling": sizes}
    asked |= {"measure_quality": True} if quality else {}
    config = parse_settings(SurveyConfig, merge(asked, tree(settings)))
    _refuse_two_methods("--method", tissue_files, config.tissue.method)
    files, done = _with_tissue(find_slides(Path(slides)), tissue_files), DoneBefore(again)
    engine = survey_engine(workers or min(4, os.cpu_count() or 1), item_timeout)
    with progress_bar("slides", not progress) as show:
        result = survey_slides(files, SurveyFolder(Path(out)), config, engine, show, done)
    warn(*done.notes)
    return result


def _tissue_files(method: str | None) -> Path | None:
    """The folder (or file) of outlines or masks, if one is given instead of the name of a method."""
    if method is None or method in TISSUE_METHODS or not Path(method).exists():
        return None
    return Path(method)


def _refuse_two_methods(option: str, tissue_files: Path | None, method: str) -> None:
    if tissue_files is not None and method != "files":
        raise AsmilError(f"{option} {tissue_files} is a folder, but tissue.method is {method}; leave one of them out")


def _with_tissue(slides: list[SlideFile], tissue_files: Path | None) -> list[SlideFile]:
    """The slides with their files of outlines or masks, if a folder of those is given."""
    if tissue_files is None:
        return slides
    from asmil.slides.tissue.files import with_tissue_files

    with_files, notes = with_tissue_files(slides, tissue_files)
    warn(*notes)
    return with_files


def _tissue(method: str | None, preset: str | None, option: str, tissue_files: Path | None) -> dict[str, Any]:
    """The settings of the tissue detection."""
    if tissue_files is None and method not in (None, *TISSUE_METHODS):
        raise AsmilError(
            f"{option} {method}: not a method (tissue.method: {', '.join(TISSUE_METHODS)}) nor an existing folder "
            "of outlines or masks; fix it"
        )
    if tissue_files is not None and preset is None:
        return {"method": "files"}
    if preset is None:
        return {} if method is None else {"method": method}
    if method not in (None, "clam"):
        raise AsmilError(f"--preset {preset} is one of CLAM's, but {option} is {method}; leave one of them out")
    return {"method": "clam", "clam": {"preset": preset}}


def extract(
    slides: PathLike,
    out: PathLike,
    *,
    encoder: str = "efficientnet_lite0",
    weights: PathLike | None = None,
    tile_um: float | None = None,
    tile_px: int | None = None,
    magnification: float | Sequence[float] | None = None,
    overlap: float | None = None,
    min_tissue: float | None = None,
    mpp: float | None = None,
    tissue: str | None = None,
    preset: str | None = None,
    leave_out: Sequence[str] = (),
    lowres: float | None = None,
    settings: Mapping[str, Any] | None = None,
    engine: str = "local",
    address: str | None = None,
    workers: int | None = None,
    cpus: float = 1,
    gpus: float = 0,
    device: str = "auto",
    precision: str = "auto",
    batch_size: int | None = None,
    shard: str | None = None,
    pictures: bool = True,
    item_timeout: float | None = None,
    again: bool = False,
    progress: bool = True,
) -> list[Done]:
    """Extract features from slides: find tissue, cut tiles, encode them; one HDF5 file per slide. See docs/extract.md.

    slides: a folder of slides, one slide, or a table of slides; out: the folder for the feature files
    encoder: one of `encoders()`, or your own, `file.py:callable` or `module:callable`; weights: its file
    tile_um or magnification, tile_px: size of a tile on the slide, and in pixels; default: the encoder's. With several
        magnifications, such as (5, 20), one folder for each; see docs/magnifications.md
    overlap, min_tissue: of neighboring tiles, and of tissue in a tile, as shares
    mpp: microns per level-0 pixel; overrides the files
    tissue, preset: how tissue is found: auto, clam, none, or a folder of outlines or masks; a preset of CLAM
    leave_out: blurred, folded or both: leave out such tiles
    lowres: also store tiles at this magnification
    settings: further settings by their dotted names
    engine, address, workers, cpus, gpus, device: local or ray, the Ray cluster, number of processes (0: only this
        one; default: one per GPU, or one per core), cores and GPUs per worker for Ray, auto, cpu, cuda, ...
    precision, batch_size: auto (bf16 on a GPU), float32 or bf16; tiles per batch
    shard: only part I of N, e.g. "3/16"
    pictures: whether to draw every slide with its tiles into OUT/qc
    item_timeout: give up on a slide after this many seconds without progress; 0: no limit; default: 1800
    again: extract slides again whose features were made from something else, instead of refusing

    A slide that cannot be read has an `error` in the result, and the others are extracted.
    """
    from asmil.api.progress import SlideProgress
    from asmil.extraction.extract import extract as extract_slides
    from asmil.extraction.extract import identify, with_mpp
    from asmil.extraction.extract import shard as part_of
    from asmil.extraction.machine import ExtractionMachine
    from asmil.extraction.settings import finest_and_coarser
    from asmil.extraction.worker import WorkerPlan, parse_precision
    from asmil.settings.made_from import DoneBefore
    from asmil.slides.discovery import find_slides

    finest, coarser = finest_and_coarser([magnification] if isinstance(magnification, int | float) else magnification)
    sizes = {"tile_um": tile_um, "tile_px": tile_px, "magnification": finest}
    shares = {name: share for name, share in (("overlap", overlap), ("min_tissue", min_tissue)) if share is not None}
    tissue_files = _tissue_files(tissue)
    found_by = _tissue(tissue, preset, "--tissue", tissue_files)
    asked: dict[str, Any] = {"encoder": encoder, "lowres": lowres, "tiling": shares, "tissue": found_by}
    asked |= {"coarser": coarser} if coarser else {}
    asked |= {"leave_out": sorted(set(leave_out))} if leave_out else {}
    config = _extraction_config(asked, sizes, tree(settings))
    _refuse_two_methods("--tissue", tissue_files, config.tissue.method)
    files = part_of(with_mpp(find_slides(Path(slides)), mpp), shard)
    if not files:
        raise AsmilError(f"--shard {shard}: there are fewer slides than parts; give fewer parts")
    files = _with_tissue(files, tissue_files)
    worker_precision = parse_precision(precision)
    shown = SlideProgress(len(files), not progress)
    machine = ExtractionMachine(engine, address, workers, device, cpus, gpus, item_timeout)
    runner, readers = machine.prepare(len(files), shown.report)
    file = None if weights is None else Path(weights).absolute()
    plan = WorkerPlan(config, identify(config.encoder, file), file, worker_precision, batch_size, readers)
    done = DoneBefore(again)
    results = shown.follow(extract_slides(files, Path(out), plan, runner, pictures, done))
    warn(*done.notes)
    return results


def _extraction_config(asked: dict[str, Any], sizes: dict[str, Any], changes: dict[str, Any]) -> ExtractionConfig:
    from asmil.extraction.settings import parse_extraction, tile_size
    from asmil.settings.config import merge
    from asmil.slides.encoders.registry import find_encoder

    entry = find_encoder(str(changes.get("encoder", asked["encoder"])))
    return parse_extraction(merge(merge(asked, {"tiling": tile_size(entry, **sizes)}), changes))


def encode_slides(
    features: PathLike,
    out: PathLike,
    *,
    encoder: str,
    engine: str = "local",
    address: str | None = None,
    workers: int | None = None,
    cpus: float = 1,
    gpus: float = 0,
    device: str = "auto",
    item_timeout: float | None = None,
    again: bool = False,
    progress: bool = True,
) -> list[Encoded]:
    """Encode slides: one vector per slide from the features of its tiles; see docs/slide_encoders.md.

    features: a folder of feature files, or a pack; out: the folder for the vectors
    encoder: your slide encoder, `file.py:callable` or `module:callable`
    engine, address, workers, cpus, gpus, device, item_timeout: as for `extract`; workers: one per GPU, or one
    again: encode slides again whose vectors were made from something else, instead of refusing

    A slide that fails has an `error` in the result, and the others are encoded.
    """
    import torch

    from asmil.cohort.locate import find_features
    from asmil.extraction.machine import ExtractionMachine
    from asmil.extraction.slide_encoding import encode_slides as encode
    from asmil.settings.made_from import DoneBefore

    slides = find_features(Path(features))
    if not slides:
        raise AsmilError(f"{features}: there is no feature file in this folder; extract features first")
    if workers is None and (device == "cpu" or not torch.cuda.is_available()):
        workers = 1
    runner, _ = ExtractionMachine(engine, address, workers, device, cpus, gpus, item_timeout).prepare(len(slides))
    results: list[Encoded] = []
    done = DoneBefore(again)
    with progress_bar("encoding", not progress) as show:
        for encoded in encode(slides, Path(out), encoder, runner, done):
            results.append(encoded)
            show(len(results), len(slides))
    warn(*done.notes)
    return results
