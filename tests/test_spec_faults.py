"""Which call fails, as data: its JSON, and what is refused with what is wrong."""

from __future__ import annotations

import pytest

from pagedkv.specs.faults import MODES, UNDER_FAULT, Fault, fault_from_json
from pagedkv.specs.properties import Need

RIGHT = {"step": 2, "call": 3, "mode": "once"}


def test_a_faults_json_has_its_fields():
    assert Fault(2, 3, "once").to_json() == RIGHT


@pytest.mark.parametrize("mode", MODES)
def test_a_fault_survives_its_json(mode):
    fault = Fault(1, 1, mode)
    assert fault == fault_from_json(fault.to_json())


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([1], "a fault is an object of step, call and mode, not [1]"),
        (["step", "call", "mode"], "a fault is an object of step, call and mode, not ['step', "),
        ({"step": 1}, "a fault is an object of step, call and mode, not {'step': 1}"),
        ({**RIGHT, "more": 1}, "a fault is an object of step, call and mode, not {"),
        ({**RIGHT, "step": 0}, "step = 0 must be an integer >= 1"),
        ({**RIGHT, "call": 0}, "call = 0 must be an integer >= 1"),
        ({**RIGHT, "step": True}, "step = True must be an integer >= 1"),
        ({**RIGHT, "call": "1"}, "call = '1' must be an integer >= 1"),
        ({**RIGHT, "mode": "twice"}, "mode = 'twice' is none of once, persistent"),
    ],
)
def test_what_is_no_fault_is_refused_with_what_is_wrong(data, words):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is compared below
        fault_from_json(data)
    assert str(caught.value).startswith(words)


def test_it_is_judged_only_where_failure_is_injected():
    assert frozenset({Need.FAULTS}) == UNDER_FAULT.needs
