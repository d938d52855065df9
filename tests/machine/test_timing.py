"""Time is counted once, by the innermost stage, and only when someone asks."""

import time

import pytest

from asmil.machine.timing import measured, timed


@timed("inner")
def inner():
    time.sleep(0.02)


def test_the_time_of_an_inner_stage_belongs_to_it():
    with measured("rest") as timings:
        with timed("outer"):
            inner()
        inner()
    assert set(timings.seconds) == {"rest", "outer", "inner"}
    assert timings.seconds["inner"] >= 0.04
    assert timings.seconds["outer"] < timings.seconds["inner"]


def test_a_stage_ends_with_an_error():
    with measured("rest") as timings:
        with pytest.raises(ValueError, match="wrong"), timed("failing"):
            raise ValueError("wrong")
        time.sleep(0.02)
    assert timings.seconds["rest"] >= 0.02


def test_nothing_is_counted_unless_asked():
    inner()
    with measured() as timings:
        pass
    assert set(timings.seconds) == {"everything else"}
