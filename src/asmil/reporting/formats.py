"""Number formats for all reports."""

from __future__ import annotations

import math
from collections.abc import Sequence

from asmil.reporting.estimate import TOO_FEW, Estimate, Interval

UNDEFINED_TEXT = "–"
ROUNDING = 1e-9
ROUNDED = 5e-4
"""Numbers that differ by less look the same in a report."""
MOST_DECIMALS = 5
"""Of a number on a scale; smaller ones are written with powers of ten."""


def format_number(value: float, digits: int = 3) -> str:
    """A number with a fixed number of decimals; a dash if it is undefined.

    >>> format_number(-0.0001), format_number(-0.5), format_number(float("nan"))
    ('0.000', '−0.500', '–')
    """
    return UNDEFINED_TEXT if math.isnan(value) else f"{round(value, digits) + 0.0:.{digits}f}".replace("-", "−")


def format_interval(interval: Interval) -> str:
    """Both limits of an interval; a dash if it is undefined."""
    if math.isnan(interval.low):
        return UNDEFINED_TEXT
    return f"{format_number(interval.low)} to {format_number(interval.high)}"


def format_interval_of(estimate: Estimate) -> str:
    """The interval of an estimate; in words if there are too few patients for one."""
    return "too few to say" if estimate.how == TOO_FEW else format_interval(estimate.interval)


def format_signed(value: float) -> str:
    """A difference with its sign.

    >>> format_signed(0.1234), format_signed(-0.0001)
    ('+0.123', '+0.000')
    """
    return UNDEFINED_TEXT if math.isnan(value) else f"{round(value, 3) + 0.0:+.3f}".replace("-", "−")


def format_signed_interval(interval: Interval) -> str:
    """Both limits of the interval of a difference, with signs."""
    if math.isnan(interval.low):
        return UNDEFINED_TEXT
    return f"{format_signed(interval.low)} to {format_signed(interval.high)}"


def format_p(p: float) -> str:
    """A p-value; small values as a bound.

    >>> format_p(0.00001), format_p(0.0123)
    ('< 0.001', '0.012')
    """
    if math.isnan(p):
        return UNDEFINED_TEXT
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def format_small(value: float | None) -> str:
    """Three decimals; smaller positive numbers as a bound, so that a table has one notation.

    >>> format_small(0.03456), format_small(0.000034), format_small(0.0)
    ('0.035', '<0.001', '0.000')
    """
    if value is None or math.isnan(value):
        return UNDEFINED_TEXT
    return "<0.001" if 0 < value < 0.0005 else f"{value:.3f}"


def format_significant(value: float | None) -> str:
    """Three significant digits, two for small numbers; a dash if undefined.

    >>> format_significant(0.03456), format_significant(0.000034), format_significant(1234.5)
    ('0.0346', '3.4e-5', '1234')
    """
    if value is None or math.isnan(value):
        return UNDEFINED_TEXT
    size = abs(value)
    if size >= 100:
        return f"{value:.0f}"
    if 0 < size < 1e-3:
        digits, _, power = f"{value:.1e}".partition("e")
        return f"{digits}e{int(power)}"
    return f"{value:.3g}"


def format_alike(values: Sequence[float]) -> list[str]:
    """Numbers in one notation, as on a scale: the same number of decimals, or powers of ten where they are too small.

    >>> format_alike([0.00076, 0.0053, 0.0528]), format_alike([0.0, 2.5, 5.0]), format_alike([2e-8, 0.013])
    (['0.00076', '0.00530', '0.05280'], ['0.0', '2.5', '5.0'], ['2.0e-8', '1.3e-2'])
    """
    sizes = [abs(value) for value in values if abs(value) > ROUNDING * max(map(abs, values))]
    if not sizes:
        return ["0"] * len(values)
    first_digit = max(0, -math.floor(math.log10(min(sizes))))
    if first_digit >= MOST_DECIMALS:
        written = [f"{value:.1e}".partition("e") for value in values]
        pairs = zip(written, values, strict=True)
        return [f"{digits}e{int(power)}" if value else "0" for (digits, _, power), value in pairs]
    decimals = first_digit + (2 if first_digit + 2 <= MOST_DECIMALS else 1)
    texts = [format_number(value, decimals) for value in values]
    while decimals and all(text.endswith("0") for text in texts):
        decimals, texts = decimals - 1, [text[:-1].removesuffix(".") for text in texts]
    return texts


def format_share(share: float) -> str:
    """A share as a percentage; never rounded to 0 or 100 percent.

    >>> format_share(0.2512), format_share(0.0123), format_share(0.99987), format_share(1.0)
    ('25 %', '1.2 %', '99.98 %', '100 %')
    """
    if share < 0.1:
        return f"{100 * share:.2g} %"
    if share <= 0.99 or share > 1 - ROUNDING:
        return f"{100 * share:.0f} %"
    return f"{math.floor(1e4 * share) / 100:g} %" if share > 0.999 else f"{100 * share:.1f} %"


def format_count(number: int, what: str) -> str:
    """A count with its noun in singular or plural.

    >>> format_count(1, "slide"), format_count(2, "slide")
    ('1 slide', '2 slides')
    """
    return f"{number} {what}{'s' * (number != 1)}"


def format_times(*ends: float) -> str:
    """A survival time, or two as a range; infinity reads `not reached`.

    >>> format_times(12.34, float("inf"))
    '12.3 to not reached'
    """
    return " to ".join(
        UNDEFINED_TEXT if math.isnan(end) else f"{end:.1f}" if math.isfinite(end) else "not reached" for end in ends
    )


def format_duration(seconds: float | None) -> str:
    """A duration for people; empty where it is not known.

    >>> format_duration(42), format_duration(200), format_duration(5400), format_duration(400_000)
    ('42 s', '3 min', '1 h 30 min', '4.6 days')
    """
    if seconds is None:
        return ""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min" if minutes < 48 * 60 else f"{seconds / 86400:.1f} days"
