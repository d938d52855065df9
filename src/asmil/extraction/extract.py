"""Extraction of many slides into one folder, on any engine; finished slides are not extracted again."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from asmil.engine.jobs import Engine
from asmil.errors import AsmilError
from asmil.extraction.store import EncoderIdentity, FeatureFolder
from asmil.extraction.worker import SlideJob, SlideReport, WorkerPlan
from asmil.settings.made_from import DoneBefore
from asmil.settings.own_code import code_checksum, names_code
from asmil.slides.discovery import SlideFile
from asmil.slides.encoders.registry import load_encoder


@dataclass(frozen=True)
class Done:
    """A finished slide: its report, or its error. before: an earlier command finished it."""

    slide: str
    report: SlideReport | None = None
    error: str | None = None
    before: bool = False


def identify(encoder: str, weights: Path | None) -> EncoderIdentity:
    """The hash of an encoder's weights; missing weights are reported before any slide is opened."""
    loaded = load_encoder(encoder, weights)
    code = code_checksum(loaded.name) if names_code(loaded.name) else None
    return EncoderIdentity(loaded.name, loaded.weights_hash, code)


def extract(
    slides: Sequence[SlideFile],
    out: Path,
    plan: WorkerPlan,
    engine: Engine,
    pictures: bool = True,
    done_before: DoneBefore | None = None,
) -> Iterator[Done]:
    """Extract every slide that is not done yet; a slide that fails is reported and the others continue.

    done_before: decides about features that were made from something else; default: they are refused
    """
    done_before = done_before or DoneBefore()
    # workers may have another working folder, or be on another machine
    folder = FeatureFolder(out.absolute())
    to_do, finished = [], []
    for slide in slides:
        try:
            if folder.keeps(slide, plan.config, plan.encoder, done_before):
                finished.append(Done(slide.name, before=True))
            else:
                to_do.append(slide)
        except AsmilError as error:
            finished.append(Done(slide.name, error=str(error)))
    done_before.refuse(out)
    plan = replace(plan, named=folder.begin(plan.config, plan.encoder, done_before.again))
    yield from finished
    jobs = []
    for slide in to_do:
        picture = folder.picture(slide.name) if pictures else None
        features, tissue = folder.features(slide.name, plan.config), slide.tissue and slide.tissue.absolute()
        jobs.append(SlideJob(slide.name, slide.path.absolute(), slide.mpp, features, picture, tissue))
    for outcome in engine.run(plan, jobs) if jobs else ():
        name, why = outcome.job.name, outcome.error
        if why is not None and not why.startswith(name) and str(outcome.job.path) not in why:
            why = f"{name}: {why}"
        yield Done(name, outcome.result, why)


def with_mpp(slides: Sequence[SlideFile], mpp: float | None) -> list[SlideFile]:
    """The slides with the user's resolution, for those whose table gives none."""
    if mpp is None:
        return list(slides)
    if not (math.isfinite(mpp) and mpp > 0):
        raise AsmilError(f"--mpp {mpp:g} is not a positive number; give microns per level-0 pixel, e.g. 0.25")
    return [replace(slide, mpp=mpp) if slide.mpp is None else slide for slide in slides]


def shard(slides: Sequence[SlideFile], text: str | None) -> list[SlideFile]:
    """The i-th of n parts, written i/n and counted from 1; every slide is in exactly one part.

    >>> [slide.name for slide in shard([SlideFile(name, Path(name)) for name in "abcde"], "2/2")]
    ['b', 'd']
    """
    if text is None:
        return list(slides)
    number, _, total = text.partition("/")
    if not (number.isdecimal() and total.isdecimal() and 1 <= int(number) <= int(total)):
        raise AsmilError(f"--shard {text}: write it as part/parts, e.g. 3/16 for the third of sixteen parts")
    return list(slides)[int(number) - 1 :: int(total)]
