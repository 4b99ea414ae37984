"""Histories as a process is told of them, and how what it says to them can go wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pagedkv.driver import wire
from pagedkv.driver.channel import Died, NoAnswer
from pagedkv.driver.wire import BadAnswer
from pagedkv.stateful.memory import TooMuchMemory


class Varies(Exception):
    """A second run of the same messages was answered differently."""


class CantBeHad(Exception):
    """The driver answered that there is no such target, or none of this geometry."""


class SaidRefused(ValueError):
    """The driver answered that it refused the call; the message is its own."""


class SaidRaised(Exception):
    """The driver answered that the call raised; the class is named as what was raised."""


Failure = (Died, NoAnswer, BadAnswer, Varies, TooMuchMemory)


def raised(kind: object, message: object) -> SaidRaised:
    """An exception that is called `kind`."""
    name = kind if isinstance(kind, str) and kind.isidentifier() else "Exception"
    error: SaidRaised = type(name[:80], (SaidRaised,), {})(str(message))
    return error


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """Where a history is: the message that led here, and its answer. A root has no parent."""

    parent: Node | None
    message: Mapping[str, Any]
    answer: Mapping[str, Any]

    def way(self) -> list[Node]:
        """The nodes from the root to this one."""
        nodes, node = [self], self.parent
        while node is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]


def reset(geometry: tuple[int, int, int]) -> dict[str, Any]:
    """The message that begins anew; changes nothing."""
    num_blocks, block_size, head_dim = geometry
    return {
        "do": "reset",
        "num_blocks": num_blocks,
        "block_size": block_size,
        "head_dim": head_dim,
    }


def hello(geometry: tuple[int, int, int]) -> dict[str, Any]:
    """The first message of a process; changes nothing."""
    return {**reset(geometry), "do": "hello", "version": wire.VERSION}


def sent(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """A node's message as it goes over the line: a root's has more."""
    if message["do"] != "reset":
        return message
    return {name: value for name, value in message.items() if name != "has"}


STATE = ("snapshot", "free_blocks", "pool", "wrote", "unobserved", "key")


def state(answer: Mapping[str, Any]) -> dict[str, Any]:
    """What an answer shows of a fresh pool; changes nothing.

    Raises BadAnswer for one that neither says what the driver has nor shows a snapshot: a program
    that says each line back answers a greeting so, version and all.
    """
    if not {"has", "snapshot", "unobserved"} & answer.keys():
        raise BadAnswer('a "snapshot", or a "has" without it,', answer)
    return _shown(answer)


def _shown(answer: Mapping[str, Any]) -> dict[str, Any]:
    return {name: answer[name] for name in STATE if name in answer}


def same(node: Node, answer: Mapping[str, Any]) -> None:
    """Raise Varies unless a node's message is answered as before."""
    if node.parent is None:
        answer = _shown(answer)
    if answer == node.answer:
        return
    what = node.message["do"]
    name = next((n for n in (*node.answer, *answer) if node.answer.get(n) != answer.get(n)), "it")
    first, second = wire.quoted(node.answer.get(name)), wire.quoted(answer.get(name))
    raise Varies(f"a second run of {what} was answered differently: {name} {first}, then {second}")
