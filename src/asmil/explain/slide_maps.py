"""The maps of one slide: computed by the models of runs, or read from a file of scores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from asmil.cohort.bag import Bag
from asmil.cohort.features import inspect_features, read_bag
from asmil.cohort.source import FeatureInfo
from asmil.cohort.units import Unit
from asmil.errors import AsmilError
from asmil.explain.asked_slides import AskedSlide
from asmil.explain.caveats import attention_finding
from asmil.explain.color_scale import SIGNED_KINDS, SPREAD_KIND, average_weight, percentiles
from asmil.explain.kinds import titled
from asmil.explain.run_explainer import Outputs, RunExplainer, SlideExplanation, of_slide
from asmil.explain.score_files import find_scores, read_scores
from asmil.explain.settings import HeatmapSettings
from asmil.explain.tile_map import TileMap, checked_values, pixel_coords
from asmil.reporting.formats import format_count, format_number
from asmil.runs.attention_file import AttentionRecord, read_attention
from asmil.runs.run import Run
from asmil.runs.trained_models import TrainedModel
from asmil.tables.arrays import Floats, Integers
from asmil.tables.names import unique_names

MOST_EPOCHS = 8


@dataclass(frozen=True)
class SlidePrediction:
    """The prediction of a run for a slide, or for the patient of the slide.

    of: name of the slide or patient
    by_model: the probability of every class, or the single number of the task, one value per model
    decided: the predicted class; empty if the task has none
    about: the prediction in words
    """

    of: str
    by_model: Mapping[str, Floats]
    decided: str
    about: str


@dataclass(frozen=True)
class SlideMaps:
    """The maps of one slide, in the order of the panels.

    about: the sentence above them; measurements: further numbers per tile, by name
    prediction: of the first run; None if scores of a file are drawn
    main: index of the map for pictures of a single map: highest tiles, outlines, TIFF and QuPath
    """

    coords: Integers | None
    info: FeatureInfo | None
    maps: tuple[TileMap, ...]
    about: str
    measurements: dict[str, Floats] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    main: int = 0
    prediction: SlidePrediction | None = None


def maps_of_scores(asked: AskedSlide, scores: Path) -> SlideMaps:
    """The map of a file of scores; the coordinates are in this file, or in the features of the slide."""
    path = find_scores(scores, asked.name)
    scored = read_scores(path)
    coords, info = scored.coords, None
    if asked.slide is not None:
        info = inspect_features(asked.slide.source)
        if coords is None:
            coords = pixel_coords(read_bag(asked.slide.source, asked.name, asked.mpp), info)
    if coords is None:
        raise AsmilError(
            f"{asked.name}: {path} has no coordinates, and no features of this slide with coordinates were found; add "
            "columns x and y, or give its feature file, which is named like the slide, with --features"
        )
    values = checked_values(asked.name, scored.values, len(coords))
    missing = int(np.isnan(values).sum())
    notes = [f"{missing} of {len(values)} tiles have no value and are not drawn"] * bool(missing)
    shown = TileMap(values, scored.name, average=average_weight(scored.name, values))
    notes += _findings([shown])
    return SlideMaps(coords, info, (shown,), f"{scored.name} from {path.name}", notes=tuple(notes))


def maps_of_runs(asked: AskedSlide, explainers: Sequence[RunExplainer], settings: HeatmapSettings) -> SlideMaps:
    """The maps of a slide by the models of runs."""
    if asked.slide is None:
        raise AsmilError(
            f"{asked.name}: no features of this slide were found; extract it, or name slides that have some"
        )
    first = explainers[0]
    bag, headers, number = _bag(asked, first.run)
    for explainer in explainers[1:]:
        _refuse_other_features(headers, explainer.run)
    outputs = [explainer.outputs(bag, explainer.run.trained_for(bag.id)) for explainer in explainers]
    said = first.said(first.run.trained_for(bag.id), outputs[0])
    first.refuse_unknown(settings.name)
    name = settings.name or max(said, key=lambda name: said[name])
    # a single run needs no name
    run_names = unique_names([explainer.run.path for explainer in explainers]) if len(explainers) > 1 else [""]
    named_runs, main = list(zip(explainers, run_names, outputs, strict=True)), 0
    if settings.by == "epoch":
        by_run = [list(_epoch_maps(asked, bag, *pair)) for pair in zip(explainers, run_names, strict=True)]
        drawn = [tile_map for of_run in by_run for tile_map in of_run]
        main = len(by_run[0]) - 1  # the last epoch of the first run
    else:
        drawn = [tile_map for each in named_runs for tile_map in _maps(bag, *each, settings, name)]
    maps = tuple(replace(tile_map, values=of_slide(tile_map.values, bag, number)[0]) for tile_map in drawn)
    notes = [note for tile_map in drawn for note in tile_map.notes]
    # attention is flat when training starts, so only the last recorded epoch is examined
    notes += _findings(maps if settings.by != "epoch" else [maps[main]])
    if any(explainer.run.saw(bag.id) for explainer in explainers):
        notes.append("the models were trained on this slide")
    about = "; ".join(_prediction(*each, bag.id, name) for each in named_runs)
    measurements = first.tile_probabilities(bag) if settings.qupath else {}
    measured = {key: of_slide(values, bag, number)[0] for key, values in measurements.items()}
    info = headers[number]
    coords = pixel_coords(of_slide(drawn[0].values, bag, number)[1], info)
    predicted = _slide_prediction(first, outputs[0], bag.id, _prediction(*named_runs[0], bag.id, name))
    return SlideMaps(coords, info, maps, about, measured, tuple(dict.fromkeys(notes)), main, predicted)


def _refuse_other_features(headers: Sequence[FeatureInfo], run: Run) -> None:
    """Raise if the feature files differ from those that another run was trained with."""
    for header in headers:
        try:
            run.description.refuse_other_features(header)
        except AsmilError as error:
            raise AsmilError(f"{run.path}: {error}, or draw this run by itself with its own features") from None


def _bag(asked: AskedSlide, run: Run) -> tuple[Bag, tuple[FeatureInfo, ...], int]:
    """The bag that the models see, its headers, and the index of the slide in it: a patient's slides may be joined."""
    assert asked.slide is not None
    if run.unit == "patient" and len(asked.joined) > 1:
        unit = Unit(asked.slide.patient, asked.slide.patient, asked.joined)
        return *run.bag(unit), [slide.slide for slide in asked.joined].index(asked.name)
    return *run.bag(asked.slide), 0


def _maps(
    bag: Bag, explainer: RunExplainer, run: str, outputs: Outputs, settings: HeatmapSettings, name: str
) -> Iterator[TileMap]:
    """The maps of a run: of every kind and group of models, and the spread over the groups. run: its name, or empty."""
    several_kinds = len(settings.kinds) > 1
    groups: dict[str, list[TrainedModel]] = {}
    for trained in explainer.run.trained_for(bag.id):
        labels = {"seed": f"seed {trained.seed}", "fold": explainer.run.fold_names[trained.fold]}
        groups.setdefault(labels.get(settings.by or "", ""), []).append(trained)
    for kind in settings.kinds or (None,):
        explanations = []
        for label, members in groups.items():
            explanation = explainer.explain(bag, kind, name, members, outputs)
            explanations.append(explanation)
            shown_kind = titled(explanation.kind) if several_kinds or not label else ""
            yield _tile_map(explanation, _joined(run, label, shown_kind), len(explainer.names) > 1)
        if len(explanations) > 1:
            ranks = [percentiles(explanation.values, np.sort(explanation.values)) for explanation in explanations]
            shown_kind = titled(explanations[0].kind) if several_kinds else ""
            title = _joined(run, shown_kind, f"spread over {settings.by}s")
            yield TileMap(np.std(ranks, axis=0), SPREAD_KIND, title=title)


def _epoch_maps(asked: AskedSlide, bag: Bag, explainer: RunExplainer, run: str) -> Iterator[TileMap]:
    """Attention that the first training with this slide recorded, at up to eight epochs."""
    training, record, index = _recorded(explainer.run, bag.id)
    if int(record.n_tiles[index]) != len(bag):
        raise AsmilError(
            f"{asked.name}: {record.path} has {int(record.n_tiles[index])} tiles, the features {len(bag)}; "
            "restore the features of the training"
        )
    chosen = np.unique(np.linspace(0, len(record.epochs) - 1, MOST_EPOCHS).round().astype(int))
    note = f"attention that was recorded in the training of {_joined(run, training)}"
    for recording, values in zip(chosen, record.attention(index, chosen.tolist()), strict=True):
        title = _joined(run, f"epoch {record.epochs[recording]:g}")
        yield TileMap(values, "attention", title=title, notes=(note,), average=average_weight("attention", values))


def _recorded(run: Run, slide: str) -> tuple[str, AttentionRecord, int]:
    known: list[str] = []
    for fold, seed, training in run.layout.trainings():
        record = read_attention(training)
        if record is not None and slide in record.slides:
            return f"{run.fold_names[fold]}, seed {seed}", record, record.slides.index(slide)
        known += [] if record is None else list(record.slides)
    if known:
        raise AsmilError(
            f"{slide}: its attention was not recorded during training; {run.path} recorded "
            f"{', '.join(sorted(set(known))[:5])}"
        )
    raise AsmilError(
        f"{run.path}: no attention was recorded during training; record that of four slides with "
        "`asmil train ... --set record.attention=4`"
    )


def _joined(*parts: str) -> str:
    return ", ".join(part for part in parts if part)


def _tile_map(explanation: SlideExplanation, title: str, classifies: bool) -> TileMap:
    kind = titled(explanation.kind)
    about = f"{kind}: above 0 {'is evidence for' if classifies else 'raises the'} {explanation.name}"
    signed = explanation.kind in SIGNED_KINDS
    average = average_weight(explanation.kind, explanation.values)
    return TileMap(explanation.values, kind, about if signed else "", title, explanation.notes, average, signed)


def _findings(maps: Sequence[TileMap]) -> list[str]:
    """Findings about the attention of each map, with its title if there are several maps."""
    findings = []
    for tile_map in maps:
        text = "" if tile_map.average is None else attention_finding(tile_map.values, tile_map.average)
        if text:
            findings.append(f"{tile_map.which}: {text}" if len(maps) > 1 and tile_map.which else text)
    return findings


def _slide_prediction(explainer: RunExplainer, outputs: Outputs, of: str, about: str) -> SlidePrediction:
    """The class is decided by the run's operating point or, without one, is the most probable one."""
    run = explainer.run
    by_model = explainer.said_by_model(run.trained_for(of), outputs)
    decided = ""
    if run.kind == "classification":
        means = {name: float(np.mean(values)) for name, values in by_model.items()}
        decided = max(means, key=lambda name: means[name])
        if (point := run.operating_point) is not None:
            other = next(name for name in means if name != point.positive)
            decided = point.positive if means[point.positive] >= point.threshold else other
            about = f"{about}; {point.positive} from a probability of {format_number(point.threshold)}"
    return SlidePrediction(of, by_model, decided, about)


def _prediction(explainer: RunExplainer, run: str, outputs: Outputs, slide: str, name: str) -> str:
    """The prediction of a run for a slide, as text. run: its name; if it is empty, the method is named instead."""
    run = run or explainer.run.method
    trained = explainer.run.trained_for(slide)
    shown = explainer.said(trained, outputs).get(name)
    if shown is None:
        return run
    classifies = len(explainer.names) > 1
    said = f"class {name}, probability {format_number(shown, 2)}" if classifies else f"{name} {format_number(shown)}"
    mean = f" (mean of {format_count(len(trained), 'model')})" if len(trained) > 1 else ""
    return f"{run}: {said}{mean}"
