"""What a campaign found, as data: verdicts, counterexamples and coverage. JSON in one place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from pagedkv import __version__
from pagedkv.specs.commands import Command
from pagedkv.specs.faults import Fault
from pagedkv.specs.model import Geometry
from pagedkv.stateful.shards import Cut, Shard

SCHEMA = 1
Verdict = Literal["passed", "violated", "unknown", "not_applicable"]


@dataclass(frozen=True, slots=True)
class Shortest:
    """No shorter history in the fixed scope breaks the property; `states` were searched."""

    states: int

    name = "shortest"

    def __str__(self) -> str:
        return f"proven shortest: no shorter history in the scope, {self.states} state(s) searched"


@dataclass(frozen=True, slots=True)
class OneMinimal:
    """No single command or pair can go; `reason` says why no proof of shortness was had."""

    reason: str

    name = "one-minimal"

    def __str__(self) -> str:
        return f"one-minimal: no command can go; not proven shortest, since {self.reason}"


@dataclass(frozen=True, slots=True)
class Unfinished:
    """Nothing is shown about its length: `reason` says why it was not cut down to the end."""

    reason: str

    name = "unfinished"

    def __str__(self) -> str:
        return f"not proven shortest: {self.reason}"


Proof = Shortest | OneMinimal | Unfinished


@dataclass(frozen=True, slots=True)
class Frame:
    """What the pool looks like after one command of a history; the first has none.

    owners: per block id, the requests whose tables name it; none for a free block.
    free: the free list in hand-out order, None where it can't be seen.
    peer: the other target's pool at this moment, where two run in lockstep.
    shares: several tables may name one block. withheld: given back inside a group that is open.
    swapped: what requests that are swapped out have of the second pool.
    """

    command: str | None
    outcome: str
    owners: Mapping[int, tuple[int, ...]]
    tables: Mapping[int, tuple[int, ...]]
    seq_lens: Mapping[int, int]
    free: tuple[int, ...] | None
    reserved: frozenset[int] = frozenset()
    cached: frozenset[int] = frozenset()
    peer: Frame | None = None
    shares: bool = False
    withheld: frozenset[int] = frozenset()
    swapped: Mapping[int, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Counterexample:
    """A history whose last command breaks one property.

    blocks, requests: what the message is about. frames: the pool after each command.
    expected: declared as a known failure. fault: what failed inside it; None is nothing.
    """

    property: str
    statement: str
    equation: str
    message: str
    geometry: Geometry
    commands: tuple[Command, ...]
    proof: Proof
    frames: tuple[Frame, ...] = ()
    blocks: tuple[int, ...] = ()
    requests: tuple[int, ...] = ()
    expected: bool = False
    fault: Fault | None = None

    def to_json(self) -> dict[str, Any]:
        """The counterexample as the report's schema has it."""
        geometry = self.geometry
        return {
            "property": self.property,
            "message": self.message,
            "steps": len(self.commands),
            "proof": self.proof.name,
            "proof_detail": str(self.proof),
            "expected": self.expected,
            "geometry": {
                "num_blocks": geometry.num_blocks,
                "block_size": geometry.block_size,
                "head_dim": geometry.head_dim,
            },
            "commands": [command.to_json() for command in self.commands],
            **({} if self.fault is None else {"fault": self.fault.to_json()}),
        }


@dataclass(frozen=True, slots=True)
class PropertyResult:
    """One property's verdict; evaluations that had nothing to judge do not count."""

    id: str
    verdict: Verdict
    evaluations: int
    reason: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The result as the report's schema has it."""
        return {
            "id": self.id,
            "verdict": self.verdict,
            "evaluations": self.evaluations,
            "reason": self.reason,
        }


@dataclass(slots=True)
class Injection:
    """What was tried with calls inside the target's commands failing, counted up as it is tried.

    states: those from which every command was tried. commands: tried until they got through.
    points: calls inside them that failed. failures: runs that were judged, for each point one
    with a single and one with a persistent failure. places: different places of the source that
    failed. inside: the modules whose calls these are. spared: calls that were left alone.
    retried: runs with a persistent failure that would not have ended. unseen: runs in which the
    calls after a failure could not be seen. stopped: why this is not all of the scope.
    """

    states: int = 0
    commands: int = 0
    points: int = 0
    failures: int = 0
    places: int = 0
    spared: int = 0
    retried: int = 0
    unseen: int = 0
    inside: frozenset[str] = frozenset()
    scope: str = ""
    stopped: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The figures as the report's schema has them."""
        return {
            "states": self.states,
            "commands": self.commands,
            "points": self.points,
            "failures": self.failures,
            "places": self.places,
            "spared": self.spared,
            "retried": self.retried,
            "unseen": self.unseen,
            "inside": sorted(self.inside),
            "scope": self.scope,
            "exhausted": self.stopped is None,
            "stopped": self.stopped,
        }


@dataclass(frozen=True, slots=True)
class Part:
    """Which shard was searched: what `exhausted` and `depth` then speak of.

    cuts: the pools that were divided, each with the name of its scope; the others were searched
    whole. unseen: properties that were expected to fail, and did not in this part.
    """

    shard: Shard
    cuts: tuple[tuple[str, Cut], ...] = ()
    unseen: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The part as the report's schema has it."""
        return {
            **self.shard.to_json(),
            "cuts": [
                {
                    "scope": scope,
                    "num_blocks": cut.geometry.num_blocks,
                    "block_size": cut.geometry.block_size,
                    "depth": cut.depth,
                    "states": cut.states,
                    "digest": cut.digest,
                }
                for scope, cut in self.cuts
            ],
            "unseen": list(self.unseen),
        }


@dataclass(frozen=True, slots=True)
class Reach:
    """How many of the `of` states of an exhausted scope random histories came through."""

    states: int
    of: int


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much was searched. `exhausted`: every state and transition of the scope.

    scope: words for the scope. stopped: why it was not exhausted. random_steps: steps of random
    histories beside the search, and reach how far these came in the first scope, where that was
    exhausted. doubts: what of the target's own was given up, and why. part:
    the shard that this is about; None is all.
    """

    states: int
    transitions: int
    depth: int
    exhausted: bool
    scope: str = ""
    stopped: str | None = None
    random_steps: int = 0
    doubts: tuple[str, ...] = ()
    part: Part | None = None
    reach: Reach | None = None

    def to_json(self) -> dict[str, Any]:
        """The coverage as the report's schema has it."""
        return {
            "states": self.states,
            "transitions": self.transitions,
            "depth": self.depth,
            "exhausted": self.exhausted,
            "scope": self.scope,
            "stopped": self.stopped,
            "random_steps": self.random_steps,
            "reach": None if self.reach is None else asdict(self.reach),
            "doubts": list(self.doubts),
            **({} if self.part is None else {"shard": self.part.to_json()}),
        }


@dataclass(frozen=True, slots=True)
class TargetReport:
    """Everything about one target.

    injection: None unless failure was injected. version: of the engine behind it, if it is known.
    tolerances: what was declared for it, by the name of the target, over what it declares itself.
    """

    target: str
    verdict: Verdict
    reason: str | None
    properties: tuple[PropertyResult, ...]
    counterexamples: tuple[Counterexample, ...]
    coverage: Coverage
    seconds: float
    injection: Injection | None = None
    version: str | None = None
    tolerances: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The target's report as the schema has it."""
        return {
            "target": self.target,
            "version": self.version,
            "verdict": self.verdict,
            "reason": self.reason,
            "properties": [result.to_json() for result in self.properties],
            "counterexamples": [example.to_json() for example in self.counterexamples],
            "coverage": self.coverage.to_json(),
            **({} if self.injection is None else {"injection": self.injection.to_json()}),
            **({"tolerances": dict(self.tolerances)} if self.tolerances else {}),
            "seconds": round(self.seconds, 3),
        }


@dataclass(frozen=True, slots=True)
class Report:
    """All targets of one run.

    profile, budget: how much was tried, in seconds for each target; None is another search than a
    campaign. seed: of the random histories; None is the profile's own, or that several shards had
    one each. shard: the one that was searched of each target; None is all.
    """

    targets: tuple[TargetReport, ...] = field(default=())
    profile: str | None = None
    seed: int | None = None
    budget: float | None = None
    shard: Shard | None = None

    @property
    def exit_code(self) -> int:
        """0 passed, 1 violated (it beats 2), 2 unknown, or nothing was checked at all."""
        verdicts = {target.verdict for target in self.targets}
        if "violated" in verdicts:
            return 1
        return 0 if verdicts and "unknown" not in verdicts else 2

    @property
    def passed(self) -> bool:
        """Whether every target passed."""
        return self.exit_code == 0

    def to_text(self) -> str:
        """The report, as `pagedkv check` shows it, without colours; changes nothing."""
        from pagedkv.stateful.printed import text_of

        return text_of(self)

    def to_json(self) -> dict[str, Any]:
        """The report, as `pagedkv check --json` writes it."""
        return {
            "schema": SCHEMA,
            "pagedkv": __version__,
            "profile": self.profile,
            "seed": self.seed,
            "budget": self.budget,
            **({} if self.shard is None else {"shard": self.shard.to_json()}),
            "targets": [target.to_json() for target in self.targets],
        }
