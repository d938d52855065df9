"""Writes what is read from records: README's table, pages from templates, lines of `asmil methods`, rows for claims.

    python docs/evidence.py            rewrite them
    python docs/evidence.py --check    list those that are out of date, and exit with 1 if there are any

Every number is read from a record, which a command of the repository wrote. In README.md, the table stands between
`<!-- evidence -->` and `<!-- end -->`, and what ASMIL is good for between `<!-- real tissue -->` and `<!-- end -->`.
`docs/templates/NAME.md.jinja` is the template of `docs/NAME.md`; the names that it uses are functions of
`docs/records.py` and `docs/costs.py`, and the modules of `benchmarks` that write its tables.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from importlib import import_module
from pathlib import Path

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS), str(DOCS.parent / "benchmarks")]

import costs  # noqa: E402
import records  # noqa: E402
from records import fox, record  # noqa: E402

from asmil.classic import tables as classic_tables  # noqa: E402
from asmil.paper.claims.listing import claims as paper_claims  # noqa: E402
from asmil.paper.claims.tissue import RECORDS  # noqa: E402

README = DOCS.parent / "README.md"
EVIDENCE = DOCS.parent / "src" / "asmil" / "models" / "data" / "evidence.json"
TISSUE = DOCS.parent / "src" / "asmil" / "paper" / RECORDS
MARKED = re.compile(r"(<!-- (evidence|real tissue) -->\n).*?(<!-- end -->)", re.DOTALL)
SHOWN_METHODS = {
    "abmil": "ABMIL",
    "clam_sb": "CLAM-SB",
    "dsmil": "DSMIL",
    "transmil": "TransMIL",
    "asmil (paper)": "ASMIL",
}
TITLES = {"bracs": "BRACS", "camelyon16": "CAMELYON-16", "camelyon17": "CAMELYON-17"}
BENCHMARKS = (
    "anchor_cost",
    "asmil_settings",
    "auto_searches",
    "encoding_speed",
    "growth",
    "measuring",
    "method_speed",
    "pack_speed",
    "preset_study",
    "reading_speed",
    "recording_cost",
    "side_by_side_speed",
    "small_trainings_speed",
    "survival_recovery",
    "tissue_speed",
)
WITHOUT_TRAINING = (
    "no-inference-cost",
    "cheaper-than-transmil",
    "inference-latency-memory",
    "mhim-training-memory",
    "mhim-training-time",
    "flops-vs-mhim",
    "temporal-ensembling-memory",
    "four-methods-unstable",
    "gain-bracs",
    "gain-c17",
    "gain-c16",
    "sparse-more-gain",
    "plug-in-max",
    "update-gain-units",
)


def main(arguments: list[str]) -> int:
    """Rewrite or check the pages; the exit code."""
    stale = {path: text for path, text in current_pages().items() if not path.exists() or path.read_text() != text}
    for path, text in stale.items():
        print(f"{path}: {'out of date; run python docs/evidence.py' if '--check' in arguments else 'rewritten'}")
        if "--check" not in arguments:
            path.write_text(text)
    return int(bool(stale) and "--check" in arguments)


def current_pages() -> dict[Path, str]:
    """The text of every page as the records have it now."""
    written = {"evidence": table(), "real tissue": f"{records.real_tissue.in_three_sentences()}\n"}
    readme = MARKED.sub(lambda match: f"{match[1]}{written[match[2]]}{match[3]}", README.read_text())
    environment = Environment(
        loader=FileSystemLoader(DOCS / "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    names = vars(records) | vars(costs)
    environment.globals |= {name: each for name, each in names.items() if not name.startswith("_")}
    environment.globals |= {name: import_module(name) for name in BENCHMARKS}
    environment.globals |= {"titles": TITLES, "without_training": WITHOUT_TRAINING, "classic_tables": classic_tables}
    pages = {
        DOCS / name.removesuffix(".jinja"): environment.get_template(name) for name in environment.list_templates()
    }
    rendered = {path: template.render() for path, template in pages.items()}
    lines = json.loads(EVIDENCE.read_text()) | records.real_tissue.evidence()
    data = {EVIDENCE: json.dumps(lines, indent=1) + "\n", TISSUE: rows_of_claims()}
    return {README: readme} | data | rendered


def rows_of_claims() -> str:
    """The rows of the records of real tissue that claims of the paper name, as a table."""
    named = [key for claim in paper_claims() if claim.tissue for key in claim.tissue.above]
    tables = {name: records.real_tissue.table(name) for name in dict.fromkeys(record for record, *_ in named)}
    columns = ["record", "cohort", "variant", "reference", "metric", "patients"]
    columns += ["difference", "difference_low", "difference_high", "p"]
    known = pd.concat([table.assign(record=name) for name, table in tables.items() if table is not None])
    wanted = pd.MultiIndex.from_tuples(named)
    return known[pd.MultiIndex.from_frame(known[columns[:3]]).isin(wanted)][columns].to_csv(index=False)


def table() -> str:
    """All rows; each names the command that wrote its record."""
    rows = [
        (
            "methods, statistics, FROC, survival and tiling match official implementations",
            oracles(),
            "`make oracles`",
        ),
        ("ASMIL step on 2 CPU cores", cpu_step(), "`make bench` ([performance](docs/performance.md))"),
        ("ASMIL step on one H200, 11,000 tiles", gpu_step(), "`make bench-gpu`"),
        ("five seeds, 395 slides, 50 epochs on one H200, command to report", gpu_command(), "`make bench-gpu`"),
        ("10,000 short bags in batches of 128 on one H200", short_bags(), "`make bench-gpu`"),
        (
            "the paper's tables, on synthetic stand-ins",
            claims(),
            "[reproduction](docs/reproduction.md), `asmil paper`, `asmil claims`",
        ),
        ("the anchor with NSF as a plug-in, synthetic cohort, five seeds", anchor(), "[study](docs/anchor_study.md)"),
        ("the classic benchmarks", classic(), "[classic](docs/classic.md)"),
    ]
    lines = [("claim", "measured", "how to repeat it"), ("---",) * 3, *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def claims() -> str:
    """How many claims have each verdict."""
    counts = records.verdicts()
    return f"of {counts.total()} claims {', '.join(f'{count} {verdict}' for verdict, count in counts.most_common())}"


def oracles() -> str:
    """How many files of official numbers agree, and how closely."""
    files = record("oracles.json")
    compared = [file for file in files if file["passed"] is not None]
    agree = [file for file in compared if file["passed"]]
    slides = sum(file["method"] == "tiling" for file in files)
    worst = max(file["relative"] for file in agree)
    return (
        f"{len(agree)} of {len(compared)} files agree, to {worst:.1e} of an output's scale or better; "
        f"{slides} of them need slides that are not in the repository"
    )


def cpu_step() -> str:
    """ASMIL's step beside its plain form on a CPU, smallest and largest bag."""
    ratios = [(row["tiles"], row["asmil_step_ratio"]) for row in record("asmil_speed_cpu.json")["rows"]]
    (few, first), (many, last) = ratios[0], ratios[-1]
    return f"{first:.1f}x ({few:,} tiles) to {last:.1f}x ({many:,} tiles) the plain form, same weights and bags"


def gpu_step() -> str:
    """The fused step beside the released form, for one seed and for five."""
    speed = record("gpu_speed_h200.json")
    one, five = (speed[f"released form over fused, {seeds}"] for seeds in ("one seed", "five seeds"))
    return (
        f"{speed['step, 1 seeds, 11000 tiles (ms)']:.2f} ms, {one:.0f}x the released form (eager, float32); five seeds "
        f"side by side {speed['step, 5 seeds, 11000 tiles (ms a seed)']:.3f} ms each, {five:.0f}x five of its steps"
    )


def gpu_command() -> str:
    """The whole command, and the part that is steps."""
    speed = record("gpu_speed_h200.json")
    first, again = (
        speed[f"asmil train --seeds 5, 50 epochs, {when} (s)"] for when in ("first time", "kernels compiled before")
    )
    steps = speed["of these, steps, kernels compiled before (s)"]
    return f"{again:.0f} s, {first:.0f} s the first time; {steps:.1f} s of these are steps"


def short_bags() -> str:
    """Batches beside one bag per step."""
    asmil = record("gpu_methods_h200.json")["short_bags_per_s"]["asmil"]
    batch = asmil["graphed, 128"]
    return (
        f"{round(batch, -2):,.0f} slides/s: {batch / asmil['fused, 1']:.1f}x the fused step with one bag, "
        f"{batch / asmil['plain, 1']:.0f}x `--plain`"
    )


def anchor() -> str:
    """Where seeds agree more with the anchor, and what it costs."""
    agreement = {(row["base"], row["term"]): row for row in record("anchor_study/agreement.json")}
    trainings = record("anchor_study/results.jsonl")

    def mean(base: str, term: str, key: str) -> float:
        return statistics.fmean(row[key] for row in trainings if (row["base"], row["term"]) == (base, term))

    agree = [
        base
        for base in SHOWN_METHODS
        if all(
            agreement[base, "anchor + nsf"][key] > agreement[base, "none"][key]
            for key in ("val_rank_correlation", "val_top1_overlap")
        )
    ]
    cost = [f"{mean(base, 'anchor + nsf', 'f1') - mean(base, 'none', 'f1'):+.2f}" for base in agree]
    share = [f"{mean(base, 'anchor + nsf', 'val_effective_share'):.2f}" for base in agree]
    return (
        f"maps of seeds agree more in {len(agree)} of {len(SHOWN_METHODS)} methods "
        f"({', '.join(SHOWN_METHODS[base] for base in agree)}); there the attention becomes nearly uniform "
        f"(effective share {', '.join(share)}) and macro-F1 changes by {', '.join(cost)}, where the paper reports gains"
    )


def classic() -> str:
    """Accuracy on FOX beside the paper's."""
    return f"{fox('results')} on FOX, where the paper prints {fox('paper')}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
