"""What a client can be told."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forelock
import pytest
from forelock import AclEntry, RetryPolicy, aio
from support.observer import Observer
from support.testkit import Server

MakeClient = Callable[..., forelock.Client]
SERVERS = "localhost:1"


@pytest.mark.parametrize("kind", [forelock.Client, aio.Client])
def test_the_defaults_are_the_documented_ones(kind: type[forelock.Client]) -> None:
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(kind).parameters.items()
        if parameter.default is not inspect.Parameter.empty
    }
    assert defaults["session_timeout"] == 30.0
    assert defaults["connection_timeout"] == 15.0
    assert defaults["acquire_timeout"] == 30.0
    assert defaults["retry"] == RetryPolicy.exponential(base=1.0, cap=30.0, attempts=3)
    assert defaults["heartbeat"] == "session"
    kind(SERVERS)


def test_a_chroot_is_made_only_when_asked_for(server: Server, observer: Observer) -> None:
    chroot = "/test-chroot/services"
    with forelock.Client(server.connect + chroot) as client:
        with pytest.raises(forelock.InvalidArgument, match="create_chroot"):
            client.mutex("/a").acquire(timeout=5)
    assert observer.children("/test-chroot") == []
    with forelock.Client(server.connect + chroot, create_chroot=True) as client:
        with client.mutex("/a").acquire(timeout=5):
            assert observer.children(chroot) == ["a"]


def test_every_option_is_taken(tmp_path: Path) -> None:
    for retry in (
        RetryPolicy.exponential(0.1, 1.0, 2),
        RetryPolicy.times(3, delay=0.1),
        RetryPolicy.until_elapsed(5.0, delay=0.1),
        RetryPolicy.forever(delay=0.1),
        RetryPolicy.none(),
    ):
        client = forelock.Client(
            "zk1:2181,zk2/chroot",
            session_timeout=10,
            connection_timeout=5,
            acquire_timeout=None,
            operation_timeout=3,
            release_timeout=1,
            close_timeout=1,
            retry=retry,
            namespace="a/b",
            create_chroot=True,
            tick=2.0,
            heartbeat="quorum",
            allow_read_only=True,
            acl=[AclEntry("world", "anyone", "crwda")],
            container_parents=True,
            label="label",
            program="program",
            auth=[("digest", "user:password"), ("digest", b"other:password")],
            sasl=forelock.SaslDigestMd5("user", "password"),
        )
        assert client.namespace == "/a/b"
        client.close()
    for acl in ("open", "creator", None):
        forelock.Client(SERVERS, acl=acl)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [
        {"session_timeout": 0.0},
        {"session_timeout": -1.0},
        {"tick": float("nan")},
        {"heartbeat": "often"},
        {"acl": "everyone"},
        {"acl": []},
        {"acl": [AclEntry("world", "anyone", "xyz")]},
        {"namespace": "/a/../b"},
        {"label": "x" * 1000},
        {"retry": RetryPolicy("sometimes")},  # type: ignore[arg-type]
        {"tls": forelock.TlsConfig("no certificate")},
        {"tls": forelock.TlsConfig("", "certificate without a key")},
    ],
)
def test_what_cannot_be_right_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(forelock.InvalidArgument):
        forelock.Client(SERVERS, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"),
    [("session_timeout", "30s"), ("label", 5), ("retry", 3), ("auth", "digest"), ("acl", 7), ("tls", "ca.pem")],
)
def test_what_is_of_another_type_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises((TypeError, AttributeError, ValueError)) as error:
        forelock.Client(SERVERS, **{name: value})  # type: ignore[arg-type]
    if isinstance(error.value, TypeError):
        assert name in str(error.value)


@pytest.mark.parametrize("kind", [forelock.Client, aio.Client])
def test_an_argument_of_another_type_is_named(kind: Any) -> None:
    client = kind(SERVERS)
    mutex = client.mutex("/a")
    for call, message in (
        (lambda: mutex.acquire(timeout="5"), "timeout must be a number of seconds, not str"),
        (lambda: mutex.acquire("5"), "timeout must be a number of seconds, not str"),
        (lambda: mutex.acquire(owner=5), "owner must be a str, not int"),
        (lambda: mutex.try_acquire(owner=b"me"), "owner must be a str, not bytes"),
        (lambda: client.mutex("/a", acquire_timeout="5"), "acquire_timeout must be a number of seconds, not str"),
        (lambda: client.mutex("/a", max_hold=[]), "max_hold must be a number of seconds, not list"),
        (lambda: client.mutex("/a", naming=1), "naming must be a str, not int"),
        (lambda: client.mutex(None), "path must be a str, not NoneType"),
        (lambda: kind(5), "servers must be a str, not int"),
        (lambda: kind(SERVERS, tick="2"), "tick must be a number of seconds, not str"),
        (lambda: kind(SERVERS, namespace=b"/a"), "namespace must be a str, not bytes"),
        (
            lambda: kind(SERVERS, retry=RetryPolicy.forever(delay="1")),  # type: ignore[arg-type]
            "retry: delay must be a number of seconds, not str",
        ),
        (lambda: forelock.lock_path("a", 5), "resource must be a str, not int"),  # type: ignore[arg-type]
    ):
        with pytest.raises(TypeError) as error:
            call()
        assert str(error.value) == message


@pytest.mark.parametrize("kind", [forelock.Client, aio.Client])
def test_a_lone_surrogate_can_be_no_argument(kind: Any) -> None:
    bad = "/a\udc80"
    client = kind(SERVERS)
    mutex = client.mutex("/a")
    for call in (
        lambda: client.mutex(bad),
        lambda: client.mutex("/a", naming=bad),
        lambda: forelock.lock_path("a", bad),
        lambda: forelock.lock_path(bad, "a"),
        lambda: mutex.acquire(owner=bad),
        lambda: mutex.try_acquire(owner=bad),
        lambda: kind(bad),
        lambda: kind(SERVERS + bad),
        lambda: kind(SERVERS, namespace=bad),
        lambda: kind(SERVERS, label=bad),
        lambda: kind(SERVERS, program=bad),
        lambda: kind(SERVERS, heartbeat=bad),
        lambda: kind(SERVERS, acl=bad),
        lambda: kind(SERVERS, acl=[AclEntry("digest", bad, "r")]),
        lambda: kind(SERVERS, auth=[(bad, "secret")]),
        lambda: kind(SERVERS, auth=[("digest", bad)]),
        lambda: kind(SERVERS, tls=forelock.TlsConfig(bad)),
        lambda: kind(SERVERS, tls=forelock.TlsConfig("", bad, bad)),
        lambda: kind(SERVERS, sasl=forelock.SaslDigestMd5(bad, "secret")),
    ):
        with pytest.raises(forelock.InvalidArgument, match="lone surrogate"):
            call()
    for call in (
        lambda: kind(SERVERS, auth=[("digest", "secret\udc80")]),
        lambda: kind(SERVERS, tls=forelock.TlsConfig("", "", "secret\udc80")),
        lambda: kind(SERVERS, sasl=forelock.SaslDigestMd5("user", "secret\udc80")),
    ):
        with pytest.raises(forelock.InvalidArgument) as error:
            call()
        assert "secret\\" not in str(error.value), "it is not shown"


def test_arguments_of_a_held_lock_are_named(client: forelock.Client, path: str) -> None:
    with client.mutex(path) as held:
        for call, message in (
            (lambda: held.ensure("1"), "min must be a number of seconds, not str"),  # type: ignore[arg-type]
            (lambda: held.wait_lost("1"), "timeout must be a number of seconds, not str"),  # type: ignore[arg-type]
            (lambda: held.hand_over(5), "owner must be a str, not int"),  # type: ignore[arg-type]
            (lambda: held.release(owner=5), "owner must be a str, not int"),  # type: ignore[arg-type]
        ):
            with pytest.raises(TypeError) as error:
                call()
            assert str(error.value) == message
        for call in (lambda: held.hand_over("\udc80"), lambda: held.release(owner="\udc80")):
            with pytest.raises(forelock.InvalidArgument, match="lone surrogate"):
                call()
        with pytest.raises(forelock.InvalidArgument, match="lone surrogate"):
            client.ensure_root("/a\udc80")
        assert held.is_valid()


def test_servers_that_cannot_be_right_are_refused() -> None:
    for servers in ("", ",", "host:port", "host:99999999"):
        with pytest.raises(forelock.InvalidArgument):
            forelock.Client(servers)


def test_secrets_are_not_shown() -> None:
    assert "secret" not in repr(forelock.SaslDigestMd5("user", "secret"))
    assert "secret" not in repr(forelock.TlsConfig("ca", "certificate", "secret"))


def test_tls_is_read_from_files(tmp_path: Path) -> None:
    for name in ("ca", "certificate", "key"):
        (tmp_path / name).write_text(f"{name} in PEM")
    config = forelock.TlsConfig.from_files(tmp_path / "ca", str(tmp_path / "certificate"), tmp_path / "key")
    assert config == forelock.TlsConfig("ca in PEM", "certificate in PEM", "key in PEM")
    assert forelock.TlsConfig.from_files(tmp_path / "ca", verify_host=False).verify_host is False
    with pytest.raises(OSError, match="none"):
        forelock.TlsConfig.from_files(tmp_path / "none")


def test_an_acl_is_put_on_what_is_made(make_client: MakeClient, observer: Observer, path: str) -> None:
    client = make_client(acl=[AclEntry("world", "anyone", "cdr"), AclEntry("ip", "127.0.0.1", "crwda")])
    with client.mutex(path) as held:
        acls, _ = observer.zk.get_acls(f"{path}/{held.node}")
    assert {(acl.id.scheme, acl.id.id, acl.perms) for acl in acls} == {
        ("world", "anyone", 0b01101),
        ("ip", "127.0.0.1", 0b11111),
    }


def test_lock_paths_for_what_users_name(client: forelock.Client) -> None:
    assert forelock.lock_path("order", "a/b") == "/locks/order/a%2Fb"
    assert forelock.lock_path("order", "..") != forelock.lock_path("order", ".")
    with pytest.raises(forelock.InvalidArgument):
        forelock.lock_path("", "x")
    with client.mutex(forelock.lock_path("order", "ä/ß")) as held:
        assert held.path == "/locks/order/%C3%A4%2F%C3%9F"


def test_the_sentinels_say_what_they_are() -> None:
    assert repr(forelock.DEFAULT) == "DEFAULT"
    assert repr(forelock.CURRENT) == "CURRENT"
