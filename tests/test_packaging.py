"""The one import package, as it is installed."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tomllib
from importlib import metadata, resources
from importlib.util import find_spec
from pathlib import Path

import pytest

import pagedkv

CHECKOUT = Path(__file__).resolve().parent.parent
ROOMS = ("pagedkv", "pagedkv.specs", "pagedkv.stateful")


def origin(name: str) -> Path:
    spec = find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).resolve()


@pytest.mark.skipif(
    "TOX_ENV_NAME" not in os.environ, reason="only tox installs a wheel; elsewhere it is a checkout"
)
@pytest.mark.parametrize("name", ROOMS)
def test_under_tox_the_installed_wheel_is_imported(name):
    assert sys.flags.safe_path
    assert "site-packages" in origin(name).parts
    assert not origin(name).is_relative_to(CHECKOUT / "pagedkv")
    assert find_spec("specs") is None
    assert find_spec("stateful") is None


@pytest.mark.parametrize("name", ROOMS)
def test_each_room_has_one_import_name(name):
    package = importlib.import_module(name)
    assert package.__name__ == name
    assert package.__spec__ is not None
    assert package.__spec__.parent == name


def test_every_folder_of_modules_is_listed_as_a_package():
    table = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))
    setuptools = table["tool"]["setuptools"]
    folders = {
        module.parent.relative_to(CHECKOUT).as_posix()
        for room in ("pagedkv", "specs", "stateful")
        for module in (CHECKOUT / room).rglob("*.py")
        if not module.is_relative_to(CHECKOUT / "pagedkv" / "specs")
        and not module.is_relative_to(CHECKOUT / "pagedkv" / "stateful")
    }
    assert folders == set(setuptools["package-dir"].values())
    assert set(setuptools["packages"]) == set(setuptools["package-dir"])


@pytest.mark.parametrize("room", ["specs", "stateful"])
def test_the_links_are_relative_and_lead_to_the_rooms(room):
    link = CHECKOUT / "pagedkv" / room
    if not link.is_symlink():
        pytest.skip("this copy of the source came without symbolic links")
    assert link.readlink() == Path("..") / room


def test_the_version_is_the_installed_one():
    assert pagedkv.__version__ == metadata.version("pagedkv")


def test_type_checkers_find_the_marker():
    assert resources.files("pagedkv").joinpath("py.typed").is_file()


def test_the_script_calls_main():
    (script,) = metadata.entry_points(group="console_scripts", name="pagedkv")
    assert script.value == "pagedkv.cli:main"


def test_python_m_pagedkv_does_what_the_script_does(tmp_path):
    script = Path(sys.executable).with_name("pagedkv")
    runs = [
        subprocess.run(
            [*command, "--help"], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        for command in ([script], [sys.executable, "-m", "pagedkv"])
    ]
    by_script, by_module = (run.stdout.replace("python -m pagedkv", "pagedkv") for run in runs)
    assert by_module == by_script
    assert "Usage: pagedkv" in by_script
