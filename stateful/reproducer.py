"""A counterexample as a pytest function, to be pasted into the suite of the allocator's authors."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Mapping
from types import MappingProxyType

from pagedkv.stateful.report import Counterexample
from pagedkv.stateful.text import plain

WIDTH = 88
_NOTHING: Mapping[str, Mapping[str, object]] = MappingProxyType({})


def pytest_function(
    example: Counterexample,
    target: str,
    tolerances: Mapping[str, Mapping[str, object]] = _NOTHING,
) -> str:
    """Source that fails while the fault is there, and passes once it is gone; changes nothing.

    It stands alone: one import, one function, and `target` by its name. tolerances: what was
    declared for it.
    """
    geometry = example.geometry
    sizes = {"num_blocks": geometry.num_blocks, "block_size": geometry.block_size}
    if geometry.head_dim != 1:
        sizes["head_dim"] = geometry.head_dim
    return "\n".join(
        [
            "import pagedkv",
            "",
            "",
            f"def test_{_slug(example.property)}_holds_for_{_slug(target)}():",
            *_docstring(example),
            "    pagedkv.assert_holds(",
            f"        {_literal(target)},",
            *_commands(example),
            *(f"        {name}={value}," for name, value in sizes.items()),
            f"        property={_literal(example.property)},",
            *_fault(example),
            *([f"        tolerances={_literal(tolerances)},"] if tolerances else []),
            "    )",
            "",
        ]
    )


def _slug(name: str) -> str:
    return re.sub(r"[\W_]+", "_", name, flags=re.ASCII).strip("_").lower()


def _docstring(example: Counterexample) -> list[str]:
    """The equation, and the same with its numbers."""
    text = [_in_docstring(plain(part)) for part in (example.equation, example.message)]
    message = textwrap.wrap(text[1], WIDTH, break_long_words=False, break_on_hyphens=False)
    return [f'    """{text[0]}', "", *(f"    {line}" for line in message), '    """']


def _in_docstring(text: str) -> str:
    """`text` so that a docstring's value is `text`, and nothing of it can end the docstring."""
    return text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')


def _commands(example: Counterexample) -> list[str]:
    if not example.commands:
        return ["        commands=[],  # a fresh pool is wrong already"]
    return [
        "        commands=[",
        *(f"            {_literal(command.to_json())}," for command in example.commands),
        "        ],",
    ]


def _fault(example: Counterexample) -> list[str]:
    return [] if example.fault is None else [f"        fault={_literal(example.fault.to_json())},"]


def _literal(value: object) -> str:
    """Python source of a JSON-like value, with the quotes that formatters like."""
    match value:
        case str():
            return json.dumps(value, ensure_ascii=False)
        case Mapping():
            return "{" + ", ".join(f"{_literal(k)}: {_literal(v)}" for k, v in value.items()) + "}"
        case list() | tuple():
            return f"[{', '.join(map(_literal, value))}]"
        case _:
            return repr(value)
