"""After a death: the history that the journal has, run again in throw-away processes and cut down.

What dies again, alone and in a fresh process, breaks `answered`: a call that is allowed is granted
or says out of blocks. What does not is only told.
"""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic, sleep

from pagedkv.specs.catalogue import PROPERTIES, offered
from pagedkv.specs.commands import Command
from pagedkv.specs.judge import Judge
from pagedkv.specs.model import Geometry
from pagedkv.specs.properties import Broken, Violation
from pagedkv.specs.steps import Refuse
from pagedkv.stateful.examples import others
from pagedkv.stateful.journal import Last
from pagedkv.stateful.minimise import Case, Minimiser
from pagedkv.stateful.plan import Plan
from pagedkv.stateful.profiles import EVERY, Scope
from pagedkv.stateful.report import Counterexample, OneMinimal
from pagedkv.stateful.spawning import name_of
from pagedkv.stateful.subject import Subject

OWN = frozenset(
    getattr(signal, name)
    for name in ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGTRAP", "SIGSYS")
    if hasattr(signal, name)
)
"""The signals that a process brings upon itself. Others come from outside."""
RUN_SECONDS = 10.0
"""How long one history may take in a process of its own."""
CUT_SECONDS = 20.0
_RAISED = 99


def brings_itself(code: int) -> bool:
    """Whether a process that ended so did it by itself; changes nothing."""
    return code >= 0 or -code in OWN


def cut(subject: Subject, plan: Plan, last: Last, code: int) -> Counterexample | None:
    """The counterexample that a fatal history comes down to; None if it is not fatal alone.

    code: how the process ended. Changes nothing: every run is in a process of its own.
    """
    if not hasattr(os, "fork") or not brings_itself(code):
        return None
    scope = Scope("replay", (last.geometry,), 6, keeps_released=True, abilities=EVERY)
    can = offered(*subject.probe().states)

    def judge() -> Judge:
        return Judge(plan.chosen(), can)

    names = [p.id for p in plan.chosen() if p.id in ("answered", "misuse-refused")]
    past = others("answered")
    for name in names:
        minimiser = _Postmortem(
            lambda geometry: subject.world(scope, geometry), judge, name, past, code=code
        )
        until = monotonic() + CUT_SECONDS
        case = minimiser.one_minimal(last.geometry, last.commands, until=until)
        if case is not None:
            return _example(case, plan)
    return None


def _example(case: Case, plan: Plan) -> Counterexample:
    prop = case.violation.property
    proof = OneMinimal("the process ends with it; run it with --isolate for the proof")
    return Counterexample(
        property=prop.id,
        statement=prop.statement,
        equation=prop.equation,
        message=case.violation.broken.message,
        geometry=case.geometry,
        commands=case.commands,
        proof=proof,
        requests=case.violation.broken.requests,
        expected=prop.id in plan.expected,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Postmortem(Minimiser):
    """Cuts a history that ends its process; each run is a fork of this one."""

    code: int

    def _as_named(self, geometry: Geometry, commands: Sequence[Command]) -> Case | None:
        ran, code = self._run_apart(geometry, commands)
        if code != self.code or not ran:
            return None
        *_, (last, refusal) = ran
        due = "a ValueError" if refusal else "a grant or out-of-blocks"
        if (self.property == "misuse-refused") != refusal:
            return None
        message = f"{last}: its process died ({name_of(code)}); {due} was due"
        broken = Broken(message, (), (last.request,))
        violation = Violation(PROPERTIES[self.property], broken, len(ran))
        return Case(geometry, tuple(command for command, _ in ran), violation)

    def _run_apart(
        self, geometry: Geometry, commands: Sequence[Command]
    ) -> tuple[list[tuple[Command, bool]], int]:
        """The commands that were begun, each with whether it is wrong use, and the exit code."""
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            with suppress(BaseException):
                self._run(geometry, commands, writing)
            os._exit(_RAISED)
        os.close(writing)
        code = _waited(child, monotonic() + RUN_SECONDS)
        with os.fdopen(reading, "rb") as pipe:
            ran = []
            with suppress(EOFError, pickle.UnpicklingError):
                while True:
                    index, refusal = pickle.load(pipe)
                    ran.append((commands[index], refusal))
        return ran, code

    def _run(self, geometry: Geometry, commands: Sequence[Command], writing: int) -> None:
        """In the child: run until a property breaks, saying each command before it is run."""
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        world, judge = self.make(geometry), self.new_judge()
        for index, command in enumerate(commands):
            if not command.enabled(world.state.model, world.setting):
                continue
            refusal = isinstance(command.expect(world.state.model, world.setting), Refuse)
            os.write(writing, pickle.dumps((index, refusal)))
            step = world.apply(command)
            found = judge.step(step) + judge.reached(step)
            if any(violation.property.id not in self.look_past for violation in found):
                break  # what comes after this is no legal history
        os._exit(_RAISED)


def _waited(child: int, until: float) -> int:
    """The exit code of a child; it is ended at `until`."""
    pause = 0.001
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        if monotonic() > until:
            os.kill(child, signal.SIGKILL)
        sleep(pause)
        pause = min(0.05, 2 * pause)


def told_of(last: Last | None, how: str) -> str:
    """How it ended, and after which history, as far as that is known."""
    return how if last is None else f"{how} {last}"
