"""The answers of the study on real tissue, decided from its records by the rules of its plan; its tables and figure.

Pure functions on the tables that `real_tissue.py` and `real_maps.py` write; docs/templates/real_tissue.md.jinja shows
them. A record that is missing gives "Not run yet.".
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from asmil.paper.printed import printed_table
from markdown_table import markdown_table

NOT_RUN = "Not run yet."
PLANS = Path(__file__).parent.parent / "studies"
PLANNED = ("subtyping", "splits", "survival", "colon", "transplants", "anchor", "asmil", "recommended")
CHANGES = ("asmil", "asmil_cpu")
"""Records of question 5, on an H200 and on a CPU; a run that is in both counts once."""
NAMED = ("abmil", "linear", "mean_pooling", "asmil")
"""Methods of question 1 that the short table always has."""
BEST = 3
ANCHORED = ("none", "none, drop 0", "nsf 1", "nsf 1, drop 0.5", "temperature 4", "entropy 1")
"""Arms of question 4 that the short table has."""
LEVEL = 0.05
FEW_WEIGHTS = ("psmil",)
"""Methods with as few weights as a linear probe, whose grid had not ten times the learning rates of the others."""
FARTHEST = -0.08
"""A larger loss is a number at the edge of the figure, so that the others can be seen."""
FLATTENING = ("abmil, temperature 2", "abmil, temperature 4", "abmil, entropy 0.1", "abmil, entropy 1")
GAIN = ("abmil, nsf 1", "brca")
EXPLAINED_SHARE = 0.8
TO_REACH = ("abmil", "linear")
"""What a recommended setting of ASMIL is compared with."""
WITHOUT_ANCHOR = "asmil, no anchor"
PRINTED_ON_COLON = {"abmil": 0.968, "simlp": 0.940, "max_pooling": 0.914}
"""AUC of slides that the ABMIL paper prints: gated attention, mean of embedded tiles, maximum of tiles."""
UNCHANGED = "asmil, paper"
"""The setting that it must be better than."""
WITHIN = -0.005
"""The largest loss to tuned ABMIL and to the tuned linear probe that a recommended setting of ASMIL may have."""
TITLES = {"brca": "BRCA", "nsclc": "NSCLC", "blca": "BLCA", "gbmlgg": "GBMLGG", "luad": "LUAD", "ucec": "UCEC"}
ARMS = {
    "official": "with splits as printed",
    "repaired": "with repaired splits",
    "quarter": "with a quarter of the patients",
    "sites": "with a site left out",
}
PUBLISHED = {"mil": "attention MIL", "clam_sb": "CLAM-SB", "hipt_lgp[vit4k_xs_dino]_freeze_[None]": "HIPT"}
PUBLISHED_SURVIVAL = {"AMIL": "attention MIL", "HIPT_LGP[vit4k_xs_dino]_freeze_[None]": "HIPT"}
STARTS = ("paper", "no_anchor")
WITNESSES = "witnesses "
FEW = f"{WITNESSES}10"
"""The transplants of the README."""
CONTRIBUTIONS = ("contribution", "attention_logit")
"""Maps of what each tile adds to the answer."""
PERMUTED = "permuted labels"
"""In the name of the cohort whose labels were permuted."""


class Study:
    """The records in a folder."""

    NOT_RUN = NOT_RUN

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def table(self, name: str) -> pd.DataFrame | None:
        """A record; None if it was not written."""
        path = self.folder / f"{name}.csv"
        return pd.read_csv(path) if path.is_file() else None

    def tables(self, *names: str) -> list[pd.DataFrame]:
        """Those of some records that were written."""
        return [table for name in names if (table := self.table(name)) is not None]

    def unfinished(self) -> list[str]:
        """The sweeps with runs that have no record, with numbers."""
        parts = []
        for name in PLANNED:
            plan = yaml.safe_load((PLANS / f"real_{name}.yaml").read_text())
            planned = len(plan["cohorts"]) * len(plan["variants"])
            found = self.tables(*(CHANGES if name == "asmil" else (name,)))
            done = len({key for table in found for key in zip(table["cohort"], table["variant"], strict=True)})
            if done < planned:
                parts.append(f"{name} {done} of {planned}")
        return parts

    def missing(self) -> str:
        """Which of the planned runs have no record, in a sentence; empty if all have."""
        parts = self.unfinished()
        return f"**Not complete.** Runs with records, of those planned: {_listed(parts)}." if parts else ""

    def trained_again(self) -> str:
        """The scores of references that were trained in several sessions, in a sentence; empty if none was."""
        parts = []
        for name in PLANNED:
            table = self.table(name)
            if table is None or "reference_value" not in table:
                continue
            for (cohort, reference), rows in table.groupby(["cohort", "reference"], sort=False):
                own = rows[rows["variant"] == rows["reference"]]["value"]
                scores = sorted({f"{value:.3f}" for value in [*own, *rows["reference_value"].dropna()]})
                if len(scores) > 1:
                    parts.append(f"{reference} on {TITLES.get(str(cohort), str(cohort))} {' and '.join(scores)}")
        return (
            f"Some references were trained in two sessions ({'; '.join(parts)}); a difference is to the one of its "
            "own session."
            if parts
            else ""
        )

    def in_three_sentences(self) -> str:
        """What ASMIL is good for and what not, for the README."""
        tuned, anchored = self.table("subtyping"), self.table("anchor")
        if tuned is None or anchored is None or "asmil" not in self.verdicts:
            return f"What ASMIL is good for on real tissue: {NOT_RUN.lower()}"
        both = tuned[tuned["cohort"].isin(tuned[tuned["variant"] == "asmil"]["cohort"])]
        scores = [_by_cohort(both, name) for name in ("asmil", "abmil", "linear")]
        arms = (anchored[anchored["variant"] == f"abmil, {arm}"].mean(numeric_only=True) for arm in ("none", "nsf 1"))
        without, anchor = arms
        return (
            f"On real tissue, with the same tuning for all, ASMIL {self._beside_abmil(tuned)}. Macro-AUC: "
            f"ASMIL {scores[0]}{self._without_anchor(tuned)}; ABMIL {scores[1]}; a linear probe "
            f"{scores[2]}{self._not_tuned_on()}.{self._untuned('asmil')}\n\n"
            f"The anchor {'makes' if anchor['jsd_late'] < without['jsd_late'] else 'does not make'} attention move "
            f"less late in training, and {_flatter(anchor['effective_share'], without['effective_share'])}. It "
            f"{self._gains_of_anchors(anchored)}{self._few_witnesses()}."
            f"{self._found_witnesses(('abmil', 'asmil', WITHOUT_ANCHOR))}\n\n"
            "So use ASMIL to repeat its paper or to study attention that does not move. For a classifier, train "
            "`abmil` and `linear` first, and compare."
        )

    def _beside_abmil(self, tuned: pd.DataFrame) -> str:
        """How ASMIL compares with ABMIL, with the sign of differences that are not shown, as a part of a sentence."""
        found = self.verdicts["asmil"]
        if found != "undecided":
            return f"is {found} than ABMIL"
        differences = tuned[tuned["variant"] == "asmil"]["difference"]
        signs = {"lower": (differences < 0).all(), "higher": (differences > 0).all()}
        word = next((word for word, holds in signs.items() if holds), None)
        if word is None:
            return "is not shown to differ from ABMIL"
        return (
            f"has a {word} AUC than ABMIL on every cohort; after correction for "
            f"{len(self.verdicts)} comparisons the difference is not shown"
        )

    def _not_tuned_on(self) -> str:
        """The cohorts of question 1 on which ASMIL has no record, in brackets."""
        tuned = self.table("subtyping")
        assert tuned is not None
        left = set(tuned["cohort"]) - set(tuned[tuned["variant"] == "asmil"]["cohort"])
        return f" (on {_listed([TITLES[name] for name in sorted(left)])}, ASMIL was not tuned yet)" if left else ""

    def _without_anchor(self, tuned: pd.DataFrame) -> str:
        """What is shown of ASMIL without its anchor, as a part of a sentence; empty if nothing is."""
        found = self.verdicts.get(WITHOUT_ANCHOR, "undecided")
        return "" if found == "undecided" else f", without its anchor {found}, {_by_cohort(tuned, WITHOUT_ANCHOR)}"

    @staticmethod
    def _gains_of_anchors(anchored: pd.DataFrame) -> str:
        """Whether NSF raises AUC, as a part of a sentence."""
        nsf = anchored[anchored["variant"].str.contains("nsf")]
        gains = nsf[(nsf["p_holm"] < LEVEL) & (nsf["difference"] > 0)]
        return f"raises AUC for {_listed(gains['variant'].tolist())}" if len(gains) else "is not shown to raise AUC"

    def _untuned(self, variant: str) -> str:
        """A variant and ABMIL with fixed settings: survival, and splits with a shown difference; a sentence."""
        parts = []
        survival, splits = self.table("survival"), self.table("splits")
        if splits is not None:
            by_key = _by_key(splits)
            for row in _rows(splits[(splits["p_holm"] < LEVEL) & (splits["variant"] == variant)]):
                word = "better" if row["difference"] > 0 else "worse"
                scores = f"{row['value']:.3f}, ABMIL {by_key['abmil', row['cohort']]['value']:.3f}"
                parts.append(f"it is {word} on {_split(row['cohort'])} ({scores})")
        means = {} if survival is None else complete_means(survival)
        if survival is not None and means.keys() >= {variant, "abmil"}:
            scores = f"{means[variant]:.3f} (ABMIL {means['abmil']:.3f})"
            parts.append(f"its mean C-index on {survival['cohort'].nunique()} survival cohorts is {scores}")
        return f" With fixed settings, {'; '.join(parts)}." if parts else ""

    def _few_witnesses(self) -> str:
        """What NSF does to ABMIL where a slide has few tiles of another tissue, as the end of a sentence."""
        table = self.table("transplants")
        row = {} if table is None else _by_key(table).get(("abmil, nsf", FEW), {})
        if not row or row["p_holm"] >= LEVEL:
            return ""
        few, before = FEW.split()[1], row["value"] - row["difference"]
        return (
            f", and where only {few} tiles of a slide matter (an artificial cohort), it changes the AUC of ABMIL from "
            f"{before:.2f} to {row['value']:.2f}"
        )

    # Question 1

    @cached_property
    def verdicts(self) -> dict[str, str]:
        """Each variant of question 1 compared with ABMIL: better, worse or undecided."""
        table = self.table("subtyping")
        if table is None:
            return {}
        return {str(name): verdict(rows) for name, rows in table.groupby("variant", sort=False) if name != "abmil"}

    def which_method(self) -> str:
        """The answer to question 1."""
        table = self.table("subtyping")
        if table is None:
            return NOT_RUN
        by_verdict = {word: [name for name, found in self.verdicts.items() if found == word] for word in VERDICTS}
        shown = "; ".join(f"{name} {_by_cohort(table, name)}" for name in NAMED if name in set(table["variant"]))
        answer = f"{_are(by_verdict['better'], 'better than ABMIL')}; {_are(by_verdict['worse'], 'worse')}"
        undecided = f"undecided: {len(by_verdict['undecided'])} of {len(self.verdicts)} variants"
        return f"**{answer[0].upper()}{answer[1:]}; {undecided}.** Macro-AUC: {shown}."

    def short_subtyping_table(self) -> str:
        """Question 1: what is shown to differ, the best variants, and those that readers know."""
        table = self.table("subtyping")
        if table is None:
            return NOT_RUN
        best = by_mean(table)[:BEST]
        decided = [name for name, found in self.verdicts.items() if found != "undecided"]
        chosen = table[table["variant"].isin({*NAMED, *best, *decided})]
        return scores_table(chosen, "difference to abmil", self.verdicts)

    def subtyping_table(self) -> str:
        """Scores and differences of question 1, best mean first."""
        table = self.table("subtyping")
        return NOT_RUN if table is None else scores_table(table, "difference to abmil", self.verdicts)

    def other_splits(self) -> str:
        """What is shown under the authors' splits and others, in a sentence; empty if nothing was run."""
        table = self.table("splits")
        if table is None:
            return ""
        shown = [
            f"{row['variant']} {row['difference']:+.3f} on {_split(row['cohort'])}"
            for row in _rows(table[table["p_holm"] < LEVEL])
        ]
        return f"Shown differences to ABMIL on other splits, with fixed settings: {_listed(shown) or 'none'}."

    def splits_table(self) -> str:
        """Macro-AUC under the authors' splits and others, beside the authors' results."""
        table = self.table("splits")
        if table is None:
            return NOT_RUN
        columns = [(cohort, arm) for cohort in ("brca", "nsclc") for arm in ARMS]
        values = table.set_index(["variant", "cohort"])["value"]
        rows = [
            [name, *(_shown(values.get((name, f"{cohort}, {arm}"))) for cohort, arm in columns)]
            for name in dict.fromkeys(table["variant"])
        ]
        cited = self.table("published")
        if cited is not None:
            known = cited.set_index(["cohort", "method", "share_of_training"])["value"]
            shares = {"official": 1.0, "quarter": 0.25}
            rows += [
                [
                    f"published: {title}",
                    *(
                        _shown(known.get((cohort, method, shares[arm])) if arm in shares else None)
                        for cohort, arm in columns
                    ),
                ]
                for method, title in PUBLISHED.items()
            ]
        return markdown_table(["", *(f"{TITLES[cohort]} {ARMS[arm]}" for cohort, arm in columns)], rows)

    # Question 2

    def survival(self) -> str:
        """The answer to question 2."""
        table = self.table("survival")
        if table is None:
            return NOT_RUN
        means = complete_means(table)
        shown = table[table["p_holm"] < LEVEL]
        found = [
            f"{row['variant']} is {'better' if row['difference'] > 0 else 'worse'} on {TITLES[row['cohort']]}"
            for row in _rows(shown)
        ]
        first = f"**{'; '.join(found)}.**" if found else "**No difference to ABMIL is shown on any cohort.**"
        return (
            f"{first} Mean C-index over all cohorts: {_listed([f'{name} {mean:.3f}' for name, mean in means.items()])}."
        )

    def survival_table(self) -> str:
        """C-index by cohort, beside the paper's and the authors' numbers."""
        table = self.table("survival")
        if table is None:
            return NOT_RUN
        cohorts = list(dict.fromkeys(table["cohort"]))
        by_key = _by_key(table)
        rows = []
        for name in by_mean(table):
            cells = [by_key.get((name, cohort)) for cohort in cohorts]
            rows.append([name, *("" if row is None else _bold(f"{row['value']:.3f}", row) for row in cells)])
        rows += [
            [f"paper: {printed.about['method']}", *(f"{printed.values[name][0]:.3f}" for name in cohorts)]
            for printed in printed_table("survival").rows
        ]
        cited = self.table("published")
        if cited is not None:
            known = cited[cited["share_of_training"] == 1].set_index(["cohort", "method"])["value"]
            for method, title in PUBLISHED_SURVIVAL.items():
                found = [known.get((f"survival-{cohort}", method)) for cohort in cohorts]
                rows.append([f"authors: {title}", *map(_shown, found)])
        return markdown_table(["", *(TITLES[cohort] for cohort in cohorts)], rows)

    # Question 3

    @cached_property
    def maps(self) -> pd.DataFrame | None:
        """All records of maps."""
        tables = self.tables("maps_colon", "maps_colon_cpu", "maps_transplants")
        return pd.concat(tables, ignore_index=True) if tables else None

    def where_it_looks(self) -> str:
        """The answer to question 3."""
        if self.maps is None:
            return NOT_RUN
        own = own_maps(self.maps)
        parts = []
        for cohort, rows in own[own["cohort"].isin(["nuclei", "grid"])].groupby("cohort", sort=False):
            (worst,), (best,) = _rows(rows.nsmallest(1, "auc")), _rows(rows.nlargest(1, "auc"))
            highest = f"{best['variant']} {_interval(best, 'auc', '.2f')}"
            lowest = f"{worst['variant']} {_interval(worst, 'auc', '.2f')}"
            parts.append(f"{cohort} of {best['slides']:.0f} slides: highest {highest}, lowest {lowest}")
        found = f"**Tile AUC of the methods' own maps on colon, {'; '.join(parts)}.**"
        return f"{found}{self._weighted()}"

    def of_slides(self) -> str:
        """AUC of the slides of colon, in sentences; empty if they were not run."""
        table = self._colon()
        if table is None:
            return ""
        parts = []
        for cohort, rows in table.groupby("cohort", sort=False):
            values = rows.set_index("variant")["value"]
            known = _listed([f"{name} {values[name]:.3f}" for name in NAMED if name in values])
            shown = _listed(
                [f"{row['variant']} {row['difference']:+.3f}" for row in _rows(rows[rows["p_holm"] < LEVEL])]
            )
            parts.append(f"{known} ({cohort}; {f'shown: {shown}' if shown else 'no difference to ABMIL is shown'})")
        return f"AUC of slides: {'; '.join(parts)}; the ABMIL paper prints {PRINTED_ON_COLON['abmil']} for ABMIL."

    def _colon(self) -> pd.DataFrame | None:
        """The slides of colon with their own labels."""
        table = self.table("colon")
        rows = None if table is None else table[~table["cohort"].str.contains(PERMUTED)]
        return None if rows is None or rows.empty else rows

    def colon_table(self) -> str:
        """AUC of the slides of colon, beside the numbers of the ABMIL paper."""
        table = self._colon()
        if table is None:
            return NOT_RUN
        cohorts, by_key = list(dict.fromkeys(table["cohort"])), _by_key(table)
        rows = []
        for variant in by_mean(table):
            found = [by_key.get((variant, cohort)) for cohort in cohorts]
            cells = [
                cell
                for row in found
                for cell in (["", ""] if row is None else [f"{row['value']:.3f}", _difference(row)])
            ]
            rows.append([variant, *cells, _shown(PRINTED_ON_COLON.get(variant))])
        headers = [word for cohort in cohorts for word in (cohort, "difference to abmil")]
        return markdown_table(["", *headers, "ABMIL paper"], rows)

    def _weighted(self) -> str:
        """Attention beside attention times what the model says of a tile, on the nuclei of colon."""
        assert self.maps is not None
        nuclei = self.maps[self.maps["cohort"] == "nuclei"].pivot(index="variant", columns="kind", values="auc")
        if not {"attention", "attention_logit"} <= set(nuclei):
            return ""
        both = nuclei.dropna(subset=["attention", "attention_logit"])
        pairs = [f"{name} {row['attention']:.2f} and {row['attention_logit']:.2f}" for name, row in both.iterrows()]
        return f" Attention, and attention times the tile's own logit: {_listed(pairs)}."

    def permuted(self) -> str:
        """Whether models that were trained on permuted labels predict nothing."""
        table = self.table("colon")
        rows = None if table is None else table[table["cohort"].str.contains(PERMUTED)]
        if rows is None or rows.empty:
            return f"Permuted labels: {NOT_RUN.lower()}"
        failed = rows[(rows["value_low"] > 0.5) | (rows["value_high"] < 0.5)]["variant"].tolist()
        found = f"differs from chance for {_listed(failed)}" if failed else "does not differ from chance, as it must"
        span = f"{rows['value'].min():.2f} to {rows['value'].max():.2f}"
        return f"Permuted labels: the AUC of slides {found} ({len(rows)} variants, {span}).{self._by_chance()}"

    def _by_chance(self) -> str:
        """What random orders of the labels give, in a sentence; empty if this was not measured."""
        path = self.folder / "chance.json"
        if not path.is_file():
            return ""
        known = json.loads(path.read_text())
        return (
            f" This is one random order: a logistic regression on mean features has an AUC of {known['own']:.2f} with "
            f"it, and of {known['low']:.2f} to {known['high']:.2f} with 95 % of {known['orders']} others "
            f"({100 * known['below']:.1f} % are as low)."
        )

    def untrained(self) -> str:
        """Whether the maps of models before training find less than those of trained ones."""
        assert self.maps is not None
        own = own_maps(self.maps)
        failed = own[(own["initial_auc"] - 0.5).abs() > (own["auc"] - 0.5).abs()]
        named = [f"{row['variant']} on {row['cohort']}" for row in _rows(failed)]
        found = (
            f"farther from chance than after it: {_listed(named)}"
            if named
            else "none is farther from chance than after"
        )
        return f"Weights before training, {len(own)} maps: {found}."

    def maps_table(self) -> str:
        """The methods' own maps: tile AUC by cohort, and what else was measured on the nuclei of colon."""
        if self.maps is None:
            return NOT_RUN
        own = own_maps(self.maps)
        witnesses = [cohort for cohort, _ in by_witnesses(own[own["cohort"].str.startswith(WITNESSES)])]
        cohorts = [*(name for name in dict.fromkeys(own["cohort"]) if name not in witnesses), *witnesses]
        by_key = _by_key(own)
        more = {
            "ap": "nuclei: AP",
            "agreement": "seeds agree",
            "area": "faithfulness",
            "initial_auc": "before training",
        }
        signed = _by_key(self.maps[self.maps["kind"].isin(CONTRIBUTIONS) & (self.maps["cohort"] == "nuclei")])
        rows = []
        for variant in dict.fromkeys(own["variant"]):
            found = [by_key.get((variant, cohort)) for cohort in cohorts]
            nuclei = by_key.get((variant, "nuclei"), {})
            cells = [_interval(row, "auc", ".2f") if row else "" for row in found]
            cells += [_shown(nuclei.get(name), ".2f") for name in more]
            contribution = signed.get((variant, "nuclei"))
            cells.append("" if contribution is None else _interval(contribution, "auc", ".2f"))
            rows.append([variant, next(row["kind"] for row in found if row), *cells])
        headers = ["", "map", *(f"{cohort}: AUC" for cohort in cohorts), *more.values(), "contributions, nuclei: AUC"]
        return markdown_table(headers, rows, words=2)

    def few_witnesses(self) -> str:
        """Which variants differ from ABMIL in telling slides with few witnesses from those without."""
        table = self.table("transplants")
        if table is None:
            return NOT_RUN
        parts = []
        for cohort, rows in by_witnesses(table[table["p_holm"] < LEVEL]):
            for sign, word in ((1, "better"), (-1, "worse")):
                names = rows[sign * rows["difference"] > 0]["variant"].tolist()
                if names:
                    parts.append(f"with {cohort.split()[1]}, {word}: {_listed(names)}")
        found = f"**Compared with ABMIL by the number of witnesses: {' | '.join(parts) or 'no difference is shown'}.**"
        return f"{found}{self._found_witnesses()}"

    def _found_witnesses(self, variants: Sequence[str] = ("abmil", "abmil, nsf", "asmil", WITHOUT_ANCHOR)) -> str:
        """The AUC of the tiles of transplants by attention, with and without an anchor, in a sentence."""
        if self.maps is None:
            return ""
        own = own_maps(self.maps[self.maps["cohort"].str.startswith(WITNESSES)])
        numbers = [cohort for cohort, _ in by_witnesses(own)]
        by_key = {key: f"{row['auc']:.2f}" for key, row in _by_key(own).items()}
        measured = [name for name in variants if all((name, cohort) in by_key for cohort in numbers)]
        parts = [f"{name} {', '.join(by_key[name, cohort] for cohort in numbers)}" for name in measured]
        asked = ", ".join(cohort.split()[1] for cohort in numbers)
        return f" Tile AUC of attention with {asked} such tiles: {'; '.join(parts)}." if parts else ""

    def transplants_table(self) -> str:
        """AUC of slides by the number of witnesses."""
        table = self.table("transplants")
        if table is None:
            return NOT_RUN
        cohorts = [cohort for cohort, _ in by_witnesses(table)]
        by_key = _by_key(table)
        rows = [
            [name, *("" if row is None else _bold(f"{row['value']:.2f}", row) for row in found)]
            for name in by_mean(table)
            for found in [[by_key.get((name, cohort)) for cohort in cohorts]]
        ]
        return markdown_table(["", *cohorts], rows)

    # Question 4

    def what_stabilizes(self) -> str:
        """The answer to question 4."""
        table = self.table("anchor")
        if table is None:
            return NOT_RUN
        shown = _rows(table[table["p_holm"] < LEVEL])
        found = [f"{row['variant']} {row['difference']:+.3f} on {TITLES[row['cohort']]}" for row in shown]
        gains = (
            f"shown differences of AUC to no anchor: {'; '.join(found)}" if found else "no difference of AUC is shown"
        )
        return f"**The gain of ABMIL with NSF on BRCA: {self.flattening()}.** In all, {gains}."

    def flattening(self) -> str:
        """Whether flatter attention explains the gain of ABMIL with NSF on BRCA."""
        table = self.table("anchor")
        rows = {} if table is None else _by_key(table)
        gain = rows.get(GAIN)
        if gain is None:
            return NOT_RUN.lower().rstrip(".")
        if not (gain["difference"] > 0 and gain["p_holm"] < LEVEL):
            return f"undecided, since the gain itself ({gain['difference']:+.3f}) is not shown"
        shares = {
            arm: rows[arm, GAIN[1]]["difference"] / gain["difference"] for arm in FLATTENING if (arm, GAIN[1]) in rows
        }
        if not shares:
            return NOT_RUN.lower().rstrip(".")
        arm = max(shares, key=lambda name: shares[name])
        word = "explained by flattening" if shares[arm] >= EXPLAINED_SHARE else "not explained by flattening"
        return f"{word} (gain {gain['difference']:+.3f}; {arm} has {shares[arm]:.0%} of it)".replace("%", " %")

    def anchor_table(self) -> str:
        """Differences of AUC to no anchor by cohort, and means over cohorts of the other measures."""
        table = self.table("anchor")
        if table is None:
            return NOT_RUN
        return scores_table(table, "difference to none", None, {k: v for k, v in STABILITY.items() if k in table})

    def short_anchor_table(self) -> str:
        """Question 4: no anchor, the paper's anchor, and what else flattens attention."""
        table = self.table("anchor")
        if table is None:
            return NOT_RUN
        arms = table["variant"].str.partition(", ")[2]
        more = {name: STABILITY[name] for name in ("seed_spread", "map_agreement", "effective_share") if name in table}
        return scores_table(table[arms.isin(ANCHORED)], "difference to none", None, more)

    # Question 5

    def changes(self) -> pd.DataFrame | None:
        """Every planned change of ASMIL: its start, and the difference of AUC to the start on each cohort.

        A difference is one of the same machine. open: runs are missing that could show that the change helps
        """
        tables = self.tables(*CHANGES)
        if not tables:
            return None
        plan, tuned = (yaml.safe_load((PLANS / f"real_{name}.yaml").read_text()) for name in ("asmil", "subtyping"))
        cohorts = list(plan["cohorts"])
        values = [table.pivot_table("value", "cohort", "variant").reindex(cohorts) for table in tables]
        rows = []
        for name, planned in plan["variants"].items():
            start, _, change = str(name).partition(", ")
            if start in STARTS and change:
                measured = pd.Series(float("nan"), cohorts)
                for each in values:
                    if {name, start} <= set(each):
                        measured = measured.fillna(each[name] - each[start])
                is_tuned = planned["settings"].keys() <= tuned["settings"]["nested.grid"].keys()
                rows.append({"start": start, "change": change, "is_tuned": is_tuned, **measured.to_dict()})
        found = pd.DataFrame(rows)
        found["mean"] = found[cohorts].mean(axis=1, skipna=False)
        found["helps"] = (found[cohorts] > 0).all(axis=1)
        refuted = (found[cohorts] <= 0).any(axis=1)
        found["open"] = found[cohorts].isna().any(axis=1) & ~refuted & ~found["is_tuned"]
        return found.sort_values("mean", ascending=False, ignore_index=True)

    def what_changes_asmil(self) -> str:
        """The answer to question 5."""
        table = self.table("asmil")
        if table is None:
            return NOT_RUN
        of_asmil, below, shown = self._below_abmil(table)
        decided = f"{len(shown)} of these are shown to be" if len(shown) else "none is shown to be"
        found = f"**{len(below)} of {len(of_asmil)} AUCs of ASMIL are below that of ABMIL; {decided}.**"
        return f"{found} {self.recommendation()}"

    def below_abmil(self) -> str:
        """The scores of the starts, and the settings that are shown to be below ABMIL, in sentences."""
        table, changes = self.table("asmil"), self.changes()
        if table is None or changes is None:
            return NOT_RUN
        known = [
            f"{name} {_by_cohort(table, name)}"
            for name in ("paper", "no_anchor", *TO_REACH)
            if name in set(table["variant"])
        ]
        shown = [f"{row['variant']} ({TITLES[row['cohort']]})" for row in _rows(self._below_abmil(table)[2])]
        helping = [
            f"from `{start}`: {_listed(rows[rows['helps']]['change'].tolist()) or 'none'}"
            for start, rows in changes.groupby("start", sort=False)
        ]
        return (
            f"Macro-AUC: {'; '.join(known)}. Shown to be below ABMIL: {_listed(shown) or 'none'}. "
            f"Changes with a higher AUC than the start on both cohorts (not tested): {'; '.join(helping)}."
        )

    @staticmethod
    def _below_abmil(table: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
        """All runs of ASMIL, those below ABMIL, and those that are shown to be."""
        of_asmil = table[table["variant"].str.partition(", ")[0].isin(STARTS)]
        below = of_asmil[of_asmil["difference"] < 0]
        return of_asmil, below, below[below["p_holm"] < LEVEL]

    def changes_table(self) -> str:
        """The changes that help on both cohorts, and the five others with the highest mean."""
        changes = self.changes()
        if changes is None:
            return NOT_RUN
        complete = changes.dropna()
        chosen = pd.concat([complete[complete["helps"]], complete[~complete["helps"]].head(5)])
        cohorts = [name for name in changes.columns if name in TITLES]
        rows = [
            [row["start"], row["change"], *(f"{row[cohort]:+.3f}" for cohort in cohorts), f"{row['mean']:+.3f}"]
            for row in _rows(chosen)
        ]
        return markdown_table(["start", "change", *(TITLES[cohort] for cohort in cohorts), "mean"], rows, words=2)

    def between_machines(self) -> str:
        """How much the same setting of ASMIL differs between two machines, in sentences; empty if none ran on both."""
        gpu, cpu = map(self.table, CHANGES)
        if gpu is None or cpu is None:
            return ""
        pairs = [
            f"{row['variant']} {row['value']:.3f} and {row['value_cpu']:.3f} ({TITLES[row['cohort']]})"
            for row in _rows(gpu.merge(cpu, on=["cohort", "variant"], suffixes=("", "_cpu")))
        ]
        return (
            f"The same settings on an H200 and on a CPU, which draw other masks: {_listed(pairs)}. Differences of this "
            "size are within noise; a change counts as helping by its sign, as planned."
        )

    def recommended(self) -> dict[str, str]:
        """The setting that becomes `recommended`, by method; a method without one is not in it."""
        chosen = {}
        tuned, candidates = self.table("subtyping"), self.table("recommended")
        if tuned is not None and _gains(tuned, "abmil, nsf"):
            chosen["abmil"] = "abmil, nsf"
        if candidates is not None:
            own = candidates[candidates["reference"] == UNCHANGED]
            best = next((name for name in self.candidates() if _gains(own, name)), None)
            chosen |= {} if best is None else {"asmil": best}
        return chosen

    def candidates(self) -> list[str]:
        """The settings of ASMIL that are as good as ABMIL and the linear probe wherever they were run, best first."""
        table, tuned = self.table("recommended"), self.table("subtyping")
        if table is None or tuned is None:
            return []
        values, others = (each.pivot_table("value", "variant", "cohort") for each in (table, tuned))
        lost = pd.concat([values - others.loc[other] for other in TO_REACH], axis=1).min(axis=1)
        return [name for name in by_mean(table) if name != UNCHANGED and lost[name] > WITHIN]

    def recommendation(self) -> str:
        """What becomes `recommended`, in a sentence."""
        chosen = self.recommended()
        found = [f"{method}: {setting}" for method, setting in chosen.items()]
        if "asmil" not in chosen:
            found.append(f"ASMIL: {self._why_none()}")
        return f"Preset `recommended`: {'; '.join(found)}."

    def _why_none(self) -> str:
        table, tuned, left = self.table("recommended"), self.table("subtyping"), self.candidates()
        if table is None or tuned is None:
            return "not decided before the combinations of what helps were run"
        beside = table[table["reference"] == UNCHANGED].groupby("variant")["cohort"].nunique()
        if any(beside.get(name, 0) < tuned["cohort"].nunique() for name in left):
            return f"not decided; as good as ABMIL and the linear probe so far: {_listed(left)}"
        if left:
            return f"none, since {_listed(left)} is not shown to be better than preset `paper`"
        combined = table[table["variant"] != UNCHANGED]
        others = tuned[tuned["cohort"].isin(combined["cohort"])]
        scores = [f"{name} {_by_cohort(others, name)}" for name in TO_REACH]
        best = by_mean(combined)[0]
        planned = yaml.safe_load((PLANS / "real_recommended.yaml").read_text())["variants"]
        done = combined["variant"].nunique()
        decided = "none, since" if done >= len(planned) else f"not decided before all {len(planned)} were run, but"
        return (
            f"{decided} of {done} combinations of what helps, each with an anchor and tuned alike, none is within "
            f"{-WITHIN} of ABMIL and the linear probe on all cohorts "
            f"({_listed([*scores, f'{best} {_by_cohort(combined, best)}'])})"
        )

    # asmil methods

    def evidence(self) -> dict[str, str]:
        """One line for each method of question 1."""
        table = self.table("subtyping")
        if table is None:
            return {}
        lines = {}
        for name in dict.fromkeys(table["variant"]):
            if ", " not in name:
                found = "the reference" if name == "abmil" else f"{self.verdicts[name]} compared with abmil"
                doubt = "; its learning rates may be too low" if name in FEW_WEIGHTS else ""
                lines[name] = f"real tissue, tuned: AUC {_by_cohort(table, name)}, {found}{doubt} (docs/real_tissue.md)"
        return lines


STABILITY = {
    "f1": "F1",
    "ece": "calibration error",
    "seed_spread": "seeds: prediction",
    "map_agreement": "seeds: maps",
    "jsd_late": "late JSD",
    "effective_share": "effective share",
}
VERDICTS = ("better", "worse", "undecided")


def verdict(rows: pd.DataFrame) -> str:
    """better or worse than the reference: Holm's p < 0.05 on at least one cohort, and the same sign on all."""
    if (rows["p_holm"] < LEVEL).any() and len(rows) > 1:
        if (rows["difference"] > 0).all():
            return "better"
        if (rows["difference"] < 0).all():
            return "worse"
    return "undecided"


def by_witnesses(table: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """The rows of transplants by cohort, few witnesses first."""
    return sorted(
        ((str(name), rows) for name, rows in table.groupby("cohort")), key=lambda part: int(part[0].split()[1])
    )


def _gains(table: pd.DataFrame, variant: str) -> bool:
    """Whether a variant is above its reference on all cohorts, and shown on at least one."""
    rows = table[table["variant"] == variant]
    return bool(len(rows) > 1 and verdict(rows) == "better")


def own_maps(maps: pd.DataFrame) -> pd.DataFrame:
    """The first kind of map of each variant and cohort, which is the method's own."""
    return maps.drop_duplicates(["cohort", "variant"])


def scores_table(
    table: pd.DataFrame, difference: str, verdicts: dict[str, str] | None, more: dict[str, str] | None = None
) -> str:
    """One row per variant, best mean first: score and difference by cohort, the verdict, and means of other columns.

    Variants that were not run on all cohorts come last, without means.
    """
    cohorts = list(dict.fromkeys(table["cohort"]))
    by_key = _by_key(table)
    rows = []
    for variant in by_mean(table):
        cells = [variant]
        for cohort in cohorts:
            row = by_key.get((variant, cohort))
            cells += ["", ""] if row is None else [f"{row['value']:.3f}", _difference(row)]
        if verdicts is not None:
            cells.append(verdicts.get(variant, ""))
        found = table[table["variant"] == variant]
        for name in more or {}:
            mean = found[name].mean() if len(found) == len(cohorts) else None
            cells.append(_shown(mean, ".2g" if name == "jsd_late" else ".3f"))
        rows.append(cells)
    headers = ["", *(word for cohort in cohorts for word in (TITLES.get(cohort, cohort), difference))]
    return markdown_table([*headers, *([] if verdicts is None else ["verdict"]), *(more or {}).values()], rows)


def by_mean(table: pd.DataFrame) -> list[str]:
    """The variants, best mean over cohorts first; those that were not run on all cohorts come last."""
    means = table.groupby("variant")["value"].agg(["count", "mean"])
    return list(map(str, means.sort_values(["count", "mean"], ascending=False).index))


def complete_means(table: pd.DataFrame) -> dict[str, float]:
    """The mean score of each variant that was run on all cohorts, best first."""
    means = table.pivot(index="variant", columns="cohort", values="value").mean(axis=1, skipna=False)
    return {str(name): float(mean) for name, mean in means.dropna().sort_values(ascending=False).items()}


def _rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(name): value for name, value in row.items()} for row in table.to_dict("records")]


def _by_key(table: pd.DataFrame) -> dict[tuple[str, str], dict[str, Any]]:
    """The rows by variant and cohort."""
    return {(row["variant"], row["cohort"]): row for row in _rows(table)}


def _difference(row: dict[str, Any]) -> str:
    if pd.isna(row["p"]):
        return "reference"
    return _bold(f"{row['difference']:+.3f} ({row['difference_low']:+.3f} to {row['difference_high']:+.3f})", row)


def _bold(text: str, row: dict[str, Any]) -> str:
    """In bold if the difference to the reference is shown."""
    return f"**{text}**" if row.get("p_holm", 1.0) < LEVEL else text


def _interval(row: Any, name: str, shape: str) -> str:
    return f"{row[name]:{shape}} ({row[f'{name}_low']:{shape}} to {row[f'{name}_high']:{shape}})"


def _shown(value: float | None, shape: str = ".3f") -> str:
    return "" if value is None or pd.isna(value) else f"{value:{shape}}"


def _by_cohort(table: pd.DataFrame, variant: str) -> str:
    rows = table[table["variant"] == variant]
    return " / ".join(
        f"{value:.3f} ({TITLES[cohort]})" for cohort, value in zip(rows["cohort"], rows["value"], strict=True)
    )


def _listed(names: Sequence[str]) -> str:
    """In a row; separated by semicolons if a name has a comma.

    >>> _listed(["abmil", "dsmil"]), _listed(["abmil, nsf", "abmil"])
    ('abmil, dsmil', 'abmil, nsf; abmil')
    """
    return ("; " if any("," in name for name in names) else ", ").join(names)


def _split(cohort: str) -> str:
    """A cohort of other splits, in words.

    >>> _split("brca, sites")
    'BRCA with a site left out'
    """
    name, arm = cohort.split(", ")
    return f"{TITLES[name]} {ARMS[arm]}"


def _flatter(share: float, before: float) -> str:
    """Whether an anchor makes the attention of ABMIL flatter, with the effective shares."""
    word = "flatter" if share > before else "not flatter"
    return f"{word}: the effective share of ABMIL's tiles (1 is uniform) is {share:.2f} with it, {before:.2f} without"


def _are(names: Sequence[str], what: str) -> str:
    """Which variants are shown to be so, with the verb."""
    if not names:
        return f"no variant is shown to be {what}"
    return f"{_listed(names)} {'is' if len(names) == 1 else 'are'} shown to be {what}"


def forest(study: Study) -> str:
    """The differences of question 1 to ABMIL with intervals, one panel per cohort, as SVG."""
    from asmil.reporting.drawing import COLORS, new_figure, svg_text

    table = study.table("subtyping")
    if table is None:
        raise SystemExit(f"{study.folder} has no subtyping.csv; record the sweep first")
    tested = table[table["p"].notna()]
    order = list(tested.groupby("variant")["difference"].mean().sort_values().index)
    cohorts = list(dict.fromkeys(tested["cohort"]))
    with new_figure(7.5, 0.2 * len(order) + 1.0) as figure:
        panels = figure.subplots(1, len(cohorts), sharey=True, squeeze=False)[0]
        for axes, cohort in zip(panels, cohorts, strict=True):
            for row in _rows(tested[tested["cohort"] == cohort]):
                place, shown = order.index(row["variant"]), row["p_holm"] < LEVEL
                color = COLORS[1 if shown else 0]
                if row["difference"] < FARTHEST:
                    axes.plot(FARTHEST, place, "<", color=color, markersize=5)
                    axes.annotate(f"   {row['difference']:+.2f}", (FARTHEST, place), va="center", fontsize=8)
                    continue
                axes.plot([row["difference_low"], row["difference_high"]], [place, place], color=color, linewidth=1)
                axes.plot(row["difference"], place, "o", color=color, markersize=4)
            axes.axvline(0, color="0.5", linewidth=0.8)
            axes.set_title(TITLES.get(cohort, cohort))
            axes.set_xlabel("difference of AUC to ABMIL")
            axes.margins(y=0.5 / len(order))
            axes.set_yticks(range(len(order)), order)
        return svg_text(figure)
