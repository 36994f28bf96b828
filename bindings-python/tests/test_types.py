"""The types: the package, and a file that uses all of it, in the strict modes of two checkers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import forelock
import pytest

PACKAGE = Path(forelock.__file__).parent
USAGE = Path(__file__).with_name("typed_usage.py")


def check(*command: str) -> None:
    # pyright finds the environment by the first `python` on the path.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", *command],
        capture_output=True,
        text=True,
        cwd=USAGE.parent,
        env={**os.environ, "PATH": path},
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_package_is_marked_as_typed_and_has_stubs_for_its_native_part() -> None:
    assert (PACKAGE / "py.typed").exists()
    assert (PACKAGE / "_native.pyi").exists()


def test_mypy(tmp_path: Path) -> None:
    check("mypy", "--strict", "--python-version", "3.11", "--cache-dir", str(tmp_path / "a"), str(USAGE))
    check("mypy", "--strict", "--python-version", "3.11", "--cache-dir", str(tmp_path / "b"), "-p", "forelock")


def test_pyright() -> None:
    check("pyright", "--pythonversion", "3.11", str(USAGE))
    check("pyright", "--verifytypes", "forelock", "--ignoreexternal")


def test_the_stubs_say_what_the_native_module_has(tmp_path: Path) -> None:
    check("mypy.stubtest", "forelock._native")


def test_everything_public_has_a_docstring() -> None:
    from forelock import aio

    for module in (forelock, aio):
        for name in module.__all__:
            thing = getattr(module, name)
            if not isinstance(thing, type):
                continue
            assert thing.__doc__, name
            for member, value in vars(thing).items():
                if member.startswith("_") or not callable(getattr(value, "fget", value)):
                    continue
                if member in ("send", "throw", "close") and name == "Acquiring":
                    continue
                assert getattr(value, "__doc__", None), f"{name}.{member}"


@pytest.mark.parametrize("name", forelock.__all__)
def test_everything_that_is_exported_is_there(name: str) -> None:
    assert hasattr(forelock, name)
