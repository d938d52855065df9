"""Refuse pretrained weights, `--init`, that would make results wrong.

Weights of a run of asmil say what they were trained on: slides that are tested today, classes in another order or
features of another encoder are refused. Of official weights none of this is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from asmil.cohort.feature_structure import compare_features, sampled_tiles
from asmil.cohort.manifest import Cohort, Slide
from asmil.cohort.problems import listed
from asmil.cohort.splits import Splits
from asmil.cohort.tile_hashes import tile_sketch
from asmil.errors import AsmilError
from asmil.runs.description import RunDescription, read_description
from asmil.runs.layout import RunLayout
from asmil.runs.model import build_model
from asmil.runs.training_slides import ROLES_SEEN, TrainingSlides, read_training_slides
from asmil.settings.own_code import same_attribute
from asmil.training.initial_weights import Initialization, InitialWeights

COMPARED_SLIDES = 32
"""Slides whose features are compared with those that the weights were trained on."""


def refuse_unsuitable_start(
    weights: InitialWeights,
    done: Initialization,
    cohort: Cohort,
    splits: Splits,
    description: RunDescription,
    n_outputs: int,
) -> None:
    """Raise if the run that the weights are from cannot be the start of a run with this description."""
    if weights.run is None:
        return
    before = read_description(RunLayout(weights.run), weights.method)
    _refuse_other_encoder(weights, before, cohort, description)
    if _moved(before.classes, description.classes) and _loads_head(done, description, n_outputs):
        raise AsmilError(
            f"{weights.path}: its classes are {_names(before.classes)}, but those of the cohort are "
            f"{_names(description.classes)}: the head would start with exchanged classes; rename the classes so that "
            "those that both have are in the same order (they are sorted by name)"
        )
    _refuse_seen_slides(weights, cohort, splits)


def class_note(weights: InitialWeights, description: RunDescription) -> Iterator[str]:
    """A line if the weights were trained for other classes, which may be meant."""
    if weights.run is None:
        return
    before = read_description(RunLayout(weights.run), weights.method).classes
    if before != description.classes and len(before) == len(description.classes) > 0:
        yield f"the weights were trained for the classes {_names(before)}; here they are {_names(description.classes)}"


def _refuse_other_encoder(
    weights: InitialWeights, before: RunDescription, cohort: Cohort, description: RunDescription
) -> None:
    for key in ("encoder", "weights_hash"):
        trained, here = before.features.get(key), description.features.get(key)
        same = here == trained or (key == "encoder" and same_attribute(str(trained), str(here)))
        if trained is not None and here is not None and not same:
            raise AsmilError(
                f"{weights.path}: these weights were trained on features of another encoder ({key} {trained}, but "
                f"{here} in the cohort); extract the cohort with the encoder of the weights"
            )
    assert weights.run is not None
    known = read_training_slides(weights.run)
    if known is None or known.structure is None:
        return
    structure, slides = known.structure, cohort.slides
    tiles = sampled_tiles([slides[i] for i in range(0, len(slides), -(-len(slides) // COMPARED_SLIDES))])
    reasons = [reason for sample in tiles if (reason := compare_features(structure, sample).difference)]
    if len(reasons) > len(tiles) / 2:
        raise AsmilError(
            f"{weights.path}: these weights were probably trained on features of another encoder than those of "
            f"{cohort.path} (of {len(reasons)} of {len(tiles)} slides {reasons[0]}); extract the cohort with the "
            "encoder of the weights"
        )


def _refuse_seen_slides(weights: InitialWeights, cohort: Cohort, splits: Splits) -> None:
    """Raise if a test slide was a training or validation slide of the weights, or a validation slide a training slide.

    Validation slides may be validation slides again. A bundle does not say which slides were which, so only test slides
    are compared with it.
    """
    assert weights.run is not None
    known, path = read_training_slides(weights.run), RunLayout(weights.run).splits
    before = Splits.load(path) if path.exists() else None
    roles_then = {"test": ROLES_SEEN, "val": ("train",)} if before is not None else {"test": ROLES_SEEN}
    for role, then in roles_then.items():
        slides = [cohort[name] for name in sorted(_with_roles(splits, (role,)))]
        seen = _seen_slides(slides, known, before, then, weights.fold)
        if seen:
            raise AsmilError(
                f"{weights.path}: these weights were trained on {len(seen)} {role} slides of this run "
                f"({listed(seen)}), so its metrics would be too good; leave these slides out, give them the role "
                "train (column 'split'), or start from other weights"
            )


def _seen_slides(
    slides: Sequence[Slide],
    known: TrainingSlides | None,
    before: Splits | None,
    roles: Sequence[str],
    fold: int | None,
) -> list[str]:
    """Those of the slides that had one of the roles in the training of the weights."""
    names = None if before is None else _with_roles(before, roles, fold)
    if known is not None:
        return [slide.slide for slide in slides if known.recognize(tile_sketch(slide.source), names) is not None]
    if before is None or names is None:
        return []
    # runs of earlier versions kept no hashes of tiles; a name alone may be that of another slide
    patients = dict(zip(before.table["slide"].astype(str), before.table["patient"].astype(str), strict=True))
    return [slide.slide for slide in slides if slide.slide in names and patients[slide.slide] == slide.patient]


def _with_roles(splits: Splits, roles: Sequence[str], fold: int | None = None) -> set[str]:
    """The slides that have one of the roles in a fold, or in any fold."""
    table = splits.table if fold is None else splits.table[splits.table["fold"] == fold]
    return set(table.loc[table["role"].isin(roles), "slide"].astype(str))


def _moved(before: Sequence[str], now: Sequence[str]) -> bool:
    """Whether a class has another place than before."""
    indices = {name: index for index, name in enumerate(before)}
    return any(indices.get(name, index) != index for index, name in enumerate(now))


def _loads_head(done: Initialization, description: RunDescription, n_outputs: int) -> bool:
    """Whether a tensor was loaded whose size depends on the number of classes."""
    config = description.config
    ours, other = (
        build_model(config, description.in_features, count, config.training.seed).state_dict()
        for count in (n_outputs, n_outputs + 1)
    )
    return any(name not in other or ours[name].shape != other[name].shape for name in done.loaded)


def _names(classes: Sequence[str]) -> str:
    return ", ".join(classes)
