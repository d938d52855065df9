"""The loop and its ledger with a fleet that is only played."""

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asmil.engine.driving import drive
from asmil.engine.fleet import Event, Finished, Lost, NotMade, Ready
from asmil.engine.ledger import Ledger
from asmil.engine.watching import Watch, checked_timeout
from asmil.errors import AsmilError


class PlayedFleet:
    """Workers that die of every job in `poison`, and sometimes while they start."""

    def __init__(self, poison: set[int], seed: int, stillborn: float = 0.0) -> None:
        self.poison = poison
        self.random = random.Random(seed)
        self.stillborn = stillborn
        self.held: dict[int, list[int] | None] = {}
        self.crowds: dict[int, list[int]] = {}
        self.alone: dict[int, list[bool]] = {}
        self.closed = False

    def start(self, slot: int) -> None:
        assert slot not in self.held
        self.held[slot] = None

    def hand(self, slot: int, index: int, job: Any) -> None:
        held = self.held[slot]
        assert held is not None
        held.append(index)
        self.crowds.setdefault(slot, []).append(len(held))
        self.alone.setdefault(index, []).append(len(held) == 1)

    def wait(self, timeout_s: float | None = None) -> Sequence[Event]:
        slot = self.random.choice([slot for slot, held in self.held.items() if held is None or held])
        held = self.held[slot]
        if held is None:
            if self.random.random() < self.stillborn:
                del self.held[slot]
                return [Lost(slot, "stillborn")]
            self.held[slot] = []
            return [Ready(slot)]
        job = self.random.choice(held)
        if job in self.poison:
            del self.held[slot]
            return [Lost(slot, "died")]
        held.remove(job)
        return [Finished(slot, job, f"result {job}", None)]

    def stop(self, slot: int) -> None:
        del self.held[slot]

    def close(self) -> None:
        self.closed = True


@given(
    jobs=st.integers(0, 30),
    poison=st.sets(st.integers(0, 29), max_size=4),
    workers=st.integers(1, 5),
    concurrency=st.integers(1, 4),
    retries=st.integers(1, 3),
    seed=st.integers(0, 10**6),
)
def test_the_innocent_are_done_and_the_guilty_told(jobs, poison, workers, concurrency, retries, seed):
    fleet = PlayedFleet(poison, seed)
    names = [f"job {index}" for index in range(jobs)]
    outcomes = list(drive(fleet, names, workers, concurrency, retries, note=lambda sentence: None))
    assert sorted(outcome.job for outcome in outcomes) == sorted(names)
    for outcome in outcomes:
        index = names.index(outcome.job)
        if index in poison:
            assert (outcome.result, outcome.error, outcome.attempts) == (None, "died", retries + 1)
        else:
            assert (outcome.result, outcome.error) == (f"result {index}", None)
            assert outcome.attempts <= 2
        assert all(fleet.alone[index][1:])
    assert all(crowd <= concurrency for crowds in fleet.crowds.values() for crowd in crowds)
    assert fleet.closed or not jobs


def test_a_suspect_has_its_worker_to_itself():
    ledger = Ledger(jobs=6, concurrency=3, retries=1)
    ledger.join(0)
    assert ledger.assign() == [(0, 0), (0, 1), (0, 2)]
    assert ledger.lose(0) == []
    ledger.join(1)
    assert ledger.assign() == [(1, 0)]
    assert ledger.assign() == []
    ledger.finish(1, 0)
    assert ledger.assign() == [(1, 1)]
    assert ledger.lose(1) == [1]
    ledger.join(2)
    assert ledger.assign() == [(2, 2)]
    ledger.finish(2, 2)
    assert ledger.assign() == [(2, 3), (2, 4), (2, 5)]
    assert [ledger.attempts(job) for job in range(6)] == [2, 2, 2, 1, 1, 1]


def test_few_jobs_are_spread_over_the_workers():
    ledger = Ledger(jobs=5, concurrency=4, retries=0)
    for slot in range(3):
        ledger.join(slot)
    assert sorted(slot for slot, _ in ledger.assign()) == [0, 0, 1, 1, 2]


def test_slots_that_never_start_are_left_out_while_others_work():
    class OneSlotIsBad(PlayedFleet):
        def wait(self, timeout_s: float | None = None) -> Sequence[Event]:
            if 1 in self.held:
                del self.held[1]
                return [Lost(1, "out of memory")]
            return super().wait()

    notes: list[str] = []
    outcomes = list(drive(OneSlotIsBad(set(), 0), list(range(9)), 3, 2, retries=1, note=notes.append))
    assert len(outcomes) == 9
    assert len(notes) == 2
    assert all("out of memory" in note for note in notes)


def test_workers_that_never_start_end_the_run():
    fleet = PlayedFleet(set(), 0, stillborn=1.0)
    with pytest.raises(AsmilError, match="stillborn"):
        list(drive(fleet, list(range(9)), 2, 2, retries=1, note=lambda sentence: None))
    assert fleet.closed


def test_losing_every_worker_before_any_job_ends_is_not_the_jobs_fault():
    fleet = PlayedFleet(set(range(1000)), 0)
    with pytest.raises(AsmilError, match="died"):
        list(drive(fleet, list(range(1000)), 2, 2, retries=1, note=lambda sentence: None))
    assert len(fleet.alone) < 40


@pytest.mark.parametrize("jobs_before", [0, 1])
def test_a_worker_that_cannot_be_made_stops_the_run_only_while_nothing_is_done(jobs_before: int):
    """A machine that joins late, without the weights, must not end what others have done for hours."""

    class LateSlot(PlayedFleet):
        done = 0

        def wait(self, timeout_s: float | None = None) -> Sequence[Event]:
            if 1 in self.held and self.done == jobs_before:
                del self.held[1]
                return [NotMade(1, "no weights", mistake=True)]
            late = self.held.pop(1, "no")
            (event,) = super().wait()
            if late != "no":
                self.held[1] = None
            self.done += isinstance(event, Finished)
            return [event]

    notes: list[str] = []
    run = drive(LateSlot(set(), 0), list(range(5)), 2, 1, retries=1, note=notes.append)
    if jobs_before == 0:
        with pytest.raises(AsmilError, match="no weights"):
            list(run)
    else:
        assert len(list(run)) == 5
        assert len(notes) == 1
        assert "no weights" in notes[0]


def test_the_last_worker_that_cannot_be_made_again_ends_the_run():
    class NotMadeTwice(PlayedFleet):
        def wait(self, timeout_s: float | None = None) -> Sequence[Event]:
            if 0 in self.held and self.alone:
                del self.held[0]
                return [NotMade(0, "Traceback:\nRuntimeError: gone", mistake=False)] if self.lost else self.lose()
            return super().wait()

        lost = False

        def lose(self) -> list[Event]:
            self.lost = True
            return [Lost(0, "died")]

    with pytest.raises(RuntimeError, match="gone"):
        list(drive(NotMadeTwice(set(), 0), [1, 2], 1, 1, retries=1, note=lambda sentence: None))


class HangingFleet(PlayedFleet):
    """Jobs in `hanging` never end; time passes only while nothing happens."""

    def __init__(self, hanging: set[int], seed: int) -> None:
        super().__init__(set(), seed)
        self.hanging = hanging
        self.now = 0.0

    def wait(self, timeout_s: float | None = None) -> Sequence[Event]:
        able = [slot for slot, held in self.held.items() if held is None or set(held) - self.hanging]
        if not able:
            assert timeout_s is not None
            self.now += timeout_s
            return []
        slot = self.random.choice(able)
        held = self.held[slot]
        if held is None:
            self.held[slot] = []
            return [Ready(slot)]
        job = self.random.choice([job for job in held if job not in self.hanging])
        held.remove(job)
        return [Finished(slot, job, f"result {job}", None)]


@given(
    jobs=st.integers(1, 12),
    hanging=st.sets(st.integers(0, 11), max_size=3),
    workers=st.integers(1, 3),
    concurrency=st.integers(1, 3),
    retries=st.integers(0, 2),
    seed=st.integers(0, 10**6),
)
def test_jobs_without_progress_are_given_up_and_the_others_done(jobs, hanging, workers, concurrency, retries, seed):
    fleet = HangingFleet(hanging, seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("asmil.engine.driving.Watch", lambda seconds: Watch(seconds, clock=lambda: fleet.now))
        run = drive(fleet, list(range(jobs)), workers, concurrency, retries, lambda _: None, item_timeout_s=1e3)
        outcomes = {outcome.job: outcome for outcome in run}
    assert outcomes.keys() == set(range(jobs))
    for job, outcome in outcomes.items():
        assert (outcome.error is not None) == (job in hanging)
        assert outcome.attempts <= 1 + len(hanging) + 1
        assert outcome.error is None or "--item-timeout" in outcome.error


def test_a_watch_counts_from_the_last_progress():
    now = 0.0
    watch = Watch(10.0, clock=lambda: now)
    assert watch.patience_s() is None
    watch.begin(0, 7)
    watch.begin(1, 8)
    now = 6.0
    assert watch.patience_s() == 4.0
    watch.progressed(0, 7, silent_s=1.0)
    watch.progressed(0, 99, silent_s=0.0)
    now = 12.0
    assert watch.overdue() == {1: {8}}
    watch.forgive(5.0)
    assert watch.overdue() == {}
    now = 16.0
    assert watch.overdue() == {1: {8}}
    watch.forget(1)
    now = 20.0
    assert watch.overdue() == {0: {7}}
    watch.end(0, 7)
    assert watch.overdue() == {}


def test_a_watch_without_a_limit_says_nothing():
    watch = Watch(None)
    watch.begin(0, 1)
    assert (watch.patience_s(), watch.overdue()) == (None, {})


def test_the_time_of_an_item_in_words():
    assert checked_timeout(None, 60.0) == 60.0
    assert checked_timeout(0, 60.0) is None
    assert checked_timeout(5, 60.0) == 5
    for wrong in (-1.0, float("nan"), float("inf")):
        with pytest.raises(AsmilError, match="--item-timeout"):
            checked_timeout(wrong, 60.0)
