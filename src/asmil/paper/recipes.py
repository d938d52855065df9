"""How each table and figure is run: the method and settings of each row, data sets, seeds and measures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from asmil.errors import AsmilError, did_you_mean
from asmil.paper.datasets import USUAL_BACKBONE, Dataset
from asmil.paper.printed import PrintedRow, printed

FigureKind = Literal["courses", "bag_features", "histograms", "maps"]
Settings = dict[str, Any]
NO_ANCHOR: Settings = {"anchor.normalizer": "none"}
SUFFIX = {"f1": "test_f1", "auc": "test_auc", "c_index": "test_c_index", "dice": "tile_dice"}
"""Result columns of printed metrics; any other metric is the column of its own name."""


@dataclass(frozen=True)
class RecipeRow:
    """A row that is trained: its name, the printed row behind it (None in figures), and how it is trained."""

    name: str
    method: str
    settings: Settings = field(default_factory=dict)
    backbone: str = USUAL_BACKBONE
    printed: PrintedRow | None = None
    datasets: tuple[str, ...] = ()
    """The data sets that it is trained on; none: all of the recipe."""


@dataclass(frozen=True)
class Recipe:
    """What is run for a table or figure.

    rows: what is trained, the reference first where the others are compared with one
    reference: from the name of a row to the name of the row that it is compared with, or None
    metrics: the result columns that are shown
    """

    id: str
    title: str
    rows: tuple[RecipeRow, ...]
    datasets: tuple[str, ...]
    metrics: tuple[str, ...] = ("test_f1", "test_auc")
    reference: Callable[[str], str | None] = lambda name: None
    seeds: int = 5
    measures: tuple[str, ...] = ("slides",)
    settings: Settings = field(default_factory=dict)
    figures: tuple[FigureKind, ...] = ()

    def own_settings(self, row: RecipeRow, one: Dataset) -> Settings:
        """The settings of a row on a data set: the paper's number of tokens, unless the row says another."""
        tokens = {"model.tokens": one.tokens} if row.method == "asmil" and one.tokens != 8 else {}
        return {**tokens, **row.settings}


def _from_table(
    table: str, settings: Callable[[PrintedRow], Settings], name: Callable[[PrintedRow], str], **options: Any
) -> Recipe:
    source = printed()[0][table]
    rows = tuple(
        RecipeRow(
            name(row),
            row.about.get("method", "asmil"),
            settings(row),
            row.about.get("backbone", options.get("backbone", USUAL_BACKBONE)),
            row,
        )
        for row in source.rows
    )
    metrics = dict.fromkeys(SUFFIX.get(column.metric, column.metric) for column in source.columns)
    options.pop("backbone", None)
    return Recipe(
        source.id,
        source.title,
        rows,
        tuple(source.datasets),
        **{"metrics": tuple(metrics), "seeds": source.seeds, **options},
    )


def _against(other: str) -> Callable[[str], str | None]:
    return lambda name: None if name == other else other


def _plug_in(row: PrintedRow) -> Settings:
    return {"anchor.normalizer": "nsf" if row.about["nsf"] else "softmax"} if row.about["anchor"] else dict(NO_ANCHOR)


def _plug_in_name(row: PrintedRow) -> str:
    added = "" if not row.about["anchor"] else "+anchor+nsf" if row.about["nsf"] else "+anchor"
    return f"{row.about['method']}{added}"


def _components(row: PrintedRow) -> Settings:
    return {**_plug_in(row), **({} if row.about["drop"] else {"model.drop": 0.0})}


def _components_name(row: PrintedRow) -> str:
    parts = [name for name in ("anchor", "nsf", "drop") if row.about[name]]
    return "+".join(parts) or "none"


def _components_reference(name: str) -> str | None:
    """Each row against the one with one part less: the anchor, NSF, or drop."""
    return {
        "anchor+nsf+drop": "anchor+drop",
        "anchor+drop": "drop",
        "drop": "none",
        "anchor+nsf": "anchor",
        "anchor": "none",
    }.get(name)


def _normalizer(row: PrintedRow) -> Settings:
    about = row.about
    if about["normalizer"] == "nsf":
        return {"anchor.normalizer": "nsf"}
    if about["normalizer"] == "softmax":
        return {"anchor.normalizer": "softmax", "anchor.temperature": float(about["temperature"])}
    alpha = float(about["alpha"])
    if alpha == 1:
        return {"anchor.normalizer": "softmax"}
    return {"anchor.normalizer": "sparsemax"} if alpha == 2 else {"anchor.normalizer": "entmax", "anchor.alpha": alpha}


def _normalizer_name(row: PrintedRow) -> str:
    about = row.about
    option = {"softmax": f" T={about.get('temperature'):g}" if about.get("temperature") else ""}
    option["entmax"] = f" {about.get('alpha'):g}" if about.get("alpha") else ""
    return f"{about['normalizer']}{option.get(about['normalizer'], '')}"


def _encoded_name(row: PrintedRow) -> str:
    return f"{row.about['method']} ({row.about['backbone']})"


def _encoded_asmil(name: str) -> str | None:
    """ASMIL with the same features."""
    return None if name.startswith("asmil ") else f"asmil ({name.split('(')[1]}"


def _rows(method: str, named: Mapping[str, Settings]) -> tuple[RecipeRow, ...]:
    return tuple(RecipeRow(name, method, settings) for name, settings in named.items())


def _with_and_without(methods: Iterable[str]) -> tuple[RecipeRow, ...]:
    both = {"": NO_ANCHOR, "+anchor+nsf": {"anchor.normalizer": "nsf"}}
    return tuple(
        RecipeRow(f"{method}{name}", method, dict(settings)) for method in methods for name, settings in both.items()
    )


def _base_name(name: str) -> str | None:
    base = name.split("+")[0]
    return None if name == base else base


def _plug_in_reference(name: str) -> str | None:
    return name.removesuffix("+nsf") if name.endswith("+nsf") else _base_name(name)


BETAS = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 4.0, 5.0)
DROPS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)
MOMENTA = (0.0, 0.9, 0.99, 0.999, 0.9999)


def _beta_settings(beta: float) -> Settings:
    return {"anchor.weight": beta} if beta else dict(NO_ANCHOR)


def _recipes() -> Iterable[Recipe]:
    figures = {name: one.title for name, one in printed()[1].items()}
    yield _from_table("subtyping", lambda row: {}, _encoded_name, reference=_encoded_asmil)
    yield _from_table("plug-in", _plug_in, _plug_in_name, reference=_plug_in_reference)
    yield _from_table("components", _components, _components_name, reference=_components_reference)
    temperature = _from_table("temperature", _normalizer, _normalizer_name, reference=_against("nsf"))
    # not printed: temperature 1, and no anchor; both are needed to read the table
    extra = (RecipeRow("softmax T=1", "asmil", {"anchor.normalizer": "softmax"}), RecipeRow("none", "asmil", NO_ANCHOR))
    yield Recipe(**{**temperature.__dict__, "rows": (*temperature.rows, *extra), "measures": ("slides", "attention")})
    yield _from_table(
        "entmax", _normalizer, _normalizer_name, reference=_against("nsf"), measures=("slides", "seconds")
    )
    yield _from_table(
        "online-nsf",
        lambda row: {"attention.normalizer": "nsf"} if row.about["online_nsf"] else {},
        lambda row: "online nsf" if row.about["online_nsf"] else "online softmax",
        reference=_against("online softmax"),
    )
    yield _from_table(
        "mixture",
        lambda row: {"attention.normalizer": "mixture"} if row.about["online"] == "mixture" else {},
        lambda row: row.about["online"],
        reference=_against("softmax"),
        measures=("slides", "mixture"),
    )
    yield _from_table("foundation", lambda row: {}, _encoded_name, reference=_encoded_asmil)
    yield _from_table(
        "tokens", lambda row: {"model.tokens": row.about["tokens"]}, lambda row: f"{row.about['tokens']} tokens",
        reference=_against("8 tokens"),
    )  # fmt: skip
    yield _from_table(
        "update",
        lambda row: {"anchor.update": "epoch" if row.about["update"] == "epoch" else "step"},
        lambda row: f"every {row.about['update']}",
        reference=_against("every epoch"),
    )
    yield _from_table(
        "significance",
        lambda row: {} if row.about["anchor"] else dict(NO_ANCHOR),
        lambda row: "with anchor" if row.about["anchor"] else "without anchor",
        reference=_against("without anchor"),
        seeds=10,
    )
    localized = _from_table(
        "localization",
        lambda row: {},
        lambda row: row.about["method"],
        reference=_against("asmil"),
        measures=("slides", "tiles", "froc"),
        backbone="resnet18_simclr",
    )
    without_nsf = RecipeRow("asmil without nsf", "asmil", {"anchor.normalizer": "softmax"}, "resnet18_simclr")
    yield Recipe(**{**localized.__dict__, "rows": (*localized.rows, without_nsf)})
    yield _from_table(
        "no-missed",
        lambda row: {},
        lambda row: row.about["method"],
        reference=_against("asmil"),
        measures=("slides", "tiles"),
        backbone="resnet18_simclr",
    )
    yield _from_table("survival", lambda row: {}, lambda row: row.about["method"], reference=_against("asmil"), seeds=1)
    yield Recipe(
        "beta",
        figures["beta"],
        _rows("asmil", {f"beta {beta:g}": _beta_settings(beta) for beta in BETAS}),
        ("camelyon16", "bracs"),
        reference=_against("beta 0"),
        measures=("slides", "attention"),
    )
    yield Recipe(
        "drop-rate",
        figures["drop-rate"],
        _rows(
            "asmil",
            {
                f"{tokens} tokens, drop {drop:g}": {"model.tokens": tokens, "model.drop": drop}
                for tokens in (4, 8, 16)
                for drop in DROPS
            },
        ),
        ("camelyon16", "bracs"),
        reference=lambda name: None if name.endswith("drop 0.5") else f"{name.split(',')[0]}, drop 0.5",
    )
    yield Recipe(
        "ema",
        figures["ema"],
        _rows("asmil", {f"m {momentum:g}": {"anchor.momentum": momentum} for momentum in MOMENTA}),
        ("bracs",),
        reference=_against("m 0.999"),
        measures=("slides", "attention"),
    )
    yield Recipe(
        "overfitting",
        figures["overfitting"],
        (
            RecipeRow("abmil", "abmil"),
            RecipeRow("asmil, drop 0.5", "asmil", {"model.drop": 0.5}),
            RecipeRow("asmil, drop 0", "asmil", {"model.drop": 0.0}),
        ),
        ("camelyon16",),
        metrics=("val_auc_fall", "val_f1_fall", "test_auc"),
        reference=_against("asmil, drop 0.5"),
        measures=("slides", "learning"),
    )
    yield Recipe(
        "dynamics",
        figures["dynamics"],
        (
            *_with_and_without(("abmil", "transmil", "dsmil", "asmil")),
            RecipeRow("abmil+entropy", "abmil", {"stabilizers.entropy.weight": 0.1}),
            RecipeRow("abmil+features", "abmil", {"stabilizers.features.weight": 1.0}),
        ),
        ("camelyon16", "bracs"),
        metrics=("jsd_mean", "jsd_late", "jsd_relative", "effective_share", "ce_end", "test_f1", "test_auc"),
        reference=_base_name,
        measures=("slides", "attention"),
        settings={"record.attention": 4, "record.role": "both"},
        figures=("courses",),
    )
    yield Recipe(
        "tsne",
        figures["tsne"],
        _with_and_without(("asmil", "transmil")),
        ("bracs",),
        metrics=(
            "silhouette_train_middle",
            "silhouette_val_middle",
            "silhouette_train_last",
            "silhouette_val_last",
        ),
        reference=_base_name,
        measures=("slides", "bag_features"),
        settings={"record.attention": "all", "record.role": "both"},
        figures=("bag_features",),
    )
    yield Recipe(
        "histograms",
        figures["histograms"],
        (RecipeRow("abmil", "abmil"),),
        ("camelyon16",),
        metrics=("effective_share", "top1_mass", "gini"),
        measures=("slides", "attention"),
        settings={"record.attention": 2, "record.role": "both"},
        figures=("histograms",),
    )
    yield Recipe(
        "maps",
        figures["maps"],
        (
            *_with_and_without(("abmil", "asmil")),
            RecipeRow("transmil", "transmil"),
        ),
        ("camelyon16",),
        metrics=("jsd_mean", "effective_share", "tile_auc"),
        reference=_base_name,
        measures=("slides", "attention", "tiles"),
        settings={"record.attention": 2, "record.role": "both"},
        figures=("maps",),
    )


RECIPES: dict[str, Recipe] = {one.id: one for one in _recipes()}
COUNTED = ("affine", "cost", "cost-anchor", "classic-sets", "classic")
"""Tables that are counted or measured in another way than by training on slides."""


def recipe(name: str) -> Recipe:
    """A recipe by the id of its table or figure; the error for an unknown id names the nearest."""
    if name not in RECIPES:
        raise AsmilError(f"there is no table or figure {name!r}: {did_you_mean(name, [*RECIPES, *COUNTED])}")
    return RECIPES[name]


def result_column(metric: str) -> str:
    """The column of a results table that holds a printed metric."""
    return SUFFIX.get(metric, metric)


def row_names(rows: Sequence[RecipeRow]) -> list[str]:
    """The names of rows, in order."""
    return [row.name for row in rows]
