"""The model card of a bundle: what the model is, what it was trained on, how good it is, and where that ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from asmil.evaluation.evaluate import RunEvaluation
from asmil.reporting import escape_markdown, markdown_table
from asmil.reporting.formats import format_interval, format_number
from asmil.training.prediction import RunPredictor
from asmil.version import __version__

SMALL_TEST_PART = 100
"""With fewer patients than this, the card calls the test set small."""
_FRONT_MATTER = """\
---
library_name: asmil
tags:
- pathology
- whole-slide-images
- multiple-instance-learning
---
"""


def model_card(predictor: RunPredictor, evaluation: RunEvaluation) -> str:
    """The card as Markdown."""
    config = predictor.description.config
    title = f"{config.method} for {config.task.kind}"
    parts = [
        _FRONT_MATTER + f"# {title}",
        _summary(predictor),
        "## Data\n\n" + markdown_table(["property", "value"], _data(predictor)),
        "## Metrics\n\n" + _results(evaluation),
        "## Limits\n\n" + "\n".join(f"- {limit}" for limit in _limits(predictor, evaluation)),
        "## Use\n\n```bash\nasmil predict THIS_FOLDER slides/ --out predictions.csv\n```\n\n"
        '```python\nimport asmil\n\nrun = asmil.load_run("THIS_FOLDER")\nprint(run.predict("slides/"))\n```',
        f"Written by asmil {__version__}. Add the license under which you share the weights.",
    ]
    return "\n\n".join(parts) + "\n"


def _summary(predictor: RunPredictor) -> str:
    n = len(predictor.trained)
    models = "One trained model" if n == 1 else f"The mean prediction of {n} trained models (folds and seeds)"
    classes = predictor.description.classes
    among = f" Classes: {escape_markdown(', '.join(classes))}." if classes else ""
    return f"{models} of the method `{predictor.description.config.method}`.{among}"


def _data(predictor: RunPredictor) -> Iterator[tuple[str, str]]:
    features: Mapping[str, Any] = predictor.description.features
    yield "slides in the cohort", _or_unknown(predictor.description.cohort.get("slides"))
    yield "encoder", _or_unknown(features.get("encoder"))
    yield "SHA-256 of the encoder's weights", _or_unknown(features.get("weights_hash"))
    yield "numbers per tile", str(predictor.description.in_features)
    yield "tile size in microns", _or_unknown(features.get("tile_um"))
    yield "tile size in pixels", _or_unknown(features.get("tile_px"))
    if predictor.operating_point is not None:
        point = predictor.operating_point
        yield (
            "operating point",
            f"{point.positive} from a probability of {format_number(point.threshold)}, chosen on validation slides "
            f"({point.rule})",
        )


def _results(evaluation: RunEvaluation) -> str:
    titles = {metric.name: metric.title for metric in evaluation.run.format.metrics}
    rows = [
        (titles.get(name, name), format_number(estimate.value), format_interval(estimate.interval))
        for name, estimate in evaluation.metrics.items()
    ]
    trainings = f"{evaluation.n_folds} folds x {evaluation.n_seeds} seeds"
    how = f"On the test set: {evaluation.sizes}, {trainings}. Intervals: bootstrap over patients."
    return f"{how}\n\n{markdown_table(['metric', 'value', '95 % interval'], rows)}"


def _limits(predictor: RunPredictor, evaluation: RunEvaluation) -> Iterator[str]:
    if evaluation.n_patients < SMALL_TEST_PART:
        yield f"The test set is small ({evaluation.sizes}); the intervals show how little is known."
    if predictor.description.config.data.leave_out != "site":
        yield "Test slides come from the same sources as training slides. Slides of other sites may do worse."
    if evaluation.n_trainings > 1:
        yield "The metrics are those of single trainings. The mean of all models was not tested on its own."
    yield "Features must come from the encoder and the tile size above."
    yield "For research. Not approved for diagnosis."
    for warning in evaluation.warnings:
        yield escape_markdown(warning)


def _or_unknown(value: Any) -> str:
    return "not known" if value is None else str(value)
