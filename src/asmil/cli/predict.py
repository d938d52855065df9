"""`asmil predict`: what a run says of new slides."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from asmil.cohort.manifest import Slide


def predict(
    run: Annotated[Path, typer.Argument(help="A run folder of `asmil train`.")],
    slides: Annotated[Path, typer.Argument(help="A folder of feature files, one feature file, or a manifest.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The CSV file to write.")] = Path("predictions.csv"),
    attention: Annotated[
        bool, typer.Option("--attention", help="Also write the attention of every tile, to OUT_attention/SLIDE.h5.")
    ] = False,
    features: Annotated[Path | None, typer.Option(help="Folder of the features, for a manifest.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...")] = "auto",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the result.")] = False,
) -> None:
    """Predict slides with the models of a run, averaged over its folds and seeds. Labels are not needed."""
    import pandas as pd
    from rich.console import Console
    from rich.progress import track

    from asmil.errors import AsmilError
    from asmil.files import replacing
    from asmil.memory import keep_freed_memory
    from asmil.training.prediction import RunPredictor, write_attention

    console = Console(quiet=quiet, stderr=True)
    keep_freed_memory()
    predictor = RunPredictor(run, device)
    cohort = _slides(slides, features)
    maps = out.with_name(f"{out.stem}_attention")
    rows, bad = [], []
    try:
        results = predictor.predict_all(cohort, attention)
        for slide, result in track(results, "predicting", total=len(cohort), console=console):
            if isinstance(result, AsmilError):
                bad.append(str(result) if slide.slide in str(result) else f"{slide.slide}: {result}")
                continue
            if attention:
                write_attention(maps / f"{slide.slide}.h5", result)
            rows.append(predictor.row(result))
    finally:
        # What was predicted before an interruption is written, too.
        if rows:
            with replacing(out) as partial:
                pd.DataFrame(rows).to_csv(partial, index=False)
    n_models = len(predictor.models)
    averaged = f", each the mean of {n_models} models (folds and seeds of the run)" if n_models > 1 else ""
    if rows:
        typer.echo(
            f"{len(rows)} slide{'s' * (len(rows) != 1)} predicted{averaged}: {out}"
            + (f", attention in {maps}" if attention else "")
        )
    if predictor.unfinished:
        typer.echo(f"note: {predictor.unfinished} trainings of the run have not ended and were left out", err=True)
    if bad:
        listed = "\n".join(f"  - {line}" for line in bad)
        raise AsmilError(f"{len(bad)} of {len(cohort)} slides could not be predicted:\n{listed}")


def _slides(path: Path, features: Path | None) -> list[Slide]:
    from asmil.cohort.manifest import cohort_from_features, load_cohort
    from asmil.cohort.source import FeatureSource

    place = FeatureSource.parse(str(path)).path
    if not place.is_file() or place.suffix.lower() in (".h5", ".hdf5", ".pt"):
        return list(cohort_from_features(path).slides)
    return list(load_cohort(path, features, require_labels=False).slides)
