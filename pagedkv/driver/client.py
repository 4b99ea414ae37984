"""A target behind the line protocol: its processes, and the histories that they are brought to.

Few processes serve many managers. A manager is a history, and a process is somewhere in it: to be
asked, it is brought to where the manager is, by a reset and the history's messages again if need
be. What it answers then must be what it answered before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil
from time import monotonic
from typing import Any

from pagedkv.declarations import Declarations
from pagedkv.driver import wire
from pagedkv.driver.channel import Channel, Died, NoAnswer
from pagedkv.driver.history import CantBeHad, Node, hello, reset, same, sent, state
from pagedkv.driver.remote import RemoteManager, kind_of
from pagedkv.driver.wire import BadAnswer
from pagedkv.stateful.memory import check_memory

PROCESSES = 2
"""Two histories that go on side by side need not be run again and again."""
START_SECONDS = 60.0
"""How long the first answer of a process may take: it may have much to load."""
ANSWER_SECONDS = 10.0
HUNG_SECONDS = 1.0
"""How long an answer may take once one did not come; longer where the target is slow anyway."""
SLOWER = 10
"""So many times as long as the slowest answer that came is no answer any more."""
BATCH = 32
"""So many messages may wait in a pipe at once without filling it."""
WATCH_PERIOD = 2000
"""Memory is looked at after so many messages, and while an answer takes long."""


class Driver:
    """A target: a program that speaks the protocol, with the processes that run it.

    command: the program and its arguments. seconds: how long an answer may take, unless the
    driver itself says otherwise. `declares` and `has` are known once it was asked.
    """

    def __init__(
        self, command: Sequence[str], *, seconds: float = ANSWER_SECONDS, processes: int = PROCESSES
    ) -> None:
        self.command = tuple(command)
        self.declares: Declarations | None = None
        self.seconds = seconds
        self._processes = processes
        self._channels: list[Channel] = []  # the one used last is the last
        self._roots: dict[tuple[int, int, int], Node] = {}
        self._kinds: dict[tuple[str, ...], type[RemoteManager]] = {}
        self._asked = 0
        self._slowest = 0.0  # of those answers that had no process to start
        self._hung: float | None = None  # the limit within which the first answer did not come

    def __call__(self, num_blocks: int, block_size: int, head_dim: int) -> Any:
        """A fresh manager, a `RemoteManager` with whatever else the driver has.

        Raises CantBeHad if the driver says that there is none of this geometry.
        """
        geometry = (num_blocks, block_size, head_dim)
        root = self._roots.get(geometry)
        if root is None:
            root = self._roots[geometry] = self._first(geometry)
        has = tuple(name for name in wire.HAS if name in root.message["has"])
        kind = self._kinds.get(has)
        if kind is None:
            kind = self._kinds[has] = kind_of(has)
        return kind(self, root, geometry)

    def close(self) -> None:
        """End all processes; the driver can still be used, and starts new ones then."""
        for channel in self._channels:
            channel.close()
        self._channels.clear()

    def _first(self, geometry: tuple[int, int, int]) -> Node:
        """Ask for a geometry for the first time: what the driver has, and its fresh state."""
        channel = self._unused()
        answer = self._ask(channel, [hello(geometry)], START_SECONDS)[0]
        if "error" in answer:
            raise CantBeHad(wire.quoted(answer["error"], 1000))
        if answer.get("version") != wire.VERSION:
            raise BadAnswer(f'"version": {wire.VERSION}', answer)
        has = answer.get("has", ["snapshot"])
        if not isinstance(has, list) or not set(map(str, has)) <= set(wire.HAS):
            raise BadAnswer(f"has of {', '.join(wire.HAS)}", has)
        self._learn(answer)
        message = {**reset(geometry), "has": has}
        channel.at = root = Node(None, message, state(answer))
        return root

    def _learn(self, answer: Mapping[str, Any]) -> None:
        declared = wire.declares_from(answer.get("declares", {}))
        if not declared.engine:
            because = {**declared.because, "engine": "each step is a message to a process"}
            declared = replace(declared, engine=True, because=because)
        self.declares = declared
        if "seconds" in answer:
            seconds = answer["seconds"]
            if isinstance(seconds, bool) or not isinstance(seconds, int | float) or seconds <= 0:
                raise BadAnswer("a number > 0 as seconds", seconds)
            self.seconds = min(float(seconds), 3600.0)

    def ask(self, node: Node, message: Mapping[str, Any]) -> tuple[Channel, dict[str, Any]]:
        """The answer to one message at `node`, and the channel, which is nowhere now.

        Raises what `Failure` names.
        """
        channel = self._brought_to(node)
        channel.at = None
        (answer,) = self._ask(channel, [message], self.seconds)
        return channel, answer

    def _ask(
        self, channel: Channel, messages: Sequence[Mapping[str, Any]], seconds: float
    ) -> list[dict[str, Any]]:
        self._asked += len(messages)
        if self._asked >= WATCH_PERIOD:
            self._asked = 0
            check_memory(channel.pid)
        since = monotonic()
        try:
            answers = channel.ask(messages, seconds, check_memory)
        except NoAnswer as error:
            raise self._impatient(error, seconds) from None
        if messages[0]["do"] != "hello":
            self._slowest = max(self._slowest, monotonic() - since)
        for answer in answers:
            if "died" in answer:
                if len(messages) > 1:  # some of them may have died with it, unanswered
                    channel.close()
                raise Died(f"its process died ({wire.quoted(answer['died'])})")
            del answer["id"]
        return answers

    def _impatient(self, error: NoAnswer, seconds: float) -> NoAnswer:
        """Wait less from now on, since where one call hangs others will; `error`, with why so."""
        # What a slow target is slow at must not pass for another hang.
        self.seconds = min(self.seconds, max(HUNG_SECONDS, ceil(SLOWER * self._slowest)))
        if self._hung is not None and seconds < self._hung:
            return NoAnswer(f"{error}; one before had not come within {self._hung:g} s")
        self._hung = seconds
        return error

    def _brought_to(self, node: Node) -> Channel:
        """A channel at `node`: one that is there, or on the way there, or else a reset one."""
        self._channels = [channel for channel in self._channels if channel.alive]
        way = node.way()
        for at in range(len(way) - 1, -1, -1):
            for channel in self._channels:
                if channel.at is way[at]:
                    self._use(channel)
                    self._replay(channel, way[at + 1 :])
                    return channel
        channel = self._unused()
        if channel.at is _FRESH:
            geometry = way[0].message
            hello = {**geometry, "do": "hello", "version": wire.VERSION}
            del hello["has"]
            channel.at = None
            (answer,) = self._ask(channel, [hello], START_SECONDS)
            same(way[0], answer)
            self._replay(channel, way[1:])
        else:
            self._replay(channel, way)
        return channel

    def _replay(self, channel: Channel, nodes: Sequence[Node]) -> None:
        for start in range(0, len(nodes), BATCH):
            batch = nodes[start : start + BATCH]
            channel.at = None
            answers = self._ask(channel, [sent(node.message) for node in batch], self.seconds)
            for node, answer in zip(batch, answers, strict=True):
                same(node, answer)
            channel.at = batch[-1]

    def _use(self, channel: Channel) -> None:
        if self._channels[-1] is not channel:
            self._channels.remove(channel)
            self._channels.append(channel)

    def _unused(self) -> Channel:
        """A new channel, or else the one that was not used for longest."""
        self._channels = [channel for channel in self._channels if channel.alive]
        if len(self._channels) < self._processes:
            channel = Channel(self.command)
            channel.at = _FRESH
            self._channels.append(channel)
        else:
            channel = self._channels[0]
            self._use(channel)
            channel.at = None
        return channel


_FRESH = object()
"""Where a process is that was not greeted yet."""
