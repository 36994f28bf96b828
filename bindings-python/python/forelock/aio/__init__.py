"""Forelock for asyncio.

::

    from forelock import aio

    async with aio.Client("zk1:2181,zk2:2181,zk3:2181") as client:
        async with client.mutex("/locks/order/123").acquire(timeout=10) as held:
            await write(data, token=held.token)

Locks belong to the task that acquires them. Cancelling a task, or ``asyncio.timeout``, takes it out of the queue
at any point. Exceptions, options and states are those of :mod:`forelock`.
"""

from .client import Client
from .held import HeldLock
from .mutex import Acquiring, Mutex
from .states import States

__all__ = ["Acquiring", "Client", "HeldLock", "Mutex", "States"]
