"""Detect cohorts whose features were extracted in different ways: a model would learn the difference."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from asmil.cohort.problems import Problem, problems_of, raise_errors
from asmil.cohort.source import FeatureInfo, read_extraction
from asmil.errors import AsmilError

# scanners with the same nominal magnification differ by 2 to 3 %, adjacent magnifications by far more
TOLERANCE = 0.05


def refuse_mixed(infos: Iterable[FeatureInfo]) -> None:
    """Raise if the files of a cohort differ in encoder, width, tile resolution or tile size."""
    raise_errors(mixture_problems(list(infos)))


def mixture_problems(infos: Sequence[FeatureInfo]) -> list[Problem]:
    """One problem for each property in which files differ; files that do not state a property are skipped."""
    filled = [info for info in infos if info.n_tiles > 0]
    # sizes in pixels are compared only if no file states microns
    pixels_only = [info for info in filled if info.tile_side_um is None]
    vectors = {True: "one vector per slide", False: "features of tiles"}
    by_kind = _exact(filled, lambda info: vectors[info.may_be_slide_vector])
    kinds = [
        ("kinds of features", by_kind if any(info.slide_vector for info in filled) else {}),
        ("encoders", _exact(filled, _encoder)),
        ("kinds of coarser tiles", _exact(filled, lambda info: info.coarser)),
        ("feature widths", _exact(filled, lambda info: f"{info.width} features")),
        ("resolutions of the tiles", _near(filled, lambda info: info.tile_mpp, "um/px")),
        ("tile sizes", _near(filled, lambda info: info.tile_side_um, "um")),
        ("tile sizes", _near(pixels_only, lambda info: info.tile_px, "px")),
    ]
    problems = [_problem(what, groups) for what, groups in kinds if len(groups) > 1]
    extractions, unreadable = _by_extraction(filled)
    problems += unreadable
    if len(extractions) > 1:
        # different tissue settings are only a warning: the tiles themselves are comparable
        problems.append(replace(_problem("settings of `asmil extract`", extractions), severity="warning"))
    return problems


def _encoder(info: FeatureInfo) -> str | None:
    if info.encoder is None or info.weights_hash is None:
        return info.encoder
    return f"{info.encoder} (weights {info.weights_hash[:12]})"


def _by_extraction(infos: Sequence[FeatureInfo]) -> tuple[dict[str, list[FeatureInfo]], list[Problem]]:
    """The files grouped by their extraction settings, and those whose settings cannot be read."""
    groups: dict[str, list[FeatureInfo]] = defaultdict(list)
    problems: list[Problem] = []
    for info in infos:
        try:
            if (record := read_extraction(info)) is not None:
                settings = json.dumps(record.settings, sort_keys=True).encode()
                groups[f"settings {hashlib.sha256(settings).hexdigest()[:8]}"].append(info)
        except AsmilError as error:
            problems += problems_of(error, info.source)
    return groups, problems


def _exact(infos: Sequence[FeatureInfo], value: Callable[[FeatureInfo], str | None]) -> dict[str, list[FeatureInfo]]:
    groups: dict[str, list[FeatureInfo]] = defaultdict(list)
    for info in infos:
        if (name := value(info)) is not None:
            groups[name].append(info)
    return groups


def _near(
    infos: Sequence[FeatureInfo], value: Callable[[FeatureInfo], float | None], unit: str
) -> dict[str, list[FeatureInfo]]:
    known = sorted(((size, n) for n, info in enumerate(infos) if (size := value(info)) is not None))
    groups: dict[str, list[FeatureInfo]] = {}
    smallest = 0.0
    for size, n in known:
        if size > smallest * (1 + TOLERANCE):
            smallest = size
        groups.setdefault(f"{smallest:.4g} {unit}", []).append(infos[n])
    return groups


def _problem(what: str, groups: dict[str, list[FeatureInfo]]) -> Problem:
    largest_first = sorted(groups.items(), key=lambda item: -len(item[1]))
    kinds = ", ".join(f"{name} in {len(infos)} (e.g. {infos[0].source})" for name, infos in largest_first[:5])
    more = f" and {len(groups) - 5} more" if len(groups) > 5 else ""
    todo = "extract all slides in the same way, or use only files of one kind"
    return Problem("error", "features", f"the cohort mixes {len(groups)} {what}: {kinds}{more}", todo)
