"""How each table and figure is run: the method and settings of each row, data sets, seeds and measures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from asmil.errors import AsmilError, did_you_mean
from asmil.paper.datasets import USUAL_BACKBONE, Dataset
from asmil.paper.printed import PrintedRow, printed

FigureKind = Literal["courses", "bag_features", "histograms", "maps"]
Settings = dict[str, Any]
About = Mapping[str, Any]
"""The properties of a printed row."""
NO_ANCHOR: Settings = {"anchor.normalizer": "none"}


@dataclass(frozen=True)
class RecipeRow:
    """A row that is trained.

    printed: the printed row behind it, None in figures
    reference: the name of the row that it is compared with, if there is one
    """

    name: str
    method: str
    settings: Settings = field(default_factory=dict)
    backbone: str = USUAL_BACKBONE
    printed: PrintedRow | None = None
    reference: str | None = None


@dataclass(frozen=True)
class Recipe:
    """What is run for a table or figure.

    metrics: the result columns that are shown
    """

    id: str
    title: str
    rows: tuple[RecipeRow, ...]
    datasets: tuple[str, ...]
    metrics: tuple[str, ...] = ("test_f1", "test_auc")
    seeds: int = 5
    measures: tuple[str, ...] = ("slides",)
    settings: Settings = field(default_factory=dict)
    figures: tuple[FigureKind, ...] = ()

    def own_settings(self, row: RecipeRow, data_set: Dataset) -> Settings:
        """The settings of a row on a data set: the paper's number of tokens, unless the row states another."""
        tokens = {"model.tokens": data_set.tokens} if row.method == "asmil" and data_set.tokens != 8 else {}
        return {**tokens, **row.settings}


def _table(
    table: str,
    name: str | Callable[[About], str],
    reference: str | Callable[[str], str | None],
    settings: Callable[[About], Settings] = lambda about: {},
    backbone: str = USUAL_BACKBONE,
    extra: Mapping[str, Settings] | None = None,
    **options: Any,
) -> Recipe:
    """The recipe of a printed table.

    name, settings: of a row, from its properties; a text is formatted with them
    reference: the row that the others are compared with, or the reference of each row by its name
    extra: rows of ASMIL that are not printed, but are needed to read the table
    """
    source = printed()[0][table]
    rows = [
        RecipeRow(
            name.format(**row.about) if isinstance(name, str) else name(row.about),
            row.about.get("method", "asmil"),
            settings(row.about),
            row.about.get("backbone", backbone),
            row,
        )
        for row in source.rows
    ]
    rows += [RecipeRow(added, "asmil", own, backbone) for added, own in (extra or {}).items()]
    metrics = dict.fromkeys(result_column(column.metric) for column in source.columns)
    options = {"metrics": tuple(metrics), "seeds": source.seeds, **options}
    return Recipe(source.id, source.title, _with_references(rows, reference), tuple(source.datasets), **options)


def _figure(
    figure: str,
    rows: Sequence[RecipeRow],
    datasets: tuple[str, ...],
    reference: str | Callable[[str], str | None] = lambda name: None,
    **options: Any,
) -> Recipe:
    """The recipe of a figure."""
    return Recipe(figure, printed()[1][figure].title, _with_references(rows, reference), datasets, **options)


def _with_references(rows: Sequence[RecipeRow], reference: str | Callable[[str], str | None]) -> tuple[RecipeRow, ...]:
    """The rows, each with the name of its reference; a row that would be its own has none."""
    named = {row.name: reference if isinstance(reference, str) else reference(row.name) for row in rows}
    return tuple(row if named[row.name] == row.name else replace(row, reference=named[row.name]) for row in rows)


def _plug_in(about: About) -> Settings:
    return {"anchor.normalizer": "nsf" if about["nsf"] else "softmax"} if about["anchor"] else dict(NO_ANCHOR)


def _plug_in_name(about: About) -> str:
    added = "" if not about["anchor"] else "+anchor+nsf" if about["nsf"] else "+anchor"
    return f"{about['method']}{added}"


ONE_PART_LESS = {
    "anchor+nsf+drop": "anchor+drop",
    "anchor+drop": "drop",
    "drop": "none",
    "anchor+nsf": "anchor",
    "anchor": "none",
}
"""Rows of the table of components, each with the row that has one part less: NSF, the anchor, or drop."""


def _normalizer(about: About) -> Settings:
    if about["normalizer"] == "nsf":
        return {"anchor.normalizer": "nsf"}
    if about["normalizer"] == "softmax":
        return {"anchor.normalizer": "softmax", "anchor.temperature": float(about["temperature"])}
    alpha = float(about["alpha"])
    if alpha == 1:
        return {"anchor.normalizer": "softmax"}
    return {"anchor.normalizer": "sparsemax"} if alpha == 2 else {"anchor.normalizer": "entmax", "anchor.alpha": alpha}


def _normalizer_name(about: About) -> str:
    option = {"softmax": f" T={about.get('temperature', 0):g}", "entmax": f" {about.get('alpha', 0):g}"}
    return f"{about['normalizer']}{option.get(about['normalizer'], '')}"


def _encoded_asmil(name: str) -> str:
    """ASMIL with the same features."""
    return f"asmil ({name.split('(')[1]}"


def _with_and_without(*methods: str) -> tuple[RecipeRow, ...]:
    both: dict[str, Settings] = {"": NO_ANCHOR, "+anchor+nsf": {"anchor.normalizer": "nsf"}}
    return tuple(RecipeRow(f"{method}{name}", method, dict(both[name])) for method in methods for name in both)


def _asmil_rows(named: Mapping[str, Settings]) -> tuple[RecipeRow, ...]:
    return tuple(RecipeRow(name, "asmil", settings) for name, settings in named.items())


def _base_name(name: str) -> str:
    return name.split("+")[0]


BETAS = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 4.0, 5.0)
DROPS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)
MOMENTA = (0.0, 0.9, 0.99, 0.999, 0.9999)
BOTH_COHORTS = ("camelyon16", "bracs")
WITH_ATTENTION = ("slides", "attention")


def _recipes() -> Iterable[Recipe]:
    yield _table("subtyping", "{method} ({backbone})", _encoded_asmil)
    yield _table(
        "plug-in",
        _plug_in_name,
        lambda name: name.removesuffix("+nsf") if name.endswith("+nsf") else _base_name(name),
        _plug_in,
    )
    yield _table(
        "components",
        lambda about: "+".join(part for part in ("anchor", "nsf", "drop") if about[part]) or "none",
        ONE_PART_LESS.get,
        lambda about: {**_plug_in(about), **({} if about["drop"] else {"model.drop": 0.0})},
    )
    yield _table(
        "temperature",
        _normalizer_name,
        "nsf",
        _normalizer,
        extra={"softmax T=1": {"anchor.normalizer": "softmax"}, "none": NO_ANCHOR},
        measures=WITH_ATTENTION,
    )
    yield _table("entmax", _normalizer_name, "nsf", _normalizer, measures=("slides", "seconds"))
    yield _table(
        "online-nsf",
        lambda about: "online nsf" if about["online_nsf"] else "online softmax",
        "online softmax",
        lambda about: {"attention.normalizer": "nsf"} if about["online_nsf"] else {},
    )
    yield _table(
        "mixture",
        "{online}",
        "softmax",
        lambda about: {"attention.normalizer": "mixture"} if about["online"] == "mixture" else {},
        measures=("slides", "mixture"),
    )
    yield _table("foundation", "{method} ({backbone})", _encoded_asmil)
    yield _table("tokens", "{tokens} tokens", "8 tokens", lambda about: {"model.tokens": about["tokens"]})
    yield _table(
        "update",
        "every {update}",
        "every epoch",
        lambda about: {"anchor.update": "epoch" if about["update"] == "epoch" else "step"},
    )
    yield _table(
        "significance",
        lambda about: "with anchor" if about["anchor"] else "without anchor",
        "without anchor",
        lambda about: {} if about["anchor"] else dict(NO_ANCHOR),
        seeds=10,
    )
    yield _table(
        "localization",
        "{method}",
        "asmil",
        backbone="resnet18_simclr",
        extra={"asmil without nsf": {"anchor.normalizer": "softmax"}},
        measures=("slides", "tiles", "froc"),
    )
    yield _table("no-missed", "{method}", "asmil", backbone="resnet18_simclr", measures=("slides", "tiles"))
    yield _table("survival", "{method}", "asmil", seeds=1)
    yield _figure(
        "beta",
        _asmil_rows({f"beta {beta:g}": {"anchor.weight": beta} if beta else dict(NO_ANCHOR) for beta in BETAS}),
        BOTH_COHORTS,
        "beta 0",
        measures=WITH_ATTENTION,
    )
    yield _figure(
        "drop-rate",
        _asmil_rows(
            {
                f"{tokens} tokens, drop {drop:g}": {"model.tokens": tokens, "model.drop": drop}
                for tokens in (4, 8, 16)
                for drop in DROPS
            }
        ),
        BOTH_COHORTS,
        lambda name: f"{name.split(',')[0]}, drop 0.5",
    )
    yield _figure(
        "ema",
        _asmil_rows({f"m {momentum:g}": {"anchor.momentum": momentum} for momentum in MOMENTA}),
        ("bracs",),
        "m 0.999",
        measures=WITH_ATTENTION,
    )
    yield _figure(
        "overfitting",
        (
            RecipeRow("abmil", "abmil"),
            *_asmil_rows({f"asmil, drop {drop:g}": {"model.drop": drop} for drop in (0.5, 0.0)}),
        ),
        ("camelyon16",),
        "asmil, drop 0.5",
        metrics=("val_auc_fall", "val_f1_fall", "test_auc"),
        measures=("slides", "learning"),
    )
    yield _figure(
        "dynamics",
        (
            *_with_and_without("abmil", "transmil", "dsmil", "asmil"),
            RecipeRow("abmil+entropy", "abmil", {"stabilizers.entropy.weight": 0.1}),
            RecipeRow("abmil+features", "abmil", {"stabilizers.features.weight": 1.0}),
        ),
        BOTH_COHORTS,
        _base_name,
        metrics=("jsd_mean", "jsd_late", "jsd_relative", "effective_share", "ce_end", "test_f1", "test_auc"),
        measures=WITH_ATTENTION,
        settings={"record.attention": 4, "record.role": "both"},
        figures=("courses",),
    )
    yield _figure(
        "tsne",
        _with_and_without("asmil", "transmil"),
        ("bracs",),
        _base_name,
        metrics=tuple(f"silhouette_{part}_{when}" for when in ("middle", "last") for part in ("train", "val")),
        measures=("slides", "bag_features"),
        settings={"record.attention": "all", "record.role": "both"},
        figures=("bag_features",),
    )
    yield _figure(
        "histograms",
        (RecipeRow("abmil", "abmil"),),
        ("camelyon16",),
        metrics=("effective_share", "top1_mass", "gini"),
        measures=WITH_ATTENTION,
        settings={"record.attention": 2, "record.role": "both"},
        figures=("histograms",),
    )
    yield _figure(
        "maps",
        (*_with_and_without("abmil", "asmil"), RecipeRow("transmil", "transmil")),
        ("camelyon16",),
        _base_name,
        metrics=("jsd_mean", "effective_share", "tile_auc"),
        measures=(*WITH_ATTENTION, "tiles"),
        settings={"record.attention": 2, "record.role": "both"},
        figures=("maps",),
    )


def result_column(metric: str) -> str:
    """The column of a results table that holds a printed metric: of other metrics, the column of their own name."""
    return {"f1": "test_f1", "auc": "test_auc", "c_index": "test_c_index", "dice": "tile_dice"}.get(metric, metric)


RECIPES: dict[str, Recipe] = {made.id: made for made in _recipes()}
COUNTED = ("affine", "cost", "cost-anchor", "classic-sets", "classic")
"""Tables that are counted or measured in another way than by training on slides."""


def recipe(name: str) -> Recipe:
    """A recipe by the id of its table or figure; the error for an unknown id names the nearest."""
    if name not in RECIPES:
        raise AsmilError(f"there is no table or figure {name!r}: {did_you_mean(name, [*RECIPES, *COUNTED])}")
    return RECIPES[name]
