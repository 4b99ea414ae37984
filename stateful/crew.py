"""Many short jobs on a few children that stay: one that kills its child costs only itself."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from time import monotonic
from typing import Generic, TypeVar

from pagedkv.stateful.spawning import deaf, name_of, usable_cores

Job = TypeVar("Job")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Lost:
    """A job that had no result: why, and after how many seconds."""

    reason: str
    seconds: float


def run_jobs(
    work: Callable[[Job], Result],
    jobs: Sequence[Job],
    *,
    seconds: float,
    workers: int | None = None,
    on_end: Callable[[int], None] = lambda _: None,
) -> list[Result | Lost]:
    """Do each job in some child and return what came of them, in their order; [] for none.

    A child is used again for the next job, so that starting it is paid for once. A job that ends
    its child, or takes longer than `seconds`, is lost, and another child goes on with the rest.
    work: a module's own function, since children import it by name; what it raises ends the child.
    on_end: told the number of each job when it ends. Ctrl-C kills the children and goes on up.
    Raises RuntimeError if a child ends before it can begin.
    """
    crew: _Crew[Job, Result] = _Crew(work, list(jobs), seconds, on_end)
    try:
        return crew.run(min(workers or usable_cores(), len(jobs)))
    finally:
        crew.dismiss()


@dataclass(slots=True)
class _Worker:
    """A child, whether it has said that it is there, and the job that it does, if any, since when.

    What starting takes is no part of a job.
    """

    process: SpawnProcess
    pipe: Connection
    there: bool = False
    job: int | None = None
    started: float = 0.0


class _Crew(Generic[Job, Result]):
    """Invariant: each job is in `_ends`, with a worker, or not yet taken by `_next`."""

    def __init__(
        self,
        work: Callable[[Job], Result],
        jobs: list[Job],
        seconds: float,
        on_end: Callable[[int], None],
    ) -> None:
        self._work, self._jobs, self._seconds, self._on_end = work, jobs, seconds, on_end
        self._ends: dict[int, Result | Lost] = {}
        self._workers: list[_Worker] = []
        self._next = 0

    def run(self, workers: int) -> list[Result | Lost]:
        """Everything, on so many workers at a time."""
        while len(self._ends) < len(self._jobs):
            while len(self._workers) < workers:
                self._workers.append(self._hire())
            for worker in self._workers:
                self._give(worker)
            self._listen()
        return [self._ends[number] for number in range(len(self._jobs))]

    def dismiss(self) -> None:
        """End all children."""
        for worker in self._workers:
            worker.process.kill()
            worker.process.join()
            worker.pipe.close()
        self._workers = []

    def _hire(self) -> _Worker:
        context = get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(self._work, theirs), daemon=True)
        with deaf():
            process.start()
        theirs.close()
        return _Worker(process, ours)

    def _give(self, worker: _Worker) -> None:
        if worker.there and worker.job is None and self._next < len(self._jobs):
            worker.job, worker.started = self._next, monotonic()
            self._next += 1
            with suppress(OSError):  # a child that is gone is heard of when it is listened to
                worker.pipe.send(self._jobs[worker.job])

    def _listen(self) -> None:
        waited_for = [w for w in self._workers if w.job is not None or not w.there]
        ready = wait([worker.pipe for worker in waited_for], timeout=0.5)
        for worker in waited_for:
            if worker.pipe in ready:
                self._hear(worker)
            elif worker.there and monotonic() - worker.started > self._seconds:
                took = monotonic() - worker.started
                self._lose(worker, f"it hung: no end after {took:.0f} s")

    def _hear(self, worker: _Worker) -> None:
        try:
            said = worker.pipe.recv()
        except (EOFError, OSError):
            worker.process.join()
            how = f"its process died ({name_of(worker.process.exitcode or 0)})"
            if worker.job is None:
                raise RuntimeError(f"a child could not begin: {how}") from None
            self._lose(worker, how)
            return
        if worker.job is None:
            worker.there = True
        else:
            self._end(worker, said)

    def _lose(self, worker: _Worker, reason: str) -> None:
        self._workers.remove(worker)
        worker.process.kill()
        worker.process.join()
        worker.pipe.close()
        self._end(worker, Lost(reason, monotonic() - worker.started))

    def _end(self, worker: _Worker, end: Result | Lost) -> None:
        assert worker.job is not None, "only workers with a job are listened to"
        self._ends[worker.job] = end
        self._on_end(worker.job)
        worker.job = None


def _serve(work: Callable[[Job], Result], pipe: Connection) -> None:
    """The child: one job after the other; what it prints goes to stderr."""
    os.dup2(2, 1)
    with suppress(EOFError):
        pipe.send(None)  # it is there
        while True:
            pipe.send(work(pipe.recv()))
