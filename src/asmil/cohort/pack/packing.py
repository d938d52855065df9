"""Pack the features of a cohort: add missing or changed slides, and report unusable ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from asmil.cohort.bag import Bag
from asmil.cohort.consistency import mixture_problems
from asmil.cohort.features import read_bag
from asmil.cohort.inspection import usable_headers
from asmil.cohort.manifest import Slide
from asmil.cohort.pack.files import PackDtype
from asmil.cohort.pack.index import info_of
from asmil.cohort.pack.reading import Pack
from asmil.cohort.pack.writing import PackWriter, is_stale, writing
from asmil.cohort.problems import Problem, fail, problems_of, raise_errors
from asmil.cohort.source import FeatureInfo, FeatureSource
from asmil.engine.jobs import Progress
from asmil.errors import AsmilError
from asmil.settings.made_from import DoneBefore


@dataclass(frozen=True)
class PackReport:
    """The result of packing some slides.

    added, kept: slides added now, and slides that were already in the pack
    others: slides in the pack that were not among the given slides; they stay
    problems: problems of slides that could not be packed, and warnings
    """

    pack: Pack | None
    added: tuple[str, ...]
    kept: tuple[str, ...]
    others: tuple[str, ...]
    problems: tuple[Problem, ...]


def pack_features(
    slides: Sequence[Slide],
    folder: Path | str,
    dtype: PackDtype | None = None,
    progress: Progress | None = None,
    item_timeout_s: float | None = 0.0,
    done_before: DoneBefore | None = None,
) -> PackReport:
    """Pack the slides that are missing; unusable slides are reported and skipped.

    Features extracted in different ways are an error before anything is written, but single slides of a different
    width are only skipped.

    dtype: type of the features; default: that of the pack, float16 for a new pack
    progress: called with (slides done, slides in total)
    item_timeout_s: time limit for the header of one feature file, see `inspect_slides`
    done_before: decides about slides whose features have changed since they were packed; default: they are refused
    """
    folder = Path(folder)
    itself = folder.resolve()
    if any(path.resolve() == itself for slide in slides for path in slide.source.paths):
        fail(folder, "a pack cannot be packed into itself", "give another folder for the new pack")
    done_before = done_before or DoneBefore()
    added: list[str] = []
    with writing(folder, dtype) as writer:
        kept = [slide for slide in slides if _keeps(writer, slide, done_before)]
        done_before.refuse(folder)
        for slide in kept:
            writer.moved(slide)
        names = {slide.slide for slide in kept}
        missing = [slide for slide in slides if slide.slide not in names]
        fitting, problems = _fitting(missing, writer, item_timeout_s)
        already = len(slides) - len(missing)
        for done, slide in enumerate(fitting, start=already + 1):
            try:
                writer.add(slide)
                added.append(slide.slide)
            except AsmilError as error:
                problems += problems_of(error, f"slide '{slide.slide}'")
            if progress is not None:
                progress(done, already + len(fitting))
        problems += _cut_problems(writer, slides)
        entries = list(writer.index.entries)
    wanted, read = {slide.slide for slide in slides}, set(added)
    return PackReport(
        pack=Pack.open(folder) if entries else None,
        added=tuple(added),
        kept=tuple(name for name in entries if name in wanted and name not in read),
        others=tuple(name for name in entries if name not in wanted),
        problems=tuple(problems),
    )


def write_pack(slides: Sequence[Slide], folder: Path | str, progress: Progress | None = None) -> Pack:
    """Pack the slides of a training as float16; the first unusable slide raises an error.

    progress: called with (slides done, slides in total)
    """
    folder = Path(folder)
    with writing(folder, "float16") as writer:
        missing = writer.missing(slides)
        for done, slide in enumerate(missing, start=len(slides) - len(missing) + 1):
            writer.add(slide)
            if progress is not None:
                progress(done, len(slides))
    return Pack.open(folder)


def read_packed(pack: Pack, slide_name: str) -> Bag:
    """The bag of a slide in a training's pack, without copying; a source that has changed since is an error."""
    entry = pack.entry(slide_name)
    if is_stale(entry):
        what = f"the file has changed since slide '{slide_name}' was packed"
        fail(entry.source, what, "pack the cohort again")
    return read_bag(FeatureSource(pack.folder, slide_name), slide_name)


def _keeps(writer: PackWriter, slide: Slide, done: DoneBefore) -> bool:
    try:
        return slide.slide in writer.index.entries and writer.keeps(slide, done)
    except AsmilError:
        return False  # its features cannot be read; packing it reports why


def _fitting(
    slides: Sequence[Slide], writer: PackWriter, item_timeout_s: float | None
) -> tuple[list[Slide], list[Problem]]:
    """The slides whose headers agree with each other and with the pack, and the problems of the others."""
    infos, problems = usable_headers(slides, item_timeout_s=item_timeout_s)
    index = writer.index
    packed = [
        info_of(writer.folder, index.dtype, entry) for entry in index.entries.values() if entry.slide not in infos
    ]
    width = _common_width(packed or list(infos.values()))
    for name, info in list(infos.items()):
        if width is not None and info.n_tiles and info.width != width:
            what = f"{info.source} has {info.width} features per tile, but the others have {width}"
            problems.append(Problem("error", f"slide '{name}'", what, "extract it like the others, or leave it out"))
            del infos[name]
    mixed = mixture_problems([*packed, *infos.values()])
    raise_errors(mixed)
    return [slide for slide in slides if slide.slide in infos], problems + mixed


def _common_width(infos: Sequence[FeatureInfo]) -> int | None:
    """The width of more than half of the slides."""
    widths = Counter(info.width for info in infos if info.n_tiles)
    width, count = widths.most_common(1)[0] if widths else (None, 0)
    return width if 2 * count > widths.total() else None


def _cut_problems(writer: PackWriter, slides: Sequence[Slide]) -> list[Problem]:
    given = {slide.slide for slide in slides}
    what = "the data of the slide in the pack is truncated, and the slide is not among the given features"
    return [
        Problem("error", f"{writer.folder}, slide '{name}'", what, "pack it from its feature file again")
        for name in writer.cut
        if name not in given
    ]
