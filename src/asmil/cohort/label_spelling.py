"""Classes that are probably one class with a typing error: `tumour` and `tumor`, `nrmal` and `normal`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import combinations

from asmil.tables.names import folded

SHORTEST = 5
"""Letters of a word; shorter ones (`LUAD`, `LUSC`) are codes, in which every letter counts."""
_WORDS = re.compile(r"[^\W\d_]+|\d+|[+-]")
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_NUMERALS = frozenset("ivx")
_DIFFERENT = ({"micro", "macro"}, {"intra", "infra"}, {"ileum", "ilium"})
"""Beginnings of words that differ by a letter and have different meanings."""
MOST = 200
"""More labels than this are not classes, and comparing all pairs would be slow."""


def near_labels(counts: Mapping[str, int]) -> list[tuple[str, str]]:
    """Pairs of labels that differ by one letter of a word, the rarer first.

    Words are compared as a reader would: numbers, codes, numerals and endings such as `group a` and `group b` are
    different labels.

    >>> near_labels({"tumor": 9, "tumour": 2, "normal": 8, "nrmal": 1, "grade 1": 5, "grade 2": 5, "LUAD": 1})
    [('tumour', 'tumor'), ('nrmal', 'normal')]
    """
    if len(counts) > MOST:
        return []
    words = {name: _WORDS.findall(folded(_CAMEL.sub(" ", name))) for name in counts}
    pairs = []
    for first, second in combinations(sorted(counts, key=lambda name: (-counts[name], name)), 2):
        if len(words[first]) != len(words[second]):
            continue
        differing = [pair for pair in zip(words[first], words[second], strict=True) if pair[0] != pair[1]]
        if len(differing) == 1 and _is_slip(*differing[0]):
            pairs.append((second, first))
    return pairs


def _is_slip(first: str, second: str) -> bool:
    """Whether two words differ by a letter that was left out, added, replaced or exchanged with its neighbor."""
    short, long = sorted((first, second), key=len)
    if not (short.isalpha() and long.isalpha()) or len(short) < SHORTEST or len(long) - len(short) > 1:
        return False
    if {short[:SHORTEST], long[:SHORTEST]} in _DIFFERENT:
        return False
    start = next((n for n, (a, b) in enumerate(zip(short, long, strict=False)) if a != b), len(short))
    if len(short) < len(long):
        added = long[start]
        negates = start == 0 and added == "a"  # typical, atypical
        counts = start == len(short) and added in _NUMERALS
        return short[start:] == long[start + 1 :] and not negates and not counts
    swapped = short[start : start + 2] == long[start : start + 2][::-1] and short[start + 2 :] == long[start + 2 :]
    # another first or last letter makes another word: ventral, central; typea, typeb
    replaced = short[start + 1 :] == long[start + 1 :] and 0 < start < len(short) - 1
    return swapped or replaced
