"""Traces: what is written is what is read, and what is no trace is refused in one line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from builders import declaring, model, setting
from pagedkv.specs.abilities.core import Decode, Misuse, Prefill, Release, Resume
from pagedkv.specs.abilities.fork import Fork
from pagedkv.specs.abilities.group import GroupBegin, GroupEnd
from pagedkv.specs.model import Geometry
from pagedkv.stateful.naming import lives, renamed
from pagedkv.stateful.traces import (
    BadTrace,
    Trace,
    file_name,
    read_trace,
    text_of,
    write_trace,
)

COMMANDS = (
    Prefill(7, 3),
    Decode(7),
    Misuse(7, "release-duplicate"),
    Release(7),
    Resume(7),
    Decode(7),
)
TRACE = Trace("mine:M", Geometry(4, 2), COMMANDS, "conservation")
HEADER = next(iter(text_of(TRACE)))


def read(tmp_path, *lines):
    path = tmp_path / "t.jsonl"
    path.write_bytes(b"".join(line if isinstance(line, bytes) else line.encode() for line in lines))
    return read_trace(path)


def refused(tmp_path, *lines):
    """Why the trace is refused: one line, which starts with the file."""
    with pytest.raises(BadTrace) as caught:
        read(tmp_path, *lines)
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"{tmp_path / 't.jsonl'}:")
    return line.removeprefix(f"{tmp_path / 't.jsonl'}:")


def header(**fields):
    return json.dumps({**json.loads(HEADER), **fields}) + "\n"


# ---------------------------------------------------------------- writing


def test_what_is_written_is_read_again(tmp_path):
    write_trace(tmp_path / "t.jsonl", TRACE)
    assert read_trace(tmp_path / "t.jsonl") == TRACE


def test_version_1_is_this(tmp_path):
    # Traces of this version are out in the world: this text must be read for ever.
    lines = (
        (
            '{"pagedkv-trace": 1, "target": "mine:M", "geometry": '
            '{"num_blocks": 4, "block_size": 2, "head_dim": 1}, "breaks": "conservation"}\n'
        ),
        '{"op": "prefill", "request": 7, "tokens": 3}\n',
        '{"op": "decode", "request": 7}\n',
        '{"op": "misuse", "request": 7, "kind": "release-duplicate"}\n',
        '{"op": "release", "request": 7}\n',
        '{"op": "resume", "request": 7}\n',
        '{"op": "decode", "request": 7}\n',
    )
    assert tuple(text_of(TRACE)) == lines
    assert read(tmp_path, *lines) == TRACE


def test_a_trace_that_can_not_be_written_leaves_the_old_one(tmp_path):
    path = tmp_path / "t.jsonl"
    write_trace(path, TRACE)
    broken = Trace("mine:M", Geometry(1, 1), (Prefill(0, 1), "no command"))  # type: ignore[arg-type]
    with pytest.raises(AttributeError):
        write_trace(path, broken)
    assert read_trace(path) == TRACE
    assert [entry.name for entry in tmp_path.iterdir()] == ["t.jsonl"]


def test_a_link_is_replaced_and_not_followed(tmp_path):
    (tmp_path / "elsewhere").write_text("mine", encoding="utf-8")
    (tmp_path / "t.jsonl").symlink_to(tmp_path / "elsewhere")
    write_trace(tmp_path / "t.jsonl", TRACE)
    assert (tmp_path / "elsewhere").read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("reference", "reference-contents.jsonl"),
        ("mine:M.make", "mine-M-make-contents.jsonl"),
        ("reference+array", "reference+array-contents.jsonl"),
        ("../../etc/passwd", "etc-passwd-contents.jsonl"),
        ("..", "contents.jsonl"),
        ("/", "contents.jsonl"),
        ("a\0b\nc", "a-b-c-contents.jsonl"),
        ("ü", "contents.jsonl"),
        ("x" * 300, f"{'x' * 100}.jsonl"),
    ],
)
def test_a_file_name_names_a_file_in_the_folder_whatever_the_target_is_called(target, name):
    assert file_name(target, "contents") == name
    assert re.fullmatch(r"[A-Za-z0-9_+][A-Za-z0-9_+-]*\.jsonl", name)
    assert Path(name).name == name


def test_no_two_traces_of_one_run_have_one_name():
    assert file_name("a:b", "x", {"a-b-x.jsonl"}) == "a-b-x-2.jsonl"
    assert file_name("a:b", "x", {"a-b-x.jsonl", "a-b-x-2.jsonl"}) == "a-b-x-3.jsonl"
    assert file_name("", "", ()) == "trace.jsonl"


# ---------------------------------------------------------------- reading


def test_further_fields_of_the_header_are_for_later_versions(tmp_path):
    assert read(tmp_path, header(seed=3, breaks=None)).breaks is None


def test_spaces_line_ends_and_the_order_of_fields_do_not_matter(tmp_path):
    trace = read(
        tmp_path,
        b"\xef\xbb\xbf" + HEADER.encode(),
        '{"request":12,"op":"decode"}\r\n',
        '  {"tokens": 3, "request":   12, "op": "prefill"}\n',
        '{"request": 12 , "op": "release"}',
        "\n\n  \n",
    )
    assert trace.commands == (Decode(12), Prefill(12, 3), Release(12))


def test_equal_lines_are_one_object(tmp_path):
    commands = read(tmp_path, HEADER, *['{"op": "decode", "request": 0}\n'] * 3).commands
    assert len({id(command) for command in commands}) == 1


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("", "1: no JSON object"),
        ("{}\n", '1: no trace; the first line starts with {"pagedkv-trace": 1'),
        ("[1]\n", "1: a JSON object is due, not '[1]'"),
        (header(**{"pagedkv-trace": 2}), "1: version 2 is newer than this pagedkv, which reads"),
        (header(**{"pagedkv-trace": "1"}), "1: pagedkv-trace = '1' must be a version, like 1"),
        (header(**{"pagedkv-trace": True}), "1: pagedkv-trace = True must be a version"),
        (header(**{"pagedkv-trace": 0}), "1: pagedkv-trace = 0 must be a version"),
        ('{"pagedkv-trace": 1, "target": "x"}\n', "1: lacks geometry, breaks; it has"),
        (header(target=""), "1: target = '' must be a target's name"),
        (header(target=3), "1: target = 3 must be a target's name"),
        (header(breaks="conservaton"), "'conservaton' is no property; did you mean conservation?"),
        (header(breaks=7), "1: breaks = 7 is no property; it is a property's id, or null"),
        (header(geometry=None), "1: geometry = None must be an object of num_blocks, block_size"),
        (header(geometry={"num_blocks": 1}), "must be an object of num_blocks, block_size"),
        (
            header(geometry={"num_blocks": 0, "block_size": 1, "head_dim": 1}),
            "1: num_blocks = 0 must be an integer >= 1",
        ),
        (
            header(geometry={"num_blocks": 1, "block_size": True, "head_dim": 1}),
            "1: block_size = True must be an integer >= 1",
        ),
    ],
)
def test_a_header_that_is_none_is_refused(tmp_path, line, says):
    assert says in refused(tmp_path, line)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"op": "decode", "request": tru', "no JSON object"),
        ('{"op": "decode", "request": ', "no JSON object"),
        (b'{"op": "decode\xff"}', "no JSON object"),
        ("[" * 100_000, "no JSON object"),
        ('{"op": "decode", "request": ' + "9" * 5000 + "}", "no JSON object"),
        ("3", "a JSON object is due, not '3'"),
        ('{"op": "decode", "request": 1, "request": 2}', "a field stands there twice"),
        ('{"op": "decode", "op": "release", "request": 0}', "a field stands there twice"),
        ('{"op": "spoon", "request": 0}', "op = 'spoon' is none of decode, prefill"),
        ('{"op": "decode"}', "decode has the fields ['request'], got []"),
        ('{"op": "decode", "request": 0, "tokens": 1}', "got ['request', 'tokens']"),
        ('{"op": "decode", "request": -1}', "request = -1 must be an integer >= 0"),
        ('{"op": "decode", "request": 1.0}', "request = 1.0 must be an integer >= 0"),
        ('{"op": "decode", "request": true}', "request = True must be an integer >= 0"),
        ('{"op": "prefill", "request": 0, "tokens": 1.0}', "tokens = 1.0 must be an integer"),
        ('{"op": "misuse", "request": 0, "kind": "x"}', "kind = 'x' is none of prefill-live"),
        ("  ", "a blank line; one command stands on each line"),
    ],
)
def test_a_line_that_is_no_command_is_named_with_its_number(tmp_path, line, says):
    good = '{"op": "prefill", "request": 0, "tokens": 1}\n'
    line = line if isinstance(line, bytes) else line.encode()
    why = refused(tmp_path, HEADER, good, line + b"\n", good)
    assert why.startswith("3: ")
    assert says in why


def test_a_command_that_was_read_excuses_no_other_one(tmp_path):
    # 1, 1.0 and true are equal in Python, and equal lines are read once.
    for wrong in ("1.0", "true"):
        why = refused(
            tmp_path,
            HEADER,
            '{"op": "prefill", "request": 0, "tokens": 1}\n',
            f'{{"op": "prefill", "request": 0, "tokens": {wrong}}}\n',
        )
        assert why.startswith("3: tokens = ")


def test_a_request_in_a_string_is_no_request(tmp_path):
    line = '{"op": "\\"request\\": 5", "request": 1}\n'
    assert "is none of" in refused(tmp_path, HEADER, line)
    kind = '{"kind": "\\"request\\": 5", "op": "misuse", "request": 1}\n'
    assert "is none of" in refused(tmp_path, HEADER, kind)


def test_a_file_that_is_not_there_is_one_line(tmp_path):
    with pytest.raises(BadTrace, match=r"can't be read: No such file or directory$"):
        read_trace(tmp_path / "no")
    with pytest.raises(BadTrace, match=r"can't be read: Is a directory$"):
        read_trace(tmp_path)


# ---------------------------------------------------------------- names


def test_an_id_that_comes_back_is_another_request():
    commands = (Prefill(9, 1), Release(9), Prefill(9, 2), Decode(9), Release(9), Resume(9))
    assert lives(commands) == [0, 0, 1, 1, 1, 1]


def test_a_refused_prefill_that_is_tried_again_is_the_same_request():
    assert lives((Prefill(9, 50), Prefill(9, 5), Decode(9))) == [0, 0, 0]


def test_requests_get_the_lowest_free_name():
    commands = (Prefill(90, 1), Prefill(70, 1), Release(90), Prefill(80, 2), Decode(70))
    assert renamed(commands) == (
        Prefill(0, 1),
        Prefill(1, 1),
        Release(0),
        Prefill(0, 2),
        Decode(1),
    )


def test_a_name_stays_taken_as_long_as_something_is_said_of_its_request():
    commands = (Prefill(9, 1), Release(9), Prefill(8, 1), Resume(9), Decode(8))
    assert renamed(commands) == (Prefill(0, 1), Release(0), Prefill(1, 1), Resume(0), Decode(1))


def test_a_request_that_is_never_released_keeps_its_name():
    commands = (Prefill(9, 1), Prefill(8, 1), Release(8), Prefill(7, 1))
    assert renamed(commands) == (Prefill(0, 1), Prefill(1, 1), Release(1), Prefill(1, 1))


def test_a_request_that_only_was_misused_frees_its_name():
    commands = (Misuse(9, "decode-fresh"), Prefill(8, 1))
    assert renamed(commands) == (Misuse(0, "decode-fresh"), Prefill(0, 1))


def test_small_names_stay_as_they_are():
    commands = (Prefill(0, 1), Prefill(1, 1), Decode(0), Release(1), Release(0))
    assert renamed(commands) == commands
    assert renamed(()) == ()


def test_groups_are_about_no_request_and_take_no_name():
    commands = (GroupBegin(), Prefill(9, 1), Release(9), GroupEnd(), Prefill(8, 1))
    assert renamed(commands) == (
        *(GroupBegin(), Prefill(0, 1), Release(0), GroupEnd()),
        Prefill(0, 1),
    )


def test_a_fork_and_its_parent_get_their_names_together():
    assert renamed((Prefill(9, 1), Fork(5, 9), Decode(5), Fork(7, 5))) == (
        *(Prefill(0, 1), Fork(1, 0), Decode(1), Fork(2, 1)),
    )


def test_a_name_stays_taken_as_long_as_a_fork_has_its_tokens():
    over = (Prefill(9, 1), Fork(8, 9), Release(9), Fork(7, 8), Release(8))
    assert renamed((*over, Prefill(6, 1), Release(7), Prefill(5, 1), Prefill(4, 1))) == (
        *(Prefill(0, 1), Fork(1, 0), Release(0), Fork(2, 1), Release(1)),
        *(Prefill(3, 1), Release(2), Prefill(0, 1), Prefill(1, 1)),
    )


@pytest.mark.parametrize("before", [(), (Prefill(0, 1), Release(0))], ids=["never", "over"])
def test_a_fork_of_nobody_stays_one_that_makes_no_sense(before):
    *_, fork = renamed((*before, Fork(1, 0)))
    assert isinstance(fork, Fork)
    assert fork.request == fork.parent
    live = model(setting(declared=declaring(abilities={"fork"})), {fork.request: 1}, {})
    assert not fork.enabled(live, setting(declared=declaring(abilities={"fork"})))
