"""Write a synthetic cohort to disk: feature files, manifest, truth of the tiles, and settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from asmil.cohort.features import Provenance, write_features
from asmil.cohort.tile_truth import TRUTH_FILE
from asmil.engine.jobs import Progress
from asmil.files import replacing
from asmil.settings.folder_settings import differing_settings
from asmil.synthetic.bags.outcomes import SurvivalConfig, SyntheticTask, lesion_shares, morphology_labels, patient_times
from asmil.synthetic.bags.plan import SlidePlan, SyntheticConfig, plan_slides
from asmil.synthetic.bags.slides import TILE_PX, SlideLayout, draw_features, draw_layout
from asmil.synthetic.bags.world import build_world
from asmil.synthetic.plan import MANIFEST, claim_cohort, write_manifest

MPP = 0.5
SETTINGS_FILE = "synthetic.yaml"
PATIENT_TRUTH = "patient_truth.parquet"


def write_synthetic(
    folder: Path | str,
    config: SyntheticConfig,
    progress: Progress | None = None,
    task: SyntheticTask = "classification",
    survival: SurvivalConfig | None = None,
    again: bool = False,
) -> Path:
    """Write the cohort into a folder and return the path of its manifest.

    Written are `synthetic.yaml` (the settings), `features/<slide>.h5` (float16), `tile_truth.parquet`
    (slide, tile, x, y, tumor, morphology, tissue, focus) and, last, `cohort.csv` (slide, patient, label,
    split, site; for survival time_months and event instead of the label, and `patient_truth.parquet` with the true
    risks).
    A second call with the same settings writes missing files; different settings are an error, unless `again`.

    task: the outcome in the manifest; the slides are the same for every task
    survival: settings of the survival times, for that task
    again: replace a cohort with different settings
    """
    folder = Path(folder)
    times = survival or SurvivalConfig()
    made = (TRUTH_FILE, PATIENT_TRUTH, "features/slide-*.h5")
    claim_cohort(folder / SETTINGS_FILE, _noted(config, task, times), "a synthetic cohort", again, made)
    plans = plan_slides(config)
    paths = [folder / "features" / f"{plan.slide}.h5" for plan in plans]
    manifest, truth, patients = (folder / name for name in (MANIFEST, TRUTH_FILE, PATIENT_TRUTH))
    wanted = [manifest, truth, *paths, *([patients] if task == "survival" else [])]
    if all(path.is_file() for path in wanted):
        return manifest
    world = build_world(config)
    tables = []
    for done, (plan, path) in enumerate(zip(plans, paths, strict=True), start=1):
        layout = draw_layout(config, plan)
        if not path.is_file():
            write_features(path, draw_features(world, plan, layout), layout.coords, _provenance(config, layout))
        tables.append(_tile_truth(plan, layout))
        if progress is not None:
            progress(done, len(plans))
    tiles = pd.concat(tables, ignore_index=True)
    _write_parquet(truth, tiles)
    if task == "survival":
        outcomes = patient_times(config, times, plans, tiles)
        _write_parquet(patients, outcomes)
        by_patient = outcomes.set_index("patient").loc[[plan.patient for plan in plans]]
        outcome = {"time_months": by_patient["time"].to_list(), "event": by_patient["event"].to_list()}
    elif task == "regression":
        outcome = {"label": lesion_shares(plans, tiles)}
    elif task == "multilabel":
        outcome = {"label": morphology_labels(plans, tiles)}
    else:
        outcome = {"label": [plan.class_name for plan in plans]}
    return write_manifest(folder, plans, outcome)


def is_synthetic(folder: Path, config: SyntheticConfig, task: SyntheticTask, survival: SurvivalConfig) -> bool:
    """Whether a folder contains this cohort, written to its end."""
    noted = _noted(config, task, survival)
    return (folder / MANIFEST).is_file() and not differing_settings(folder / SETTINGS_FILE, noted)


def _noted(config: SyntheticConfig, task: SyntheticTask, survival: SurvivalConfig) -> dict[str, Any]:
    """The settings of the cohort; for classification in the format of earlier versions, which had only this task."""
    noted = config.model_dump(mode="json")
    for name in ("quota", "test_sites"):  # newer settings, which older folders do not have
        if getattr(config, name) == type(config).model_fields[name].default:
            del noted[name]
    if task != "classification":
        noted["task"] = task
    if task == "survival":
        noted["survival"] = survival.model_dump(mode="json")
    return noted


def _write_parquet(path: Path, table: pd.DataFrame) -> None:
    with replacing(path) as partial:
        table.to_parquet(partial, index=False)


def _provenance(config: SyntheticConfig, layout: SlideLayout) -> Provenance:
    width_px, height_px = layout.size_px
    return Provenance(
        encoder=f"synthetic-width-{config.width}-seed-{config.seed}",
        tile_um=TILE_PX * MPP,
        tile_px=TILE_PX,
        tile_px_level0=TILE_PX,
        mpp=MPP,
        mpp_source="synthetic",
        slide_width_px=width_px,
        slide_height_px=height_px,
    )


def _tile_truth(plan: SlidePlan, layout: SlideLayout) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "slide": plan.slide,
            "tile": range(len(layout.coords)),
            "x": layout.coords[:, 0],
            "y": layout.coords[:, 1],
            "tumor": layout.tumor,
            "morphology": layout.morphology.astype("int8"),
            "tissue": layout.tissue.astype("int16"),
            "focus": layout.focus.astype("int32"),
        }
    )
