"""The methods paragraph of a manuscript and its references, from the settings of runs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from asmil.models.registry import methods
from asmil.reporting.formats import format_count
from asmil.runs.described import cap_sentence, selection_sentence
from asmil.runs.run import Run

STATISTICS = {
    "efron1993": """@book{efron1993,
  author = {Efron, Bradley and Tibshirani, Robert J.},
  title = {An Introduction to the Bootstrap},
  publisher = {Chapman and Hall},
  year = {1993},
}""",
    "holm1979": """@article{holm1979,
  author = {Holm, Sture},
  title = {A Simple Sequentially Rejective Multiple Test Procedure},
  journal = {Scandinavian Journal of Statistics},
  volume = {6},
  number = {2},
  pages = {65--70},
  year = {1979},
}""",
    "delong1988": """@article{delong1988,
  author = {DeLong, Elizabeth R. and DeLong, David M. and Clarke-Pearson, Daniel L.},
  title = {Comparing the Areas under Two or More Correlated Receiver Operating Characteristic Curves: A Nonparametric
    Approach},
  journal = {Biometrics},
  volume = {44},
  number = {3},
  pages = {837--845},
  year = {1988},
}""",
    "nadeau2003": """@article{nadeau2003,
  author = {Nadeau, Claude and Bengio, Yoshua},
  title = {Inference for the Generalization Error},
  journal = {Machine Learning},
  volume = {52},
  pages = {239--281},
  year = {2003},
}""",
    "vickers2006": """@article{vickers2006,
  author = {Vickers, Andrew J. and Elkin, Elena B.},
  title = {Decision Curve Analysis: A Novel Method for Evaluating Prediction Models},
  journal = {Medical Decision Making},
  volume = {26},
  number = {6},
  pages = {565--574},
  year = {2006},
}""",
    "zou2008": """@article{zou2008,
  author = {Zou, Guang Yong and Donner, Allan},
  title = {Construction of Confidence Limits about Effect Measures: A General Approach},
  journal = {Statistics in Medicine},
  volume = {27},
  pages = {1693--1702},
  year = {2008},
}""",
}
"""Of the statistics, by their keys."""
LISTED = re.compile(r"(?P<author>[^,;]+) et al\., (?P<title>.+)")
TASKS = {
    "classification": "to classify slides as {classes}",
    "multilabel": "to predict the labels {classes}",
    "survival": "to predict survival",
    "regression": "to predict a value",
}


def methods_paragraphs(
    folders: Sequence[Path],
    names: Mapping[Path, str],
    comparison: Mapping[str, Any] | None,
    validations: Sequence[Mapping[str, Any]] = (),
) -> list[str]:
    """Cohort, training, validation and statistics, one paragraph per cohort; citations as `[@key]`.

    names: of runs that have others than those of their folders
    comparison: the content of `comparison.json`, if the runs were compared
    validations: the content of every `validation.json`
    """
    validated = list(map(_validation, validations))
    if not folders:
        return validated
    by_cohort: dict[tuple[Any, ...], list[Run]] = {}
    for folder in folders:
        run = Run(folder)
        run = run.called(names.get(folder.resolve(), run.name))
        by_cohort.setdefault((run.cohort.manifest, run.kind, run.n_folds, run.settings.seeds), []).append(run)
    paragraphs = [_paragraph(runs) for runs in by_cohort.values()]
    return [*paragraphs, *validated, _statistics(folders, comparison), _software(by_cohort.values())]


def references(
    folders: Sequence[Path], comparison: Mapping[str, Any] | None, validations: Sequence[Mapping[str, Any]] = ()
) -> str:
    """BibTeX of the methods and the statistics."""
    known = methods()
    named = dict.fromkeys(Run(folder).method for folder in folders)
    entries = [_entry(key, paper, known[name].year) for name in named for key, paper in _papers(name).items()]
    software = f"@software{{asmil, author = {{{{The asmil developers}}}}, title = {{asmil}}, version = {{{_asmil()}}}}}"
    cited = {*_keys(comparison), *re.findall(r"@(\w+)", " ".join(map(_validation, validations)))}
    return "\n\n".join([*entries, *(entry for key, entry in STATISTICS.items() if key in cited), software]) + "\n"


def _paragraph(runs: Sequence[Run]) -> str:
    first = runs[0]
    named = list(map(_cited, runs))
    task = TASKS[first.kind].format(classes=" or ".join(first.classes))
    sentences = [f"We trained {_listed(named)} {task} on {_sizes(first)}. {_splits(first)}", _features(first)]
    for describe in (_training, _anchor):
        settings: dict[str, list[str]] = {}
        for run in runs:
            settings.setdefault(describe(run), []).append(run.name)
        said = {sentence: names for sentence, names in settings.items() if sentence}
        sentences += [s if len(names) == len(runs) else f"{_listed(names)}: {s}" for s, names in said.items()]
    return " ".join(filter(None, sentences))


def _sizes(run: Run) -> str:
    if run.splits is None:
        return "the cohort"
    table = run.splits.table
    slides, patients = table["slide"].nunique(), table["patient"].nunique()
    return f"{format_count(slides, 'slide')} of {format_count(patients, 'patient')}"


def _splits(run: Run) -> str:
    folds, seeds = run.n_folds, run.settings.seeds or 1
    by_site = run.values.get("data", {}).get("leave_out") == "site"
    if by_site:
        split = "Each site was the test set of one fold (leave-one-site-out)"
    elif folds > 1:
        split = f"We used {folds}-fold cross-validation, with all slides of a patient in the same part"
    else:
        split = "The split into training, validation and test sets keeps all slides of a patient together"
    trained = f"We trained {'each fold' if folds > 1 else 'the model'} with {seeds} seeds."
    return f"{split}. {trained}" if seeds > 1 else f"{split}."


def _features(run: Run) -> str:
    features = run.values.get("features", {})
    encoder, um, px = (features.get(name) for name in ("encoder", "tile_um", "tile_px"))
    tiles = f" on tiles of {um:g} µm" if um else ""
    tiles += f" ({px:g} pixels)" if tiles and px else ""
    source = f"computed with {encoder}{tiles}" if encoder else f"computed beforehand [encoder: for the authors]{tiles}"
    return f"Tile features have {features.get('width', 'an unknown number of')} values and were {source}."


def _training(run: Run) -> str:
    """Optimizer, epochs, tiles and selection, in sentences."""
    training, settings = run.values.get("training", {}), run.settings
    optimizer = str(training.get("optimizer", "an unknown optimizer")).replace("adam", "Adam")
    bags = training.get("batch", 1) * training.get("accumulate", 1)
    rate, schedule = settings.training.lr, settings.training.schedule
    words = [
        f"{optimizer}, learning rate {'unknown' if rate is None else f'{rate:g}'} ({schedule} schedule)",
        f"weight decay {training.get('weight_decay', 0):g}",
        f"{format_count(bags, run.unit)} per step",
        format_count(training.get("epochs", 0), "epoch"),
    ]
    has_validation = run.splits is not None and "val" in set(run.splits.table["role"])
    chosen = selection_sentence(settings, "test", has_validation, run.format.selected_by)
    plain = [re.sub(r" \([\w.]+[^)]*\)", "", sentence) for sentence in (cap_sentence(settings), chosen)]
    preset = f"preset {settings.preset}" if settings.preset else "own settings"
    return f"Training ({preset}) used {', '.join(words)}. {' '.join(plain)}"


def _anchor(run: Run) -> str:
    anchor = run.settings.anchor
    if not run.settings.has_anchor:
        return ""
    weight = 1 if anchor.weight is None else anchor.weight
    return f"Attention was anchored (normalizer {anchor.normalizer}, weight {weight:g})."


def _validation(content: Mapping[str, Any]) -> str:
    """How a model was validated on new patients, from `validation.json`."""
    model, cohort, overlap = content["model"], content["cohort"], content["overlap"]
    size = f"{format_count(cohort['slides'], 'slide')} of {format_count(cohort['patients'], 'patient')}"
    new = " that were not in its training" if overlap["known"] and not overlap["slides"] else ""
    sentences = [f"{model['name']} was validated on {size}{new}; no model or threshold was fitted or chosen on them."]
    if overlap["slides"]:
        sentences.append(f"Of these, {format_count(len(overlap['slides']), 'slide')} overlap with the training.")
    if cohort["not_predicted"]:
        sentences.append(f"{format_count(len(cohort['not_predicted']), 'slide')} could not be predicted.")
    if any(metric.get("difference") for metric in content["performance"]["metrics"].values()):
        sentences.append("Intervals of differences to the internal estimate combine both intervals [@zou2008].")
    verdict = content["performance"].get("non_inferiority")
    if verdict:
        sentences.append(f"The margin of non-inferiority was {verdict['margin']:g}.")
    if model["task"] == "classification":
        sentences.append(
            "Calibration was assessed by intercept, slope and a logistic regression on a restricted cubic spline of "
            "the logit."
        )
    elif "calibration" in content:
        sentences.append("Calibration was assessed by comparing mean predicted survival with Kaplan-Meier estimates.")
    if "decision_curve" in content:
        sentences.append("Clinical usefulness was assessed by net benefit [@vickers2006].")
    tests = content.get("subgroups", {}).get("interactions", [])
    if tests:
        variables = _listed(list(dict.fromkeys(test["variable"] for test in tests)))
        sentences.append(
            f"Subgroups by {variables} were tested for differences, with p-values adjusted by Holm [@holm1979]."
        )
    return " ".join(sentences)


def _statistics(folders: Sequence[Path], comparison: Mapping[str, Any] | None) -> str:
    resamples = next((n for folder in folders if (n := _resamples(folder))), (comparison or {}).get("bootstrap", {}))
    times = f"{resamples} " if isinstance(resamples, int) else ""
    sentences = [f"Intervals are 95 % percentile intervals of {times}bootstrap resamples of patients [@efron1993]."]
    keys = _keys(comparison)
    if "holm1979" in keys:
        sentences.append(
            "Differences between methods were resampled jointly by patient and separately by seed; p-values were "
            "adjusted by Holm's method [@holm1979]."
        )
    if "delong1988" in keys:
        sentences.append("AUCs of seed ensembles were compared with DeLong's test [@delong1988].")
    if "nadeau2003" in keys:
        sentences.append("Differences over folds were tested with the corrected resampled t-test [@nadeau2003].")
    return " ".join(sentences)


def _resamples(folder: Path) -> int | None:
    file = folder / "evaluation.json"
    return json.loads(file.read_text(encoding="utf-8"))["bootstrap"]["resamples"] if file.is_file() else None


def _keys(comparison: Mapping[str, Any] | None) -> list[str]:
    """The keys of the statistics that were used."""
    tested = [] if comparison is None else comparison["differences"]
    delong = any(str((row.get("ensemble") or {}).get("test", "")).startswith("DeLong") for row in tested)
    folds = any(row.get("folds") for row in tested)
    return ["efron1993", *["holm1979"] * bool(tested), *["delong1988"] * delong, *["nadeau2003"] * folds]


def _software(groups: Iterable[Sequence[Run]]) -> str:
    used = dict.fromkeys(str(run.values.get("asmil", "unknown")) for runs in groups for run in runs)
    torch = f"[version: for the authors; {version('torch')} is installed where this text was written]"
    return f"Models were trained with asmil {_listed(list(used))} [@asmil] and PyTorch {torch}."


def _asmil() -> str:
    from asmil.version import __version__

    return __version__


def _papers(method: str) -> dict[str, str]:
    """The papers of a method by their keys; none for the user's own code and for methods without a paper."""
    known = methods().get(method)
    papers = [] if known is None else [paper.strip() for paper in known.paper.split(";") if LISTED.match(paper.strip())]
    year = "" if known is None else known.year
    return {f"{method}{year}{'abc'[number] * (len(papers) > 1)}": paper for number, paper in enumerate(papers)}


def _entry(key: str, paper: str, year: int) -> str:
    parts = LISTED.match(paper)
    assert parts is not None
    author, title = parts["author"], parts["title"]
    return f"@misc{{{key},\n  author = {{{author} and others}},\n  title = {{{{{title}}}}},\n  year = {{{year}}},\n}}"


def _cited(run: Run) -> str:
    keys = "; ".join(f"@{key}" for key in _papers(run.method))
    return f"{run.name} [{keys}]" if keys else run.name


def _listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
