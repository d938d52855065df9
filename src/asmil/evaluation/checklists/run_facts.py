"""Facts about a run: the model, its patients, and its performance on its own test patients."""

from __future__ import annotations

from asmil.cohort.splits import ROLES
from asmil.errors import AsmilError
from asmil.evaluation.checklists.facts import fact
from asmil.evaluation.checklists.known import Known, at
from asmil.evaluation.checklists.phrases import cross_table, intervals_of, joined, number, numbers, slides_of, span
from asmil.evaluation.site_overlap import site_overlap
from asmil.models.registry import find_method
from asmil.reporting.formats import format_count, format_number
from asmil.runs.described import cap_sentence, schedule_sentence, selection_sentence

CONFIG, SPLITS, EVALUATION, POINT = "config.yaml", "splits.csv", "evaluation.json", "operating_point.json"
PARTS = {"train": "training", "val": "validation", "test": "test"}


# The model


@fact(CONFIG)
def _model(known: Known) -> str | None:
    try:
        method = find_method(known.run.method)
    except AsmilError:  # the user's own code
        return f"Method {known.run.method}."
    return f"Method {method.name}: {method.summary} ({method.paper}, {method.year})."


@fact(CONFIG)
def _outcome(known: Known) -> str | None:
    run = known.run
    if run.kind == "survival":
        return f"Time to an event, in {run.time_unit}."
    return f"{'Labels' if run.kind == 'multilabel' else 'Classes'}: {', '.join(run.classes)}." if run.classes else None


@fact(CONFIG)
def _predictors(known: Known) -> str | None:
    names = known.run.settings.covariates
    per = "all slides of a patient" if known.run.unit == "patient" else "one slide"
    return (
        f"Features of the tiles of {per}{f' and the covariates {joined(names)}' if names else '; no other variable'}."
    )


@fact(CONFIG)
def _features(known: Known) -> str | None:
    stored = at(known.run.values, "features") or {}
    parts = [f"{stored['width']} numbers per tile"] if stored.get("width") else []
    parts += [f"encoder {stored['encoder']}"] if stored.get("encoder") else []
    parts += [f"SHA-256 of its weights {stored['weights_hash']}"] if stored.get("weights_hash") else []
    parts += [f"tiles of {stored['tile_um']:g} um"] if stored.get("tile_um") else []
    parts += [f"{stored['tile_px']} px"] if stored.get("tile_px") else []
    missing = [name for name, key in {"encoder": "encoder", "tile size": "tile_um"}.items() if not stored.get(key)]
    unknown = f" The feature files do not state the {joined(missing)}." if missing else ""
    return f"{joined(parts)}.{unknown}" if parts else None


@fact(CONFIG)
def _extraction(known: Known) -> str | None:
    made = at(known.run.values, "features", "extraction")
    if not isinstance(made, dict):
        return None
    overlap, share = at(made, "tiling", "overlap") or 0, at(made, "tiling", "min_tissue")
    tiles = f"tiles {'without overlap' if not overlap else f'with an overlap of {overlap:g}'}"
    tissue = f" with at least {100 * share:g} % tissue" if share is not None else ""
    left_out = f"; left out: {joined(made['leave_out'])}" if made.get("leave_out") else ""
    return f"Tissue found by the method {at(made, 'tissue', 'method')}; {tiles}{tissue}{left_out}."


@fact(CONFIG)
def _tiles_used(known: Known) -> str | None:
    return cap_sentence(known.run.settings)


@fact(CONFIG)
def _training(known: Known) -> str | None:
    stored = at(known.run.values, "training") or {}
    if not stored.get("epochs"):
        return None
    preset, bags = known.run.settings.preset or "none", format_count(stored.get("batch") or 1, "bag")
    rate = schedule_sentence(known.run.settings).partition(";")[0].rstrip(".")
    return (
        f"Preset {preset}: {stored['epochs']} epochs, optimizer {stored.get('optimizer')}, weight decay "
        f"{stored.get('weight_decay')}, {bags} per step, first seed {stored.get('seed')}. Learning rate: {rate}."
    )


@fact(CONFIG)
def _selection(known: Known) -> str | None:
    splits = known.run.splits
    if splits is None:
        return None
    has_validation = bool((splits.table["role"] == "val").any())
    return selection_sentence(known.run.settings, "test", has_validation, "validation metric")


@fact(CONFIG)
def _tuning(known: Known) -> str | None:
    folds = at(known.run.values, "nested", "folds")
    if not folds:
        return "asmil chose no settings in this run (nested.folds: 0)."
    grid = ", ".join(at(known.run.values, "nested", "grid") or {})
    return f"Settings ({grid}) were chosen in every fold by cross-validation with {folds} inner folds."


@fact(CONFIG)
def _imbalance(known: Known) -> str | None:
    stored = at(known.run.values, "training") or {}
    weights, sampling = stored.get("class_weights"), stored.get("sampling")
    if known.run.kind != "classification" or weights is None:
        return None
    none = weights == "none" and sampling == "shuffle"
    return f"{'No class weights and no resampling' if none else f'Class weights {weights}, sampling {sampling}'}."


@fact(CONFIG)
def _output(known: Known) -> str | None:
    run = known.run
    given = (
        f"Probabilities of {joined(run.classes)}" if run.classes else {"survival": "A risk"}.get(run.kind, "A number")
    )
    return f"{given} per {run.unit}."


@fact("checkpoints")
def _models(known: Known) -> str | None:
    trainings = list(known.run.layout.trainings())
    folds, seeds = (len({training[i] for training in trainings}) for i in (0, 1))
    n = len(trainings)
    mean = " New slides get the mean of their predictions." * (n > 1)
    return f"{format_count(n, 'model')} ({format_count(folds, 'fold')}, {format_count(seeds, 'seed')}).{mean}"


@fact(POINT)
def _threshold(known: Known) -> str | None:
    point = known.run.operating_point
    if point is None:
        return None
    return (
        f"{point.positive} from a probability of {format_number(point.threshold)}, chosen on validation slides by the "
        f"rule {point.rule}."
    )


@fact(CONFIG)
def _decisions(known: Known) -> str | None:
    return "The model gives a probability in every case." if known.run.classes else None


@fact(CONFIG)
def _software(known: Known) -> str | None:
    version = known.run.values.get("asmil")
    return f"asmil {version}." if version else None


@fact(CONFIG)
def _settings_file(known: Known) -> str | None:
    return (
        "All settings are in config.yaml and the weights in checkpoints; `asmil export` writes both, with a model card "
        "and without patient data, as a bundle for sharing."
    )


@fact(CONFIG)
def _data_identity(known: Known) -> str | None:
    rows, of_features = (at(known.run.values, "cohort", name) for name in ("rows_sha256", "features_sha256"))
    return f"SHA-256 of the table of slides: {rows}; of the features: {of_features}." if rows and of_features else None


@fact("predictions.parquet")
def _outputs_stored(known: Known) -> str | None:
    return None if known.run.is_bundle else "The predictions of every slide, fold and seed are stored with the run."


# Patients


@fact(SPLITS)
def _cohort(known: Known) -> str | None:
    if known.run.splits is None:
        return None
    table = known.run.splits.table
    return f"Development: {slides_of(table['slide'].nunique(), table['patient'].nunique())}."


@fact(SPLITS)
def _partition(known: Known) -> str | None:
    splits = known.run.splits
    if splits is None:
        return None
    sites = ", each of which tests one site" if splits.sites else ""
    how = f"Cross-validation with {splits.n_folds} folds{sites}" if splits.n_folds > 1 else "One split"
    shared = splits.table.groupby(["fold", "patient"])["role"].nunique().gt(1).sum()
    return f"{how}; {'no patient is' if not shared else f'{shared} patients are'} in two parts of a fold."


@fact(SPLITS)
def _parts(known: Known) -> str | None:
    splits = known.run.splits
    if splits is None:
        return None
    said = []
    for role in ROLES:
        part = splits.table[splits.table["role"] == role]
        if len(part):
            by_fold = part.groupby("fold")[["slide", "patient"]].nunique()
            slides, patients = (span(by_fold[column].tolist()) for column in by_fold)
            said.append(f"{PARTS[role]} {slides} slides of {patients} patients")
    return f"{'In each fold: ' * (splits.n_folds > 1)}{'; '.join(said)}."


@fact("manifest")
def _sites(known: Known) -> str | None:
    overlap = site_overlap(known.run)
    return None if overlap is None else overlap.sentence


@fact(EVALUATION)
def _outcome_counts(known: Known) -> str | None:
    classes = known.evaluated.get("per_class") or known.evaluated.get("per_label") or []
    counted = [f"{row.get('class')} {row.get('support')}" for row in classes if row.get("support") is not None]
    sizes = "" if known.evaluation is None else known.evaluation.sizes
    return f"Test set: {sizes}{f' ({joined(counted)})' if counted else ''}." if sizes else None


# Performance on the run's own test patients


@fact(EVALUATION)
def _measures(known: Known) -> str | None:
    if known.evaluation is None:
        return None
    names = _titles(known)
    return f"{joined([names.get(name, name) for name in known.evaluation.metrics])}, {intervals_of(known.evaluated)}"


@fact(EVALUATION)
def _performance(known: Known) -> str | None:
    if known.evaluation is None:
        return None
    names, metrics = _titles(known), at(known.evaluated, "metrics") or {}
    shown = ", ".join(f"{names.get(name, name)} {number(metric)}" for name, metric in metrics.items())
    return f"Internal, {known.evaluation.sizes}: {shown}."


@fact(EVALUATION)
def _at_threshold(known: Known) -> str | None:
    metrics = at(known.evaluated, "operating_point", "metrics")
    return f"Internal, at the threshold: {numbers(metrics)}." if metrics else None


@fact(EVALUATION)
def _confusion(known: Known) -> str | None:
    counts, by = (at(known.evaluated, "confusion", name) for name in ("counts", "predicted_class_by"))
    return f"Internal ({by}): {cross_table(known.run.classes, counts)}." if counts else None


@fact(EVALUATION)
def _calibration(known: Known) -> str | None:
    found = at(known.evaluated, "calibration", "as_predicted")
    if not found:
        return None
    return f"Internal: expected calibration error {format_number(found['ece'])}, Brier {format_number(found['brier'])}."


@fact(EVALUATION)
def _variability(known: Known) -> str | None:
    if known.evaluation is None or known.evaluation.n_trainings < 2:
        return None
    names, spreads = _titles(known), at(known.evaluated, "metrics") or {}
    sds = [
        f"{names.get(name, name)} {format_number(sd)}"
        for name, metric in spreads.items()
        if (sd := metric.get("sd_trainings")) is not None
    ]
    return f"Standard deviation over {known.evaluation.n_trainings} trainings: {', '.join(sds)}." if sds else None


@fact(EVALUATION)
def _warnings(known: Known) -> str | None:
    if known.evaluation is None:
        return None
    return " ".join([*(alarm.finding for alarm in known.evaluation.raised), *known.evaluation.warnings]) or None


def _titles(known: Known) -> dict[str, str]:
    return {metric.name: metric.title for metric in known.run.format.metrics}
