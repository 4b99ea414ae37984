"""Names of targets, and one clear line for each that can't be had."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from textwrap import dedent

import pytest
import torch

from pagedkv import targets
from pagedkv.arrays import ArrayKVCacheManager
from pagedkv.builtin import BUILTINS, Builtin
from pagedkv.loading import BadTarget
from pagedkv.reference import KVCacheManager
from pagedkv.targets import Pair, Target, default_targets, resolve, version_of

MANAGER = """
    from pagedkv import KVCacheManager

    class MyManager(KVCacheManager):
        pass
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder; the import system is as before afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in (getattr(sys.modules[name], "__file__", None) or ""):
            del sys.modules[name]


def write(folder: Path, name: str, source: str) -> None:
    (folder / f"{name}.py").write_text(dedent(source), encoding="utf-8")


def line_of(spec: str) -> str:
    """The one line that a bad target gets."""
    with pytest.raises(BadTarget) as caught:
        resolve(spec)
    line = str(caught.value)
    assert "\n" not in line
    assert repr(spec) in line
    return line


# ---------------------------------------------------------------- what can be had


def test_a_builtin_name_gives_its_manager():
    assert resolve("reference") == Target("reference", KVCacheManager)


@pytest.mark.parametrize("builtin", BUILTINS, ids=lambda builtin: builtin.name)
def test_each_builtin_that_is_installed_here_can_be_made(builtin):
    if not builtin.installed:
        assert builtin.where.startswith("pagedkv.engines.")
        pytest.skip(f"lacks {builtin.needs}")
    target = resolve(builtin.name)
    assert isinstance(target, Target)
    assert target.name == builtin.name


def test_what_torch_brings_is_installed_here():
    ours = [
        f"{kind}{more}" for more in ("", "-shared", "-window") for kind in ("reference", "array")
    ]
    assert [b.name for b in BUILTINS if b.installed][:7] == [*ours, "torch"]


@pytest.mark.parametrize(
    ("spec", "version"),
    [
        ("reference+array", None),
        ("mine:Manager", None),
        ("exec:./driver --fast", None),
        ("torch", f"torch {torch.__version__}"),
        ("isolate:torch", f"torch {torch.__version__}"),
        ("reference+torch", f"torch {torch.__version__}"),
    ],
)
def test_the_version_of_an_engine_is_that_of_its_package(spec, version):
    assert version_of(spec) == version


def test_an_engine_that_is_in_no_package_has_no_version(monkeypatch):
    table(monkeypatch, "pagedkv.engines.torch_paged:TorchPagedAttention", "nosuchengine.core")
    assert version_of("engine") is None


def test_the_package_with_the_engine_s_name_tells_its_version(monkeypatch):
    found = {"engine": ["aaa-kernels", "engine"]}
    monkeypatch.setattr(metadata, "packages_distributions", lambda: found)
    monkeypatch.setattr(metadata, "version", {"engine": "2.1"}.__getitem__)
    table(monkeypatch, "pagedkv.engines.torch_paged:TorchPagedAttention", "engine.core")
    assert version_of("engine") == "engine 2.1"


def test_a_pair_is_two_targets_and_its_name_resolves_to_it():
    pair = resolve("reference+array")
    assert pair == Pair(Target("reference", KVCacheManager), Target("array", ArrayKVCacheManager))
    assert resolve(pair.name) == pair


def test_no_target_means_reference_and_array_each_and_in_lockstep():
    assert [target.name for target in default_targets()] == [
        "reference",
        "array",
        "reference+array",
    ]


def test_a_module_of_the_current_folder_is_found(folder):
    write(folder, "mine_a", MANAGER)
    target = resolve("mine_a:MyManager")
    assert isinstance(target, Target)
    assert target.name == "mine_a:MyManager"
    assert target.factory.__module__ == "mine_a"


def test_an_attribute_may_be_dotted_and_a_plain_function(folder):
    write(
        folder,
        "mine_b",
        """
        from pagedkv import KVCacheManager

        class Makers:
            @staticmethod
            def small(num_blocks, block_size, head_dim):
                return KVCacheManager(num_blocks, block_size, head_dim)
        """,
    )
    target = resolve("mine_b:Makers.small")
    assert isinstance(target, Target)
    assert isinstance(target.factory(1, 1, 1), KVCacheManager)


def test_a_pair_may_mix_a_builtin_and_a_module(folder):
    write(folder, "mine_c", MANAGER)
    assert resolve("array+mine_c:MyManager").name == "array+mine_c:MyManager"


def test_the_probe_takes_the_smallest_block_size_that_the_class_declares(folder):
    write(
        folder,
        "mine_d",
        """
        from pagedkv import Declarations, KVCacheManager

        class Coarse(KVCacheManager):
            declares = Declarations(block_sizes=(32, 8), because={"block_sizes": "kernels"})

            def __init__(self, num_blocks, block_size, head_dim):
                if block_size not in (8, 32):
                    raise ValueError(f"block_size = {block_size} is neither 8 nor 32")
                super().__init__(num_blocks, block_size, head_dim)
        """,
    )
    assert resolve("mine_d:Coarse").name == "mine_d:Coarse"


def test_the_probe_finds_a_common_block_size_where_a_function_declares_nothing(folder):
    write(
        folder,
        "mine_e",
        """
        from pagedkv import KVCacheManager

        def make(num_blocks, block_size, head_dim):
            assert block_size == 16
            return KVCacheManager(num_blocks, block_size, head_dim)
        """,
    )
    assert resolve("mine_e:make").name == "mine_e:make"


# ---------------------------------------------------------------- names


def test_an_unknown_name_gets_the_nearest_known_one():
    line = line_of("refrence")
    assert "did you mean reference or " in line
    assert "module:attribute" in line


def test_a_name_like_no_other_gets_all_known_ones():
    assert "built in are reference, array, reference-shared, " in line_of("zzz")


def test_a_bare_module_of_the_current_folder_gets_the_form_to_write(folder):
    write(folder, "mine_f", MANAGER)
    assert "your own allocator is mine_f:MyManager" in line_of("mine_f")


@pytest.mark.parametrize("spec", ["mine.py:MyManager", "./mine:MyManager", ":MyManager"])
def test_a_file_is_no_module(spec):
    assert "name the module as an import does" in line_of(spec)


def test_a_program_is_refused_for_now():
    assert "exec:" in line_of("exec:./my-allocator --pipe")


@pytest.mark.parametrize("spec", ["reference+", "+array", "reference+array+torch"])
def test_a_pair_is_exactly_two(spec):
    assert "exactly two targets, like reference+array" in line_of(spec)


# ---------------------------------------------------------------- modules


def test_a_module_that_is_not_there_gets_the_nearest_one_of_the_folder(folder):
    write(folder, "my_allocator", MANAGER)
    line = line_of("my_alocator:MyManager")
    assert f"no module my_alocator, neither in {folder} nor installed" in line
    assert "did you mean my_allocator?" in line


def test_a_package_that_is_not_there_is_named(folder):
    assert "no module nowhere, neither" in line_of("nowhere.inner:MyManager")


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("import nosuchlibrary", "failed at {}:1: No module named 'nosuchlibrary'; install it"),
        ("\n1 / 0", "failed at {}:2: ZeroDivisionError: division by zero"),
        ("def f(:\n    pass", "failed at {}:1: SyntaxError"),
        ("from pagedkv import Nothing", "failed at {}:1: ImportError"),
        ("raise SystemExit(3)", "ended the program at {}:1: SystemExit: 3"),
        ("class E(BaseException): pass\nraise E('own\\nkind')", "failed at {}:2: E: own kind"),
        ("import json\njson.loads('{')", "failed at {}:2: JSONDecodeError"),
        ("raise RuntimeError", "failed at {}:1: RuntimeError"),
    ],
)
def test_an_import_that_fails_says_what_and_where(folder, source, says):
    write(folder, "broken", source)
    assert says.format("broken.py") in line_of("broken:MyManager")


def test_an_import_that_fails_deeper_names_the_innermost_file_of_the_user(folder):
    write(folder, "outer", "import inner")
    write(folder, "inner", "\n\nraise KeyError('x')")
    assert "importing outer failed at inner.py:3: KeyError" in line_of("outer:MyManager")


def test_an_error_whose_message_fails_is_told_still(folder):
    write(
        folder,
        "spiteful",
        """
        class Spiteful(Exception):
            def __str__(self):
                raise RuntimeError

        raise Spiteful
        """,
    )
    assert "Spiteful: (its message can't be shown)" in line_of("spiteful:MyManager")


def test_a_long_message_is_cut(folder):
    write(folder, "verbose", "raise RuntimeError('x' * 1000)")
    assert len(line_of("verbose:MyManager")) < 450


def test_an_interrupted_import_stays_an_interrupt(folder):
    write(folder, "stopped", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        resolve("stopped:MyManager")


# ---------------------------------------------------------------- attributes and factories


def test_a_missing_attribute_gets_the_nearest_one(folder):
    write(folder, "mine_g", MANAGER)
    line = line_of("mine_g:MyManger")
    assert "module mine_g has no attribute MyManger; did you mean MyManager" in line


def test_a_missing_attribute_gets_the_managers_that_are_there(folder):
    write(folder, "mine_h", MANAGER)
    assert "; it has KVCacheManager and MyManager" in line_of("mine_h:xyz")
    assert "names no attribute; it has" in line_of("mine_h:")


def test_a_module_whose_attributes_fail_says_where(folder):
    write(folder, "mine_i", "def __getattr__(name):\n    return 1 / 0 if name == 'm' else None")
    assert "reading m of module mine_i failed at mine_i.py:2: ZeroDivisionError" in line_of(
        "mine_i:m"
    )


FACTORIES = """
    import sys
    from pagedkv import KVCacheManager

    number = 5
    manager = KVCacheManager(1, 1, 1)

    def takes_two(num_blocks, block_size):
        return KVCacheManager(num_blocks, block_size, 1)

    def by_keyword(*, num_blocks, block_size, head_dim):
        return KVCacheManager(num_blocks, block_size, head_dim)

    def raises(num_blocks, block_size, head_dim):
        raise ValueError("no device")

    def crashes(num_blocks, block_size, head_dim):
        return {}["kv"]

    def leaves(num_blocks, block_size, head_dim):
        sys.exit("bye")

    def nothing(num_blocks, block_size, head_dim):
        return None

    class Half(KVCacheManager):
        release_request = None

    class Declares(KVCacheManager):
        declares = {"wrong_use": "never"}

    def stopped(num_blocks, block_size, head_dim):
        raise KeyboardInterrupt
"""


@pytest.mark.parametrize(
    ("attribute", "says"),
    [
        ("number", "is of type int, not a callable; a target is a callable (num_blocks, "),
        ("manager", "is a manager already; give its class, KVCacheManager, or a function"),
        ("takes_two", "takes (num_blocks, block_size), which (num_blocks, block_size, head_dim)"),
        ("by_keyword", "takes (*, num_blocks, block_size, head_dim), which"),
        ("raises", "can't be made with 1 block(s) of 1 token(s): ValueError: no device at "),
        ("crashes", "KeyError: 'kv' at factories.py:18"),
        ("leaves", "SystemExit: bye at factories.py:21"),
        ("nothing", "makes a NoneType without a method allocate_for_prefill(req)"),
        ("Half", "makes a Half without a method release_request(req)"),
        ("Declares", "declares must be a pagedkv.Declarations"),
    ],
)
def test_a_factory_that_makes_no_manager_says_why(folder, attribute, says):
    write(folder, "factories", FACTORIES)
    assert says in line_of(f"factories:{attribute}")


def test_a_factory_that_refuses_a_size_gets_the_way_to_declare_it(folder):
    write(folder, "factories", FACTORIES)
    assert "declares says which sizes a target can have" in line_of("factories:raises")
    assert "declares says" not in line_of("factories:crashes")


def test_an_interrupted_factory_stays_an_interrupt(folder):
    write(folder, "factories", FACTORIES)
    with pytest.raises(KeyboardInterrupt):
        resolve("factories:stopped")


def test_a_callable_without_a_signature_is_called_all_the_same():
    with pytest.raises(BadTarget, match="dict expected at most 1 argument"):
        targets.verified("builtins:dict", dict)


# ---------------------------------------------------------------- engines that are not there


def table(monkeypatch, where: str, needs: str) -> Builtin:
    row = Builtin("engine", where, "An engine.", needs, "pip install engine==1")
    monkeypatch.setattr(targets, "BUILTINS", (*BUILTINS, row))
    return row


@pytest.mark.parametrize("needs", ["nosuchengine", "nosuchengine.core", "json.nosuchpart.more"])
def test_a_missing_engine_gets_the_line_that_installs_it(monkeypatch, needs):
    row = table(monkeypatch, "pagedkv.reference:KVCacheManager", needs)
    assert not row.installed
    line = line_of("engine")
    assert f"needs {needs}, which is not installed; install it with: pip install engine==1" in line


def test_looking_for_an_engine_imports_nothing_of_it(folder):
    package = folder / "heavy_engine"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')", encoding="utf-8")
    (package / "core.py").write_text("", encoding="utf-8")
    sys.path.insert(0, str(folder))
    row = Builtin("heavy", "heavy_engine:X", "Heavy.", "heavy_engine.core", "pip install heavy")
    assert row.installed
    assert "heavy_engine" not in sys.modules


def test_an_engine_that_changed_gets_the_line_that_installs_the_tested_one(monkeypatch):
    table(monkeypatch, "pagedkv.reference:Gone", "torch")
    line = line_of("engine")
    assert "module pagedkv.reference has no attribute Gone" in line
    assert line.endswith("; install it with: pip install engine==1")


def test_what_a_namespace_inside_a_package_needs_is_found_without_importing_it(
    tmp_path, monkeypatch
):
    there = tmp_path / "engine_here" / "srt" / "memory"
    there.mkdir(parents=True)
    (tmp_path / "engine_here" / "__init__.py").write_text("raise SystemExit", encoding="utf-8")
    (there / "pool.py").write_text("raise SystemExit", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    row = Builtin("engine", "x:X", "An engine.", "engine_here.srt.memory.pool", "pip install it")
    assert row.installed
    assert not replace(row, needs="engine_here.srt.memory.none").installed
    assert not replace(row, needs="engine_here.srt.none.pool").installed
