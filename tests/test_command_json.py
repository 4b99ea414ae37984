"""Commands as JSON: each comes back as it was, and what is none is refused with what is wrong."""

from __future__ import annotations

import json

import pytest

from pagedkv.specs.abilities.append import Append
from pagedkv.specs.abilities.core import KINDS, Decode, Misuse, Prefill, Release, Resume
from pagedkv.specs.abilities.fork import Fork
from pagedkv.specs.abilities.group import GroupBegin, GroupEnd
from pagedkv.specs.abilities.prefix import Admit
from pagedkv.specs.abilities.swap import SwapIn, SwapOut
from pagedkv.specs.abilities.truncate import Truncate
from pagedkv.specs.catalogue import COMMANDS, _check_values, command_from_json

EVERY = [
    *(Decode(0), Prefill(1, 4), Release(2), Resume(0)),
    *(Misuse(1, kind) for kind in KINDS),
    *(Append(0, 3), Truncate(1, 2), Fork(2, 0), Admit(0, (1, 0), 1)),
    *(SwapOut(1), SwapIn(1), GroupBegin(), GroupEnd()),
]


@pytest.mark.parametrize("command", EVERY, ids=str)
def test_a_command_survives_its_json(command):
    assert command == command_from_json(json.loads(json.dumps(command.to_json())))


def test_a_commands_json_has_its_op_and_its_fields():
    assert Prefill(1, 4).to_json() == {"op": "prefill", "request": 1, "tokens": 4}
    assert str(Prefill(1, 4)) == "prefill(1, 4)"
    assert Fork(2, 0).to_json() == {"op": "fork", "request": 2, "parent": 0}
    assert GroupBegin().to_json() == {"op": "group_begin"}
    assert str(GroupBegin()) == "group_begin()"
    assert json.dumps(Admit(0, (1, 0), 1).to_json()) == (
        '{"op": "admit", "request": 0, "tokens": [1, 0], "extra": 1}'
    )


def test_every_command_of_the_catalogue_is_tested_here():
    assert set(COMMANDS) == {command.op for command in EVERY}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([1], 'a command is an object like {"op": "decode", "request": 0}, not [1]'),
        ({}, "op = None is none of decode, prefill, release, resume, misuse"),
        ({"op": "spoon"}, "op = 'spoon' is none of decode, prefill, release, resume, misuse, "),
        ({"op": ["decode"]}, "op = ['decode'] is none of decode"),
        ({"op": "decode"}, "decode has the fields ['request'], got []"),
        (
            {"op": "decode", "request": 0, "tokens": 1},
            "decode has the fields ['request'], got ['request', 'tokens']",
        ),
        ({"op": "decode", "request": -1}, "request = -1 must be an integer >= 0"),
        ({"op": "decode", "request": True}, "request = True must be an integer >= 0"),
        ({"op": "decode", "request": 1.0}, "request = 1.0 must be an integer >= 0"),
        ({"op": "prefill", "request": 0, "tokens": "4"}, "tokens = '4' must be an integer >= 1"),
        (
            {"op": "misuse", "request": -1, "kind": "prefill-live"},
            "request = -1 must be an integer >= 0",
        ),
        ({"op": "misuse", "request": 0, "kind": "odd"}, "kind = 'odd' is none of prefill-live, "),
        ({"op": "append", "request": 0, "tokens": 0}, "tokens = 0 must be an integer >= 1"),
        ({"op": "fork", "request": 0}, "fork has the fields ['parent', 'request'], got "),
        ({"op": "fork", "request": 1, "parent": -1}, "parent = -1 must be an integer >= 0"),
        (
            {"op": "admit", "request": 0, "tokens": 4, "extra": 0},
            "tokens = 4 must be a list of integers",
        ),
        (
            {"op": "admit", "request": 0, "tokens": [0, True], "extra": 0},
            "tokens = [0, True] must be a list of integers",
        ),
        ({"op": "group_begin", "request": 0}, "group_begin has the fields [], got ['request']"),
    ],
)
def test_what_is_no_command_is_refused_with_what_is_wrong(data, words):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is compared below
        command_from_json(data)
    assert str(caught.value).startswith(words)


def test_a_field_with_choices_does_not_end_the_checks():
    # A command's fields are checked in no order: here in the one that a mistake would show in.
    with pytest.raises(ValueError, match=r"^request = -1 must be an integer >= 0$"):
        _check_values(Misuse, {"kind": "prefill-live", "request": -1})
    with pytest.raises(ValueError, match=r"^extra = -1 must be an integer >= 0$"):
        _check_values(Admit, {"tokens": [0], "extra": -1})
