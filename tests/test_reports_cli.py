"""Reports on the command line: which file gets what, and what is refused before a long run."""

from __future__ import annotations

import json
import sys
from textwrap import dedent
from xml.etree import ElementTree as ET

import pytest

from faults import KeepsLast
from pagedkv import KVCacheManager, api, cli, sources
from pagedkv.specs.abilities.core import Prefill, Release
from pagedkv.specs.model import Geometry
from pagedkv.stateful import examples, processes
from pagedkv.stateful.report import Report
from pagedkv.stateful.reports import Source
from pagedkv.stateful.traces import Trace, write_trace
from pagedkv.targets import Pair, Target, resolve
from report_examples import LEAK, examples_of, report, target

SOURCE = """
    from functools import partial

    from pagedkv.reference import KVCacheManager

    class Leaky(KVCacheManager):
        def release_request(self, req):
            super().release_request(req)
            self._free.pop()

    def made(num_blocks, block_size, head_dim):
        return Leaky(num_blocks, block_size, head_dim)

    bound = partial(made)

    class Maker:
        def __call__(self, num_blocks, block_size, head_dim):
            return Leaky(num_blocks, block_size, head_dim)

    maker = Maker()
"""
LEAKS = Trace("leaks:Leaky", Geometry(2, 1), (Prefill(0, 1), Release(0)), "conservation")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A repository of its own, in a subfolder of which the commands run."""
    (tmp_path / ".git").mkdir()
    folder = tmp_path / "sub folder"
    folder.mkdir()
    (folder / "leaks.py").write_text(dedent(SOURCE).lstrip(), encoding="utf-8")
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "leaks", raising=False)
    # What tries a target in a process of its own first has tests of its own.
    monkeypatch.setattr(processes, "death_of", lambda *_: None)
    return folder


@pytest.fixture
def found(monkeypatch):
    """Every check finds the same."""
    monkeypatch.setattr(api, "check_targets", lambda targets, options, tell: report())


def run(capsys, *arguments):
    """Exit code and both streams of a command."""
    code = cli.main(list(arguments))
    return (code, *capsys.readouterr())


# ---------------------------------------------------------------- check


def test_check_writes_every_report_beside_the_text(found, capsys, here):
    files = {kind: here / f"report.{kind}" for kind in ("json", "junit", "sarif", "html")}
    options = [word for kind, file in files.items() for word in (f"--{kind}", str(file))]
    code, out, _ = run(capsys, "check", "reference", *options)
    assert code == 1
    assert "mine:FreeTwice" in out
    texts = {kind: file.read_text(encoding="utf-8") for kind, file in files.items()}
    assert json.loads(texts["json"]) == report().to_json()
    assert ET.fromstring(texts["junit"].encode()).tag == "testsuites"
    assert json.loads(texts["sarif"])["version"] == "2.1.0"
    assert texts["html"].startswith("<!DOCTYPE html>")


@pytest.mark.parametrize(
    ("kind", "start"), [("junit", "<?xml"), ("sarif", "{"), ("html", "<!DOCTYPE html>")]
)
def test_a_report_on_stdout_stands_there_alone(found, capsys, kind, start):
    code, out, err = run(capsys, "check", "reference", f"--{kind}", "-")
    assert code == 1
    assert out.startswith(start)
    assert "mine:FreeTwice: VIOLATED" in err


@pytest.mark.parametrize("kind", ["json", "junit", "sarif", "html"])
def test_what_can_not_be_written_is_refused_before_the_run(capsys, monkeypatch, here, kind):
    monkeypatch.setattr(api, "check_targets", pytest.fail)
    code, out, err = run(capsys, "check", "reference", f"--{kind}", "nowhere/report")
    assert (code, out) == (2, "")
    folder = here / "nowhere"
    assert err == f"Error: --{kind} {folder}/report: there is no folder {folder}; make it first\n"


def test_two_reports_in_one_file_are_refused(capsys, monkeypatch):
    monkeypatch.setattr(api, "check_targets", pytest.fail)
    code, _, err = run(capsys, "check", "reference", "--html", "./a", "--json", "a")
    assert code == 2
    assert err == "Error: --html a: --json goes there too; name another file\n"
    code, _, err = run(capsys, "check", "reference", "--sarif", "-", "--junit", "-")
    assert code == 2
    assert err == "Error: --sarif -: --junit goes there too; name another file\n"


def test_the_violated_class_is_where_code_scanning_shows_it(capsys, monkeypatch):
    violated = Report((target("leaks:Leaky", examples_of(KeepsLast, LEAK)),))
    monkeypatch.setattr(api, "check_targets", lambda targets, options, tell: violated)
    code, out, _ = run(capsys, "check", "leaks:Leaky", "--sarif", "-")
    assert code == 1
    (sarif,) = json.loads(out)["runs"]
    (place,) = sarif["results"][0]["locations"]
    assert place["physicalLocation"] == {
        "artifactLocation": {"uri": "sub%20folder/leaks.py", "uriBaseId": "%SRCROOT%"},
        "region": {"startLine": 5},
    }


# ---------------------------------------------------------------- sources


@pytest.mark.parametrize(
    ("name", "line"), [("Leaky", 5), ("made", 10), ("bound", 10), ("maker", 15)]
)
def test_a_target_is_found_at_its_class_or_function(name, line):
    (place,) = sources.places_of(resolve(f"leaks:{name}"))
    assert place.name == f"leaks:{name}"
    assert place.source == Source("sub%20folder/leaks.py", line)


@pytest.mark.parametrize(("name", "line"), [("Leaky", 5), ("made", 10), ("bound", 1)])
def test_what_was_not_imported_is_found_in_its_file(name, line, monkeypatch):
    monkeypatch.setattr(sources, "_of_object", pytest.fail)
    (place,) = sources.places_of(Target(f"leaks:{name}", KVCacheManager), isolated=True)
    assert place.source == Source("sub%20folder/leaks.py", line)
    assert "leaks" not in sys.modules


@pytest.mark.parametrize("name", ["exec:./driver", "nowhere:M", "json.nowhere:M", "math:ceil"])
def test_what_has_no_source_has_none(name):
    (place,) = sources.places_of(Target(name, KVCacheManager), isolated=True)
    assert (place.name, place.source) == (name, None)


def test_a_pair_has_the_places_of_both():
    pair = resolve("reference+leaks:Leaky")
    assert isinstance(pair, Pair)
    first, second = sources.places_of(pair)
    assert first.source is not None
    assert first.source.uri.startswith("file:///")
    assert first.source.uri.endswith("/pagedkv/reference.py")
    assert second.source == Source("sub%20folder/leaks.py", 5)


# ---------------------------------------------------------------- replay


def test_replay_draws_the_history(capsys, here):
    write_trace(here / "leak.jsonl", LEAKS)
    code, out, _ = run(capsys, "replay", "leak.jsonl", "--svg", "leak.svg")
    assert code == 1
    assert out.startswith("FAILED: leaks:Leaky breaks conservation")
    text = (here / "leak.svg").read_text(encoding="utf-8")
    root = ET.fromstring(text.encode())
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert "leaks:Leaky breaks conservation" in text
    code, out, err = run(capsys, "replay", "leak.jsonl", "--svg", "-")
    assert out == text
    assert "FAILED" in err


def test_replay_of_what_breaks_no_more_draws_nothing(capsys, here):
    write_trace(here / "leak.jsonl", LEAKS)
    code, out, _ = run(capsys, "replay", "leak.jsonl", "--target", "reference", "--svg", "leak.svg")
    assert code == 0
    assert out.startswith("FIXED")
    assert not (here / "leak.svg").exists()


def test_replay_refuses_what_it_can_not_write_before_it_runs(capsys, here):
    write_trace(here / "leak.jsonl", LEAKS)
    code, out, err = run(capsys, "replay", "leak.jsonl", "--svg", str(here))
    assert (code, out) == (2, "")
    assert err == f"Error: --svg {here}: is a folder; name a file in it\n"


def test_a_history_that_is_too_long_to_be_drawn_is_told(capsys, here, monkeypatch):
    monkeypatch.setattr(examples, "SHOWN", 1)
    write_trace(here / "leak.jsonl", LEAKS)
    code, out, err = run(capsys, "replay", "leak.jsonl", "--svg", "leak.svg")
    assert code == 2
    assert "FAILED" in out
    assert err == (
        "Error: --svg leak.svg: 2 commands are too many to be drawn; "
        "cut the history down first, with pagedkv shrink\n"
    )
