"""The figures of a recipe, drawn from the recorded attention of its runs with the functions of `asmil stability`."""

from __future__ import annotations

from collections.abc import Iterator

from asmil.errors import AsmilError
from asmil.evaluation.stability import read_stability
from asmil.evaluation.stability.analysis import RunStability
from asmil.evaluation.stability.bag_features import bag_feature_figure
from asmil.evaluation.stability.figures import choose_slide, course_figures, histogram_figure
from asmil.evaluation.stability.maps import maps_figure
from asmil.paper.recipes import FigureKind
from asmil.paper.running import PaperRun
from asmil.reporting import Figure
from asmil.reporting.files import write_figures


def write_paper_figures(run: PaperRun) -> None:
    """Draw what the recipe asks for, for each cohort, from the first seed of each row."""
    for kind in run.recipe.figures:
        for cohort, stabilities in _recorded(run).items():
            drawn = {f"{kind}-{cohort}{f'-{name}' if name else ''}": fig for name, fig in _figures(kind, stabilities)}
            write_figures(drawn, run.out / "figures")


def _recorded(run: PaperRun) -> dict[str, dict[str, RunStability]]:
    """The recorded attention by cohort and row."""
    recorded: dict[str, dict[str, RunStability]] = {}
    results = run.results()
    if results.empty:
        return recorded
    for (cohort, variant), part in results.groupby(["cohort", "variant"], sort=False):
        try:
            stability = read_stability(run.out / part.sort_values("seed")["run"].iloc[0])
        except AsmilError:
            continue  # a method without attention
        recorded.setdefault(str(cohort), {})[str(variant)] = stability
    return recorded


def _figures(kind: FigureKind, stabilities: dict[str, RunStability]) -> Iterator[tuple[str, Figure]]:
    of_rows = list(stabilities.values())
    if kind == "courses":
        yield from course_figures(of_rows).items()
    elif kind == "maps":
        yield "", maps_figure(of_rows, choose_slide(of_rows))
    else:
        draw = bag_feature_figure if kind == "bag_features" else histogram_figure
        for name, stability in stabilities.items():
            yield name.replace("+", "-").replace(" ", "-"), draw(stability)
