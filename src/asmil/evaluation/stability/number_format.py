"""Numbers as the stability page and its pictures write them."""

from __future__ import annotations

import math

ROUNDING = 1e-9


def format_measure(value: float | None) -> str:
    """Three digits that count, two where there are zeros before them; an undefined number as a dash.

    >>> format_measure(0.03456), format_measure(0.000034), format_measure(1234.5)
    ('0.0346', '3.4e-5', '1234')
    """
    if value is None or math.isnan(value):
        return "–"
    size = abs(value)
    if size >= 100:
        return f"{value:.0f}"
    if 0 < size < 1e-3:
        digits, _, power = f"{value:.1e}".partition("e")
        return f"{digits}e{int(power)}"
    return f"{value:.3g}"


def format_share(share: float) -> str:
    """A share in per cent; never rounded to nothing or to all.

    >>> format_share(0.2512), format_share(0.0123), format_share(0.99987), format_share(1.0)
    ('25 %', '1.2 %', '99.98 %', '100 %')
    """
    if share < 0.1:
        return f"{100 * share:.2g} %"
    if share <= 0.99 or share > 1 - ROUNDING:
        return f"{100 * share:.0f} %"
    return f"{math.floor(1e4 * share) / 100:g} %" if share > 0.999 else f"{100 * share:.1f} %"


def format_count(number: int, what: str) -> str:
    """A number of things.

    >>> format_count(1, "slide"), format_count(2, "slide")
    ('1 slide', '2 slides')
    """
    return f"{number} {what}{'s' * (number != 1)}"
