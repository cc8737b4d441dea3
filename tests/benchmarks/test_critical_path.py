"""The benchmark's replay of two ranks: what would have passed on cores that nobody else uses."""

from __future__ import annotations

import pytest

from benchmarks.support.critical_path import END, GATHER, RECEIVE, REDUCE, SEND, Event, critical_path

START: Event = (END, 0, 5.0, 5.0)
WAY = {(RECEIVE, 8): 0.5, (REDUCE, 8): 0.25, (GATHER, 8): 0.25}


def test_a_message_is_there_once_it_was_sent_and_travelled() -> None:
    leader: list[Event] = [START, (RECEIVE, 8, 6.0, 6.5), (END, 0, 7.5, 7.5)]
    for busy, expected in ((4.0, 4.0 + 0.5 + 1.0), (0.2, 1.0 + 1.0)):
        # the leader computes 1 s, waits, computes 1 s; the other one sends after `busy` s
        other: list[Event] = [START, (SEND, 8, 5.0, 5.0 + busy), (END, 0, 90.0, 90.0)]
        assert critical_path([leader, other], WAY) == pytest.approx(expected)


def test_messages_of_both_directions_and_sums_wait_for_the_slower_rank() -> None:
    leader: list[Event] = [
        START,
        (SEND, 8, 6.0, 6.0),
        (RECEIVE, 8, 6.0, 7.0),
        (REDUCE, 8, 7.5, 8.0),
        (END, 0, 8.0, 8.0),
    ]
    other: list[Event] = [START, (RECEIVE, 8, 5.5, 5.6), (SEND, 8, 7.6, 7.6), (REDUCE, 8, 8.6, 9.0), (END, 0, 9.0, 9.0)]
    # sent at 1, there at 1.5, back at 3.5, there at 4; then 0.5 s here against 1 s there, from 3.5 on
    assert critical_path([leader, other], WAY) == pytest.approx(4.5 + 0.25)
    assert critical_path([other, leader], WAY) == pytest.approx(4.5 + 0.25)


def test_logs_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        critical_path([[START, (RECEIVE, 8, 6.0, 6.0)], [START, (END, 0, 6.0, 6.0)]], WAY)
