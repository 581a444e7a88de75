"""Fixtures of the system tests. `postern` is the program with a fresh home; `sandbox_works` is asked for by
everything that needs a sandbox, and says why when there can be none."""

import os
import pathlib
import shutil
import sys

import pytest

sys.path.insert(0, os.path.dirname(__file__))
import postern as lib  # noqa: E402


def pytest_collection_modifyitems(items):
    """Quick and general tests first, so that a broken program is seen at once."""
    order = ["test_exec", "test_input", "test_escape", "test_run", "test_image", "test_serve", "test_gate", "test_sdk", "test_limits", "test_crash", "test_recover", "test_chaos"]
    items.sort(key=lambda item: next((i for i, n in enumerate(order) if item.module.__name__.startswith(n)), 99))


@pytest.fixture(scope="session", autouse=True)
def program():
    if not os.access(lib.PROGRAM, os.X_OK):
        pytest.exit(f"no program at {lib.PROGRAM}: run `make`, or set POSTERN", returncode=2)
    folder = lib.short_dir("pt-probe-")
    lib.build_probe(folder)
    yield lib.PROGRAM
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def sandbox_works(program):
    """The flags every sandbox of this run gets: none when all is there."""
    home = lib.short_dir("pt-")
    try:
        done = lib.Postern(home).exec("/bin/true")
        if done.code == 0:
            return ()
        weaker = ("--isolation", "no-limits")
        if lib.Postern(home, weaker).exec("/bin/true").code == 0 and os.environ.get("MUST_WORK") != "1":
            return weaker
        lib.must(f"no sandbox can be made on this machine: {done}")
    finally:
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def home():
    folder = lib.short_dir("pt-")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def postern(home, sandbox_works):
    return lib.Postern(home, sandbox_works)


@pytest.fixture
def bare_postern(home):
    """The program without asking whether sandboxes work."""
    return lib.Postern(home)


@pytest.fixture
def tmp(tmp_path):
    return pathlib.Path(tmp_path)
