"""The line protocol: what is answered, what is not believed, and what is left behind: nothing."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from dataclasses import fields
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from builders import declaring
from pagedkv import Declarations, KVCacheManager, Owned, Request, Returns, Snapshot
from pagedkv.driver import wire
from pagedkv.driver.channel import Died, NoAnswer
from pagedkv.driver.client import Driver
from pagedkv.driver.history import CantBeHad, Varies
from pagedkv.driver.server import Session
from pagedkv.driver.wire import BadAnswer
from pagedkv.loading import BadTarget
from pagedkv.specs.abilities.core import Decode, Prefill
from pagedkv.specs.model import Geometry
from pagedkv.specs.steps import Raised
from pagedkv.stateful.trust import Trust
from pagedkv.stateful.world import World
from pagedkv.targets import Pair, resolve

STATE = '{"block_tables": {}, "seq_lens": {}, "free_blocks": [0]}'
HELLO = '{"id": %d, "version": 1, "snapshot": ' + STATE + "}"


@pytest.fixture
def driver(tmp_path):
    """Makes drivers of what they do on each line; `line`, `n` and `message` are there."""
    made: list[Driver] = []

    def make(body: str, *, seconds: float = 20.0, processes: int = 2) -> Driver:
        program = tmp_path / f"driver{len(made)}.py"
        head = f"import json, os, sys, time\nHELLO = {HELLO!r}\n"
        loop = "for n, line in enumerate(sys.stdin):\n    message = json.loads(line)\n"
        source = head + loop + dedent(body).replace("\n", "\n    ").join(["    ", "\n"])
        program.write_text(source, encoding="utf-8")
        made.append(Driver([sys.executable, str(program)], seconds=seconds, processes=processes))
        return made[-1]

    yield make
    for one in made:
        one.close()


GREETS = 'if n == 0: print(HELLO % message["id"], flush=True); continue\n'


def asked(driver: Driver) -> None:
    """One call on a fresh manager."""
    driver(1, 1, 1).allocate_for_prefill(Request(0, 1))


# ---------------------------------------------------------------- answers that are none


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        ("'oops'", "a JSON object on one line was due, and there came oops"),
        ("'[1]'", "a JSON object was due, and there came [1]"),
        ("'{\"id\": 99}'", 'an answer with "id": 2 was due, and there came {"id": 99}'),
        ("'{\"id\": 2}'", "an outcome of done, out_of_blocks, refused, raised was due"),
        ('\'{"id": 2, "outcome": "fine"}\'', "an outcome of done"),
        (
            '\'{"id": 2, "outcome": "done", "seq_len": "two"}\'',
            "an integer as seq_len was due, and there came two",
        ),
        (
            '\'{"id": 2, "outcome": "done", "snapshot": {"block_tables": {}}}\'',
            "seq_lens in the snapshot was due",
        ),
        (
            '\'{"id": 2, "outcome": "done", "snapshot": {"tables": {}}}\'',
            "a snapshot of block_tables",
        ),
        ("'x' * 3_000_000", "an answer of at most 1,048,576 bytes was due, and there came xxx"),
    ],
)
def test_a_malformed_answer_is_quoted_with_what_was_due(driver, answer, line):
    with pytest.raises(BadAnswer) as caught:
        asked(driver(GREETS + f"print({answer}, flush=True)"))
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("has", [["snapshot"], ["free_blocks"], None])
def test_an_answer_without_what_the_driver_has_is_none(driver, has):
    """It was an AttributeError, or the state before the call passed for the one after it."""
    greeting = {"version": 1} if has is None else {"version": 1, "has": has}
    says = (
        f'print(json.dumps({{"id": message["id"], "outcome": "done", **{greeting}}}), flush=True)'
    )
    missing = "snapshot" if has is None else has[0]
    with pytest.raises(BadAnswer, match=f'a "{missing}", .* was due, and there came {{'):
        driver(says)(1, 1, 1)
    shown = {"snapshot": f'"snapshot": {STATE}', "free_blocks": '"free_blocks": [0]'}[missing]
    hello = '{"id": %d, "version": 1, "has": ["' + missing + '"], ' + shown + "}"
    body = f"if n == 0: print({hello!r} % message['id'], flush=True); continue\n{says}"
    manager = driver(body)(1, 1, 1)
    with pytest.raises(BadAnswer, match=f'a "{missing}", .* was due, and there came {{'):
        manager.allocate_for_prefill(Request(0, 1))


def test_a_program_that_says_each_line_back_is_no_driver():
    with pytest.raises(BadTarget, match=r'a "snapshot", or a "has" without it, was due') as caught:
        resolve("exec:/bin/cat")
    assert 'there came {"do": "hello"' in str(caught.value)


def test_an_extra_answer_is_told_at_the_next_message(driver):
    body = 'for _ in range(2): print(HELLO % message["id"] , flush=True)\ntime.sleep(0.2)'
    one = driver(body)
    manager = one(1, 1, 1)
    time.sleep(0.3)
    with pytest.raises(BadAnswer, match=r"one answer to each message|an answer with .id.: 2"):
        manager.allocate_for_prefill(Request(0, 1))


def test_a_late_answer_is_none(driver):
    with pytest.raises(NoAnswer, match=r"no answer within 0\.3 s"):
        asked(driver(GREETS + "time.sleep(60)", seconds=0.3))


def test_a_slow_target_has_time_after_a_call_that_hung(driver):
    slow = """\
    time.sleep(0.12 if n == 1 else 60)
    said = {"id": message["id"], "outcome": "done", "seq_len": 1, "block_table": [0]}
    said["snapshot"] = {"block_tables": {"0": [0]}, "seq_lens": {"0": 1}, "free_blocks": []}
    print(json.dumps(said), flush=True)
    """
    one = driver(GREETS + dedent(slow), seconds=3)
    manager, request = one(1, 1, 1), Request(0, 1)
    manager.allocate_for_prefill(request)
    with pytest.raises(NoAnswer, match=r"no answer within 3 s$"):
        manager.allocate_for_decode(request)
    assert 1 < one.seconds <= 3


def test_an_answer_without_its_end_is_shown(driver):
    body = GREETS + "print('half of', end='', flush=True)\ntime.sleep(60)"
    with pytest.raises(NoAnswer, match="so far came half of, without its end"):
        asked(driver(body, seconds=0.5))


def test_a_driver_that_ends_says_how_and_what_it_last_said(driver):
    body = GREETS + "print('no more', file=sys.stderr, flush=True)\nos._exit(3)"
    with pytest.raises(Died, match=r"its process died \(exit code 3\); it last said: no more"):
        asked(driver(body))


def test_what_a_driver_says_on_stderr_neither_blocks_nor_floods(driver):
    body = (
        "print('x' * 1_000_000, file=sys.stderr)\n"
        'if n: print(json.dumps({**json.loads(HELLO % message["id"]), "outcome": "refused", '
        '"message": "no"}), flush=True)\n'
        "else: " + GREETS.split(": ", 1)[1].removesuffix("; continue\n")
    )
    with pytest.raises(ValueError, match="no"):
        asked(driver(body))


def test_a_version_that_is_unknown_is_refused(driver):
    with pytest.raises(BadAnswer, match='"version": 1 was due'):
        driver('print(\'{"id": 1, "version": 7}\', flush=True)')(1, 1, 1)


def test_declarations_that_are_none_are_refused_with_the_reason(driver):
    hello = '{"id": 1, "version": 1, "declares": {"lookahead": 1}}'
    with pytest.raises(BadAnswer, match="declared without a reason"):
        driver(f"print({hello!r}, flush=True)")(1, 1, 1)
    hello = '{"id": 1, "version": 1, "declares": {"look_ahead": 1}}'
    with pytest.raises(BadAnswer, match=r'declares of .* there came .*"look_ahead": 1'):
        driver(f"print({hello!r}, flush=True)")(1, 1, 1)


def test_a_second_run_that_is_answered_differently_is_told(driver):
    body = GREETS + (
        'free = [0] if n < 4 else []\nstate = {"block_tables": {}, "seq_lens": {}, '
        '"free_blocks": free}\nprint(json.dumps({"id": message["id"], "outcome": "done", '
        '"snapshot": state}), flush=True)'
    )
    one = driver(body, processes=1)
    first, second = one(1, 1, 1), one(1, 1, 1)
    first.allocate_for_prefill(Request(0, 1))
    second.allocate_for_prefill(Request(0, 1))
    with pytest.raises(Varies, match="a second run of reset was answered differently: snapshot"):
        first.allocate_for_decode(Request(0, 1))


def test_a_world_takes_a_failure_for_the_call_s_answer(driver):
    world = World(driver(GREETS + "print('oops', flush=True)"), Geometry(1, 1))
    step = world.apply(Prefill(0, 1))
    assert isinstance(step.outcome, Raised)
    assert step.outcome.kind == "BadAnswer"
    assert not step.observed


# ---------------------------------------------------------------- nothing stays behind


def processes_of(driver: Driver) -> list[int]:
    return [channel.pid for channel in driver._channels]


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


ECHO = (
    'done = {"id": message["id"], "version": 1, "outcome": "done", "snapshot": '
    + STATE
    + "}\nprint(json.dumps(done), flush=True)"
)


def open_files() -> int:
    """How many this process has; 0 where that can't be told."""
    return len([*Path("/proc/self/fd").glob("*")])


def test_many_managers_share_few_processes_and_files(driver):
    one = driver(ECHO)
    one(1, 1, 1)
    before = open_files()
    managers = [one(1, 1, 1) for _ in range(30)]
    for manager in (*managers, *managers):
        manager.allocate_for_prefill(Request(0, 1))
    assert len(processes_of(one)) <= 2
    assert open_files() - before <= 5  # a second process: three pipes, and what waits for them


def test_closing_ends_every_process(driver):
    one = driver(ECHO)
    one(1, 1, 1)
    pids = processes_of(one)
    assert all(map(is_running, pids))
    one.close()
    assert not any(map(is_running, pids))


def test_a_driver_that_nobody_has_any_more_ends(driver):
    program = driver(ECHO).command
    one = Driver(program)
    one(1, 1, 1)
    pids = processes_of(one)
    del one
    assert not any(map(is_running, pids))


def test_a_driver_that_hangs_is_ended_with_its_children(driver):
    body = GREETS + (
        "import subprocess\nchild = subprocess.Popen(['sleep', '60'])\n"
        "print(child.pid, file=sys.stderr, flush=True)\ntime.sleep(60)"
    )
    one = driver(body, seconds=1.5)
    with pytest.raises(NoAnswer) as caught:
        asked(one)
    child = int(str(caught.value).rpartition(" ")[2])
    for _ in range(100):
        if not is_running(child) or _is_zombie(child):
            break
        time.sleep(0.05)
    else:
        os.kill(child, signal.SIGKILL)
        raise AssertionError("the driver's child runs on")


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return False


# ---------------------------------------------------------------- values, both ways


def test_every_field_of_a_snapshot_goes_over_the_line_and_back():
    whole = Snapshot(
        block_tables={0: (1, 0), 3: ()},
        seq_lens={0: 3, 3: 0},
        free_blocks=(2,),
        blocks=frozenset({0, 1, 2}),
        num_free=1,
        ref_counts={0: 1},
        pending={4: 2},
        cached=frozenset({5}),
        reserved=frozenset({6}),
        reverse_map=frozenset({Owned(0, 0, 1), Owned("row 2", 0, 0)}),
        capacities={0: 4, "row 2": 8},
        index={"(None, (0, 1))": 5},
        withheld=frozenset({7}),
        swapped={2: (0, 1)},
        host_free=(3, 2),
    )
    assert set(wire.SNAPSHOT) == {f.name for f in fields(Snapshot)}
    assert wire.snapshot_from(wire.snapshot_to(whole)) == whole
    bare = Snapshot(block_tables={}, seq_lens={}, free_blocks=None)
    assert wire.snapshot_from(wire.snapshot_to(bare)) == bare


def test_declarations_go_over_the_line_but_for_how_blocks_run_out():
    declared = declaring(lookahead=2, block_sizes=(1, 2), out_of_blocks=(Returns(None),))
    back = wire.declares_from(wire.declares_to(declared))
    assert (back.lookahead, back.block_sizes) == (2, (1, 2))
    assert back.because["lookahead"] == "this test"
    assert wire.declares_to(Declarations()) == {}


# ---------------------------------------------------------------- the server, in this process


def hello(session: Session, num_blocks: int = 2, block_size: int = 1) -> dict[str, Any]:
    geometry = {"num_blocks": num_blocks, "block_size": block_size, "head_dim": 1}
    return session.answer({"do": "hello", "version": 1, **geometry})


def call(do: str, handle: int, request: Request, **more) -> dict[str, Any]:
    return {"do": do, "handle": handle, **wire.handle_to(request), **more}


def test_the_server_answers_as_the_manager_does():
    session = Session(KVCacheManager)
    answer = hello(session)
    assert set(answer["has"]) >= {"free_blocks", "pool", "contents", "reports", "key"}
    assert answer["pool"] == {"blocks": 2, "dtype": "float32"}
    request = Request(0, 1)
    granted = session.answer(call("prefill", 0, request, write=[[0, 0, -1.0], [1, 0, -1.0]]))
    assert (granted["outcome"], granted["block_table"]) == ("done", [0])
    request.block_table = [0]
    again = session.answer(call("prefill", 0, request))
    assert again["outcome"] == "refused"
    too_long = session.answer(call("prefill", 1, Request(1, 5)))
    assert too_long["outcome"] == "out_of_blocks"
    assert too_long["message"].startswith("OOM")
    look = session.answer(
        {"do": "look", "handles": [0], "order": [0], "known": [0], "write": [[0, 0, 7.0]]}
    )
    assert look["contents"] == [[[7.0]]]
    assert look["reports"][0]["logical_tokens"] == 1
    assert look["key"]


def test_a_forged_table_is_taken_back_as_the_list_it_was():
    session = Session(KVCacheManager)
    hello(session)
    request = Request(0, 1)
    session.answer(call("prefill", 0, request))
    kept = session._handles[0].block_table
    request.block_table = [0, 0]
    assert session.answer(call("release", 0, request))["outcome"] == "refused"
    assert session._handles[0].block_table is kept


def test_what_the_target_moves_in_its_pool_is_told():
    class Copies(KVCacheManager):
        def allocate_for_decode(self, req: Request) -> None:
            super().allocate_for_decode(req)
            self.physical_kv_cache[1] = self.physical_kv_cache[0]

    session = Session(Copies)
    hello(session)
    request = Request(0, 1)
    granted = session.answer(call("prefill", 0, request, write=[[0, 0, 3.0]]))
    assert "wrote" not in granted
    request.block_table, request.tokens = [0], [0, 0]
    answer = session.answer(call("decode", 0, request, write=[[0, 0, 5.0], [1, 0, -1.0]]))
    assert answer["wrote"] == [[1, 0, 5.0]]


def test_a_target_that_can_t_be_observed_is_said_to_be_so():
    class Blind(KVCacheManager):
        def snapshot(self) -> Snapshot:
            raise SystemExit("nothing to see")

    answer = hello(Session(Blind))
    assert answer["unobserved"] == {"raised": "SystemExit", "message": "nothing to see"}


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ({"do": "prefill"}, "'prefill' before hello"),
        ({"do": "hello", "num_blocks": 0, "block_size": 1, "head_dim": 1}, "can't be made"),
    ],
)
def test_what_the_server_can_t_do_it_says(message, line):
    assert line in Session(KVCacheManager).answer(message)["error"]


# ---------------------------------------------------------------- through a real process


@pytest.fixture(scope="module")
def remote():
    one = Driver([sys.executable, "-m", "pagedkv.driver.server", "reference"], seconds=60)
    yield one
    one.close()


def test_a_remote_manager_steps_as_a_local_one_does(remote):
    local = World(KVCacheManager, Geometry(3, 2), keeps_released=True)
    far = World(remote, Geometry(3, 2), keeps_released=True)
    for _ in range(12):
        commands = local.candidates()
        assert far.candidates() == commands
        command = commands[(5 * local.steps + 1) % len(commands)]
        one, other = local.apply(command), far.apply(command)
        assert (one.outcome, one.returned) == (other.outcome, other.returned)
        assert one.after.seen.snapshot == other.after.seen.snapshot
        assert one.after.seen.handles == other.after.seen.handles
        assert one.after.seen.read() == other.after.seen.read()
        assert one.after.seen.reports() == other.after.seen.reports()


def test_a_copy_goes_its_own_way_in_the_same_process(remote):
    trust = Trust("own", "own")
    world = World(remote, Geometry(2, 2))
    world.apply(Prefill(0, 1))
    copy = world.clone(trust)
    assert copy.key(trust) == world.key(trust)
    copy.apply(Decode(0))
    assert copy.key(trust) != world.key(trust)
    assert world.state.seen.snapshot.seq_lens == {0: 1}
    assert world.apply(Decode(0)).after.seen.snapshot == copy.state.seen.snapshot
    assert copy.key(trust) == world.key(trust)


def test_a_geometry_that_can_t_be_had_is_refused_and_the_next_is_not(remote):
    with pytest.raises(CantBeHad, match="num_blocks must be >= 1"):
        remote(0, 1, 1)
    assert remote(1, 1, 1).free_blocks == [0]


# ---------------------------------------------------------------- names of programs


def line_of(spec: str) -> str:
    with pytest.raises(BadTarget) as caught:
        resolve(spec)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_program_that_is_not_there_gets_one_line(tmp_path):
    assert "./nothing is no program, here or on the PATH" in line_of("exec:./nothing")
    assert "names no program" in line_of("exec: ")
    assert "can't be read as a command" in line_of("exec:./it 'open")
    text = tmp_path / "text"
    text.touch()
    assert "is not executable" in line_of(f"exec:{text}")


def test_a_program_that_is_no_driver_gets_one_line():
    program = shlex.join([sys.executable, "-c", "print('Hello!')"])
    assert "a JSON object on one line was due, and there came Hello!" in line_of(f"exec:{program}")


def test_what_follows_exec_is_a_command_plus_signs_and_all():
    driver = Path(__file__).resolve().parent.parent / "examples" / "driver.py"
    command = "exec:" + shlex.join([sys.executable, str(driver), "+x"])
    pair = resolve(f"reference+{command}")
    assert isinstance(pair, Pair)
    assert (pair.left.name, pair.right.name) == ("reference", command)
