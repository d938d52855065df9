"""From a recipe to trained and measured runs: a sweep on stand-ins or on the user's cohort."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from asmil.engine import Engine
from asmil.errors import AsmilError, did_you_mean
from asmil.experiments.running import JobEnd, SweepFolder, run_together
from asmil.experiments.settings import CohortConfig, SweepConfig, VariantConfig
from asmil.experiments.store import results_table
from asmil.files import write_json
from asmil.paper.comparing import cohort_name
from asmil.paper.datasets import FORMER_SITE_BIAS, SCALES, Size, dataset, stand_in
from asmil.paper.recipes import Recipe, RecipeRow
from asmil.settings.folder_settings import claim_folder
from asmil.settings.made_from import DoneBefore
from asmil.version import __version__

ABOUT_FILE = "paper.json"


@dataclass(frozen=True)
class PaperRun:
    """A recipe that is run.

    size: quick, small or full; smaller sizes than full are for trying a recipe and allow no conclusions
    cohort: the user's manifest; None: synthetic stand-ins
    datasets, rows: some of the recipe; none: all
    slides: of a stand-in, instead of those of the size; cohorts: a folder in which several runs share stand-ins
    asmil_settings: added to every ASMIL row, for what the paper does not state
    site_bias: of stand-ins, see `stand_in`
    """

    recipe: Recipe
    out: Path
    size: Size = "full"
    cohort: CohortConfig | None = None
    datasets: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    seeds: int | None = None
    epochs: int | None = None
    slides: int | None = None
    cohorts: Path | None = None
    preset: str = "paper"
    asmil_settings: Mapping[str, Any] | None = None
    site_bias: float = 0.0

    @property
    def synthetic(self) -> bool:
        """Whether stand-ins are trained on."""
        return self.cohort is None

    def chosen_datasets(self) -> list[str]:
        self._refuse_unknown("data set", self.datasets, self.recipe.datasets)
        return list(self.datasets or self.recipe.datasets)

    def chosen_rows(self) -> list[RecipeRow]:
        self._refuse_unknown("row", self.rows, [row.name for row in self.recipe.rows])
        return [row for row in self.recipe.rows if not self.rows or row.name in self.rows]

    def _refuse_unknown(self, what: str, asked: Sequence[str], known: Sequence[str]) -> None:
        for name in asked:
            if name not in known:
                raise AsmilError(f"{self.recipe.id} has no {what} {name!r}: {did_you_mean(name, known)}")

    def sweeps(self) -> list[SweepConfig]:
        """One sweep for each cohort: data set and kind of features."""
        sweeps = []
        for name in self.chosen_datasets():
            by_backbone: dict[str, list[RecipeRow]] = {}
            for row in self.chosen_rows():
                by_backbone.setdefault(row.backbone, []).append(row)
            sweeps += [self._sweep(name, backbone, rows) for backbone, rows in by_backbone.items()]
        return sweeps

    def _sweep(self, name: str, backbone: str, rows: Sequence[RecipeRow]) -> SweepConfig:
        data_set, scale = dataset(name), SCALES[self.size]
        cohort = self.cohort or self._stand_in(name, backbone)
        cohort = cohort.model_copy(update={"settings": {**data_set.settings, **cohort.settings}})
        variants = {}
        for row in rows:
            preset, added = (self.preset, self.asmil_settings or {}) if row.method == "asmil" else ("paper", {})
            own = {**self.recipe.own_settings(row, data_set), **added}
            variants[row.name] = VariantConfig(method=row.method, preset=preset, settings=own)
        unknown = ("tiles", "froc") if cohort.synthetic is None else ()  # they need the truth of every tile
        settings: dict[str, Any] = {**scale.settings, **self.recipe.settings}
        epochs = self.epochs or (None if self.size == "full" else scale.epochs)
        if epochs is not None:
            settings["training.epochs"] = epochs
        if "attention" not in self.recipe.measures and "bag_features" not in self.recipe.measures:
            settings["record.attention"] = "none"
        return SweepConfig(
            cohorts={cohort_name(name, backbone): cohort},
            variants=variants,
            settings=settings,
            seeds=self.seeds or (self.recipe.seeds if self.size == "full" else min(self.recipe.seeds, scale.seeds)),
            folds=data_set.folds if self.size == "full" else min(data_set.folds, 2),
            # a data set without a validation set draws another tenth for every seed
            group_seeds="auto" if data_set.parts[1] or data_set.task == "survival" else False,
            measures=[measure for measure in self.recipe.measures if measure not in unknown],
        )

    def _stand_in(self, name: str, backbone: str) -> CohortConfig:
        cohort = stand_in(dataset(name), self.size, backbone, self.site_bias)
        assert cohort.synthetic is not None
        synthetic = cohort.synthetic.model_copy(update={} if self.slides is None else {"slides": self.slides})
        changes: dict[str, Any] = {"synthetic": synthetic}
        if self.cohorts is not None:
            changes["folder"] = (
                self.cohorts / f"{name}-{synthetic.difficulty}-{synthetic.slides}-bias-{self.site_bias:g}"
            )
        return cohort.model_copy(update=changes)

    def about(self) -> dict[str, Any]:
        """A description of the folder, for readers of its results."""
        return {
            "table": self.recipe.id,
            "synthetic": self.synthetic,
            "size": self.size,
            "preset": self.preset,
            "asmil_settings": dict(self.asmil_settings or {}),
            "epochs": self.epochs,
            "slides": self.slides,
            "site_bias": self.site_bias if self.synthetic else None,
        }

    def run(
        self, engine: Engine, on_gpu: bool, seconds: float | None = None, done: DoneBefore | None = None
    ) -> Iterator[JobEnd]:
        """Train and measure what is missing; arguments as for `SweepFolder.run`."""
        done = done or DoneBefore()
        former = {"site_bias": FORMER_SITE_BIAS if self.synthetic else None}
        claim_folder(self.out / "paper.yaml", self.about(), "a table of the paper", done.again, added=former)
        write_json(self.out / ABOUT_FILE, {**self.about(), "asmil": __version__})
        sweeps = [SweepFolder(sweep, self.out, on_gpu) for sweep in self.sweeps()]
        yield from run_together(sweeps, engine, seconds, done)

    def results(self) -> pd.DataFrame:
        """The rows of all finished trainings."""
        table = results_table(self.out)
        return table[table["status"] == "done"] if len(table) else table
