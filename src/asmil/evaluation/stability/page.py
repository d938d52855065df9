"""The stability page: alarms in words, tables and pictures, in one HTML file that needs nothing else."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path

from asmil.errors import AsmilError
from asmil.evaluation.page_parts import caveat_section, image, settings_block, whole_page
from asmil.evaluation.stability.analysis import RunStability
from asmil.evaluation.stability.bag_features import bag_feature_picture
from asmil.evaluation.stability.choice import choose_slide
from asmil.evaluation.stability.course import course_picture
from asmil.evaluation.stability.maps import map_picture
from asmil.evaluation.stability.page_tables import agreement_table, slide_table, summary_table
from asmil.evaluation.stability.picture import Picture, write_pictures
from asmil.evaluation.stability.score_histograms import histogram_picture
from asmil.evaluation.stability.tables import run_names, summary_of
from asmil.files import write_text
from asmil.reporting.formats import format_count

PICTURES_FOLDER = "stability_pictures"

CAVEATS = (
    "The attention is that of the whole model in evaluation mode, with all tiles of the slide. JSD is the "
    "Jensen-Shannon divergence in nats, from 0 (equal) to ln 2 = 0.69 (no tile in common).",
    "JSD mean is over all recordings, late over the last 10 (the last half of fewer than 20), each to the recording "
    "before it; it depends on how often was recorded. Relative is the late JSD as a share of what the attention says, "
    "ln N - entropy: a flat attention has a small JSD for free.",
    "Concentration is that of the weights that were kept: effective share exp(entropy) / N, peak × N the heaviest "
    "tile against its fair share, Gini 0 for uniform and near 1 for one tile, top-1 % mass the weight of the heaviest "
    "hundredth of the tiles.",
    "Seeds agree: the part of the heaviest 1 % of tiles that two seeds share (by chance 1 %), and the rank correlation "
    "of all tiles.",
    "Recorded slides are few and chosen by their order, not at random; slides of the training part were seen while "
    "training. Stable attention is no proof of right attention: measure that against annotations.",
)


def write_stability_page(
    stabilities: Sequence[RunStability], folder: Path, slide: str | None = None, epochs: Sequence[float] | None = None
) -> Path:
    """Write `stability.html`, and its pictures as files of their own; return the path of the page.

    slide, epochs: what the attention maps show; by default a slide of the last class, from the start to the end
    """
    if not stabilities:
        raise AsmilError("there is nothing to show: give at least one run with recorded attention")
    names = run_names(stabilities)
    shared = [course_picture(stabilities), map_picture(stabilities, choose_slide(stabilities, slide), epochs)]
    single = [[histogram_picture(stability), bag_feature_picture(stability, epochs)] for stability in stabilities]
    blocks = [
        _header(stabilities),
        _alarms(stabilities, names),
        _results(stabilities, shared),
        *map(_run, names, stabilities, _told_once(single)),
        caveat_section([*CAVEATS, *_own_caveats(stabilities, names)]),
    ]
    pictures = folder / PICTURES_FOLDER
    write_pictures(shared, pictures)
    for place, found in enumerate(single, 1):
        write_pictures(found, pictures if len(stabilities) == 1 else pictures / f"run-{place}")
    page = folder / "stability.html"
    write_text(page, whole_page(f"Stability: {', '.join(names)}", blocks))
    return page


def _header(stabilities: Sequence[RunStability]) -> str:
    title = stabilities[0].name if len(stabilities) == 1 else f"{len(stabilities)} runs compared"
    slides = len({slide for stability in stabilities for slide in stability.slides["slide"]})
    trainings = sum(len(stability.trainings) for stability in stabilities)
    size = f"{format_count(slides, 'recorded slide')}, {format_count(trainings, 'training')}"
    return f"<header><p>Stability of the attention</p><h1>{escape(title)}</h1><p>{size}.</p></header>"


def _alarms(stabilities: Sequence[RunStability], names: Sequence[str]) -> str:
    items = [
        f'<p class="note">{f"<b>{escape(name)}</b>: " if len(names) > 1 else ""}{_prose(_sentence(alarm.text))} '
        f"{_prose(alarm.advice)}</p>"
        for name, stability in zip(names, stabilities, strict=True)
        for alarm in stability.alarms
    ]
    quiet = [name for name, stability in zip(names, stabilities, strict=True) if not stability.alarms]
    if quiet:
        which = f" for {escape(', '.join(quiet))}" if len(names) > 1 else ""
        items.append(
            f"<p>None{which}: on most recorded slides the attention is neither flat nor on one tile, does not move at "
            "the end, and is alike between seeds where there are several.</p>"
        )
    return f"<section><h2>Alarms</h2>{''.join(items)}</section>"


def _results(stabilities: Sequence[RunStability], pictures: Sequence[Picture]) -> str:
    note = "Means over slides and seeds, and the standard deviation over seeds. Always read JSD beside concentration."
    return (
        f"<section><h2>Movement and concentration</h2><p>{note}</p>{summary_table(stabilities)}"
        f"{''.join(map(_picture, pictures))}</section>"
    )


def _told_once(pictures_by_run: Sequence[Sequence[Picture]]) -> list[list[Picture]]:
    """The pictures, where a caption that stood under an earlier run's is cut short."""
    told: set[str] = set()
    shortened = []
    for pictures in pictures_by_run:
        repeats = [picture.content is not None and picture.caption in told for picture in pictures]
        told |= {picture.caption for picture in pictures}
        shortened.append(
            [replace(one, caption="As above.") if again else one for one, again in zip(pictures, repeats, strict=True)]
        )
    return shortened


def _run(name: str, stability: RunStability, pictures: Sequence[Picture]) -> str:
    blocks = [
        f"<h2>{escape(name)}</h2>" + (f"<p>{escape(stability.label)}</p>" if stability.label != name else ""),
        *map(_picture, pictures),
        slide_table(stability),
        agreement_table(stability),
        settings_block(stability.config),
    ]
    return f"<section>{''.join(blocks)}</section>"


def _picture(picture: Picture) -> str:
    return f"<h3>{picture.title}</h3><p>{_prose(picture.caption)}</p>{image(picture.content, picture.title)}"


def _own_caveats(stabilities: Sequence[RunStability], names: Sequence[str]) -> list[str]:
    sentences = []
    recorded: Mapping[str, frozenset[str]] = {
        name: frozenset(stability.slides["slide"]) for name, stability in zip(names, stabilities, strict=True)
    }
    if len(set(recorded.values())) > 1:
        sentences.append("The runs did not record the same slides; their numbers compare only roughly.")
    if len({training.record.every for stability in stabilities for training in stability.trainings}) > 1:
        sentences.append("The runs did not record equally often; their JSDs do not compare.")
    for name, stability in zip(names, stabilities, strict=True):
        summary = summary_of(stability)
        asked, ended = summary["trainings_asked_for"], summary["trainings_finished"]
        if ended < asked:
            sentences.append(
                f"{name}: {ended} of {asked} trainings have ended; the others are shown as far as they are."
            )
    return sentences


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _prose(text: str) -> str:
    """Escaped text, with what stands between backticks set as code."""
    return re.sub("`([^`]*)`", r"<code>\1</code>", escape(text))
