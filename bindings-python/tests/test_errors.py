"""Exceptions."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable

import forelock
import pytest
from forelock import _native, errors
from support.script import run
from support.testkit import Proxy, Server

MakeClient = Callable[..., forelock.Client]


def test_every_code_of_the_engine_has_a_class_of_its_own() -> None:
    every = _native.every_error()
    assert len({type(error) for _, error in every}) == len(every)
    for code, error in every:
        assert isinstance(error, forelock.ForelockError)
        assert error.code == code
        assert (type(error) is forelock.ForelockError) == (code == "INTERNAL")
        assert code in str(error)
        assert type(error).__doc__
    public = {
        kind for kind in vars(errors).values() if inspect.isclass(kind) and kind.__module__ == errors.__name__
    }
    assert public == {type(error) for _, error in every}


@pytest.mark.parametrize(
    ("kind", "base"),
    [
        (forelock.AcquireTimeout, TimeoutError),
        (forelock.ConnectionLost, ConnectionError),
        (forelock.NotPermitted, PermissionError),
        (forelock.OutOfResources, OSError),
        (forelock.InvalidArgument, ValueError),
    ],
)
def test_exceptions_are_of_pythons_own_kinds_too(kind: type[Exception], base: type[Exception]) -> None:
    assert issubclass(kind, base)
    assert issubclass(kind, forelock.ForelockError)


@pytest.mark.parametrize("again", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])
def test_exceptions_survive_being_sent_to_another_process(
    again: Callable[[forelock.ForelockError], forelock.ForelockError],
) -> None:
    for kind in [type(error) for _, error in _native.every_error()]:
        error = kind("message", "/path", "holder", 1.5, "max_hold")
        same = again(error)
        assert type(same) is kind
        assert str(same) == "message"
        assert (same.path, same.holder, same.waited) == ("/path", "holder", 1.5)
        if isinstance(same, forelock.LockLost):
            assert same.reason is forelock.LostReason.MAX_HOLD


def test_a_process_without_file_descriptors_is_told_so_and_recovers(server: Server, path: str) -> None:
    source = """
import resource, sys, forelock
client = forelock.Client(sys.argv[1])
mutex = client.mutex(sys.argv[2])
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
files = []
try:
    while True:
        files.append(open("/dev/null"))
except OSError:
    pass
try:
    mutex.acquire(timeout=60)
except forelock.OutOfResources as error:
    assert isinstance(error, OSError)
    print(error)
for file in files:
    file.close()
mutex.acquire(timeout=60).release()
client.close()
"""
    assert "no file descriptor is left" in run(source, server.connect, path)


def test_no_servers_is_a_lost_connection_that_names_them(make_client: MakeClient, proxy: Proxy) -> None:
    proxy.do("refuse")
    client = make_client(proxy.connect, connection_timeout=0.3)
    with pytest.raises(ConnectionError, match=proxy.connect) as error:
        client.connect()
    assert isinstance(error.value, forelock.ConnectionLost)


def test_an_acl_that_forbids_is_not_permitted(make_client: MakeClient, path: str) -> None:
    # Beside the paths of the other tests, which have to stay open.
    path = f"/owned{path}"
    owner = make_client(auth=[("digest", "user:secret")])
    owner.ensure_root(path)
    stranger = make_client(operation_timeout=2.0)
    with pytest.raises(PermissionError) as error:
        stranger.mutex(path).acquire(timeout=2)
    assert isinstance(error.value, forelock.NotPermitted)
    assert error.value.path == path


def test_a_path_of_another_naming_is_a_conflict(client: forelock.Client, path: str) -> None:
    with client.mutex(path), pytest.raises(forelock.Conflict):
        client.mutex(path, naming="epoch").acquire(timeout=2, owner=None)


@pytest.mark.parametrize("path", ["", "a", "/", "/a/../b", "/a/./b", "/a\0b", "/a\nb"])
def test_a_path_that_cannot_be_right_is_refused(server: Server, path: str) -> None:
    client = forelock.Client(server.connect)
    with pytest.raises(ValueError, match="INVALID_ARGUMENT"):
        client.mutex(path)


@pytest.mark.parametrize("timeout", [-1.0, float("nan"), float("inf"), 1e300])
def test_a_timeout_that_cannot_be_right_is_refused(client: forelock.Client, path: str, timeout: float) -> None:
    with pytest.raises(forelock.InvalidArgument):
        client.mutex(path).acquire(timeout=timeout)
    with pytest.raises(forelock.InvalidArgument):
        client.mutex(path, acquire_timeout=timeout)
    with pytest.raises(forelock.InvalidArgument):
        client.mutex(path, max_hold=timeout)


def test_a_timeout_of_infinity_is_told_how_for_ever_is_written(client: forelock.Client, path: str) -> None:
    with pytest.raises(forelock.InvalidArgument, match="for ever is written as None"):
        client.mutex(path).acquire(timeout=float("inf"))
    with pytest.raises(TypeError):
        client.mutex(path).acquire(timeout="soon")  # type: ignore[arg-type]
