"""Lists of clients in packed arrays."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpriv.privacy.client_lists import ClientLists, joined

lists_of_clients = st.lists(st.sets(st.integers(0, 70_000), max_size=6).map(lambda found: tuple(sorted(found))))


def filled(lists: list[tuple[int, ...]]) -> tuple[ClientLists, list[int]]:
    packed = ClientLists()
    return packed, [packed.number_of(clients) for clients in lists]


@given(lists_of_clients)
def test_lists_are_returned_as_given(lists):
    packed, numbers = filled(lists)
    assert [packed[number] for number in numbers] == lists
    assert len(packed) == len({*lists})
    assert packed.sizes.tolist() == [len(clients) for clients in packed]


@given(lists_of_clients)
def test_lists_survive_json(lists):
    packed, numbers = filled(lists)
    again = ClientLists.unpacked(json.loads(json.dumps(packed.packed())))
    assert [again[number] for number in numbers] == lists


@given(lists_of_clients, lists_of_clients)
def test_joined_lists_keep_numbers_of_the_first(first, second):
    packed, numbers = filled(first)
    other, other_numbers = filled(second)
    both, renumbered = joined(packed, other)
    assert [both[number] for number in numbers] == first
    assert [both[renumbered[number]] for number in other_numbers] == second


@given(lists_of_clients)
def test_participations_match_a_count(lists):
    packed, numbers = filled(lists)
    counts = packed.participations(np.array(numbers, np.int64))
    expected = Counter(client for clients in lists for client in clients)
    assert {client: count for client, count in enumerate(counts.tolist()) if count} == dict(expected)


def test_many_lists_are_counted_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedpriv.privacy.client_lists._AT_ONCE", 7)
    packed, numbers = filled([(0, 2), (1,), (), (0, 1, 2)] * 9)
    assert packed.participations(np.array(numbers)).tolist() == [18, 18, 18]


def test_late_lists_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedpriv.privacy.client_lists._MOST_KNOWN", 3)
    packed, numbers = filled([(0, 1), (2, 3), (2, 3), (0, 1)])
    assert numbers == [0, 1, 2, 0]
    assert [packed[number] for number in numbers] == [(0, 1), (2, 3), (2, 3), (0, 1)]
