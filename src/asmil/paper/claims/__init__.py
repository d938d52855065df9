"""The claims of the paper and how each is decided.

The paper's own measure in its own setting decides first; a substitute leaves a claim undecided. All rules that read
runs were written again on 2026-11-18, when all their results were known: none of them is a prediction. Which of the
earlier rules were older than their results: docs/reproduction.md.
"""
