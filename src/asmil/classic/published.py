"""Printed figures for the classic sets, and why they cannot be compared with ours."""

from __future__ import annotations

SOURCE = "ASMIL (Ye et al., 2025), the table of accuracies on five classic sets; mean and its ±"
SETS = ("musk1", "musk2", "fox", "tiger", "elephant")
_FIGURES = {
    "abmil": ((0.916, 0.118), (0.928, 0.109), (0.952, 0.051), (0.953, 0.042), (0.969, 0.036)),
    "dsmil": ((0.959, 0.053), (0.952, 0.066), (0.939, 0.060), (0.951, 0.053), (0.989, 0.023)),
    "transmil": ((0.927, 0.093), (0.877, 0.127), (0.944, 0.050), (0.963, 0.042), (0.979, 0.030)),
    "demil": ((0.963, 0.073), (0.961, 0.057), (0.941, 0.047), (0.965, 0.035), (0.969, 0.034)),
    "rgmil": ((0.968, 0.060), (0.963, 0.048), (0.954, 0.048), (0.949, 0.047), (0.965, 0.032)),
    "psmil": ((0.968, 0.053), (0.968, 0.052), (0.942, 0.054), (0.947, 0.047), (0.985, 0.030)),
    "asmil": ((0.971, 0.060), (0.968, 0.058), (0.961, 0.025), (0.969, 0.037), (0.985, 0.025)),
}
PAPER = {method: dict(zip(SETS, figures, strict=True)) for method, figures in _FIGURES.items()}
"""Mean accuracy and its ± for each method and set."""
WHY_NOT_COMPARABLE = (
    "The paper says only that it follows Du et al. (2025), with 40 epochs of Adam at 5e-4; folds, repeats, scaling and "
    "the epoch that is reported are not stated, and its repository has no code for these sets.",
    "The code of Du et al. reads 167 and 231 columns where the data have 166 and 230: the last one is the label of the "
    "bag, copied to every instance.",
    "The same code reports, fold by fold, the epoch that is best on the test bags, and its folds are not shuffled, so "
    "that nearly every test fold has one class only.",
    "Every method of the table, even that of 2018, reaches 0.94 to 0.96 on FOX; without the label column all known "
    "results lie between 0.58 and 0.73, even at the best test epoch.",
    "That the label was among the inputs is inferred from code and numbers, not proven.",
)
