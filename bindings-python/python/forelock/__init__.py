"""Forelock: a distributed lock for ZooKeeper that tells its holder in time.

::

    import forelock

    with forelock.Client("zk1:2181,zk2:2181,zk3:2181") as client:
        with client.mutex("/locks/order/123").acquire(timeout=10) as held:
            write(data, token=held.token)

For asyncio there is :mod:`forelock.aio`, with the same names. All times are seconds. A timeout of None waits for
ever; left out, it is 30 seconds.
"""

from . import aio
from ._native import lock_path
from ._owners import current_owner
from .client import Client, Metrics, SessionInfo
from .errors import (
    AcquireTimeout,
    ClientClosed,
    Conflict,
    ConnectionLost,
    ForelockError,
    Forked,
    InvalidArgument,
    LeaseTooShort,
    LockLost,
    NotAcquired,
    NotOwner,
    NotPermitted,
    OutOfResources,
)
from .held import HeldLock, Subscription
from .mutex import Mutex
from .options import CURRENT, DEFAULT, AclEntry, Naming, RetryPolicy, SaslDigestMd5, TlsConfig
from .states import ConnectionState, LockState, LostReason, StateChange, States

__all__ = [
    "CURRENT",
    "DEFAULT",
    "AclEntry",
    "AcquireTimeout",
    "Client",
    "ClientClosed",
    "Conflict",
    "ConnectionLost",
    "ConnectionState",
    "ForelockError",
    "Forked",
    "HeldLock",
    "InvalidArgument",
    "LeaseTooShort",
    "LockLost",
    "LockState",
    "LostReason",
    "Metrics",
    "Mutex",
    "Naming",
    "NotAcquired",
    "NotOwner",
    "NotPermitted",
    "OutOfResources",
    "RetryPolicy",
    "SaslDigestMd5",
    "SessionInfo",
    "StateChange",
    "States",
    "Subscription",
    "TlsConfig",
    "aio",
    "current_owner",
    "lock_path",
]
