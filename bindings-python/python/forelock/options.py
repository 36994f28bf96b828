"""What a client and a mutex can be told."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Final, Literal

__all__ = [
    "CURRENT",
    "DEFAULT",
    "AclEntry",
    "Naming",
    "Owner",
    "RetryPolicy",
    "SaslDigestMd5",
    "Timeout",
    "TlsConfig",
]


class Default(enum.Enum):
    """What stands for an argument that was left out."""

    DEFAULT = "default"
    CURRENT = "current"

    def __repr__(self) -> str:
        return self.name


DEFAULT: Final = Default.DEFAULT
"""The timeout of the mutex or else of the client: 30 seconds unless they say otherwise."""

CURRENT: Final = Default.CURRENT
"""The owner that is the current thread, or in asyncio the current task."""

Timeout = float | None | Literal[Default.DEFAULT]
"""Seconds; None for ever; ``DEFAULT`` for what the mutex or the client says."""

Owner = str | None | Literal[Default.CURRENT]
"""A key of yours; None for no owner; ``CURRENT`` for the thread or task that calls."""

Naming = Literal["curator", "kazoo", "epoch"]
"""How lock nodes are named.

``"curator"`` excludes Curator's InterProcessMutex, and kazoo's Lock if that is given
``extra_lock_patterns=("-lock-",)``. ``"kazoo"`` excludes kazoo. ``"epoch"`` is for Forelock alone: with the
root's czxid in the name, no name ever repeats.
"""


@dataclass(frozen=True)
class RetryPolicy:
    """When to try again after an error that can be retried. One budget covers a whole call.

    Made by the class methods. All times are seconds.
    """

    kind: Literal["exponential", "times", "until_elapsed", "forever", "none"]
    base: float = 0.0
    cap: float = 0.0
    attempts: int = 0
    delay: float = 0.0
    total: float = 0.0

    @classmethod
    def exponential(cls, base: float = 1.0, cap: float = 30.0, attempts: int = 3) -> RetryPolicy:
        """After ``base`` seconds, twice that and so on, never more than ``cap``, up to ``attempts`` times."""
        return cls("exponential", base=base, cap=cap, attempts=attempts)

    @classmethod
    def times(cls, attempts: int, delay: float) -> RetryPolicy:
        """Up to ``attempts`` times, ``delay`` seconds apart."""
        return cls("times", attempts=attempts, delay=delay)

    @classmethod
    def until_elapsed(cls, total: float, delay: float) -> RetryPolicy:
        """Until ``total`` seconds have passed since the first failure, ``delay`` seconds apart."""
        return cls("until_elapsed", total=total, delay=delay)

    @classmethod
    def forever(cls, delay: float) -> RetryPolicy:
        """For ever, ``delay`` seconds apart; within the call's deadline, if it has one."""
        return cls("forever", delay=delay)

    @classmethod
    def none(cls) -> RetryPolicy:
        """Not at all."""
        return cls("none")


@dataclass(frozen=True)
class AclEntry:
    """One line of an access-control list."""

    scheme: str
    """``world``, ``auth``, ``digest``, ``ip``, ``sasl`` or ``x509``."""
    id: str
    """Who, in the terms of the scheme."""
    permissions: str
    """The rights, as letters out of ``crwda``: create, read, write, delete, admin."""


@dataclass(frozen=True)
class TlsConfig:
    """TLS to the servers. The key never appears in ``repr``."""

    ca_pem: str = field(repr=False)
    """The certificates that the servers' own must be signed by, in PEM; revocation lists among them count."""
    certificate_pem: str | None = field(default=None, repr=False)
    """Our own certificate chain, in PEM, where the servers ask for one."""
    key_pem: str | None = field(default=None, repr=False)
    """Our private key, in PEM."""
    verify_host: bool = True
    """Whether the server's certificate must be for the host name that we connect to."""

    @classmethod
    def from_files(
        cls,
        ca: str | PathLike[str],
        certificate: str | PathLike[str] | None = None,
        key: str | PathLike[str] | None = None,
        *,
        verify_host: bool = True,
    ) -> TlsConfig:
        """As the class itself, from PEM files. Raises OSError for one that can't be read."""

        def text(path: str | PathLike[str] | None) -> str | None:
            return None if path is None else Path(path).read_text(encoding="utf-8")

        return cls(Path(ca).read_text(encoding="utf-8"), text(certificate), text(key), verify_host)


@dataclass(frozen=True)
class SaslDigestMd5:
    """A user with a password, by SASL DIGEST-MD5. The password never appears in ``repr``."""

    username: str
    password: str = field(repr=False)


def timeout_arguments(timeout: Timeout) -> tuple[bool, float | None]:
    """Whether a timeout is given, and which."""
    if isinstance(timeout, Default):
        return False, None
    return True, timeout
