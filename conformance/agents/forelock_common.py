"""What the agents for threads and for asyncio have in common."""

from __future__ import annotations

from typing import Any

from forelock import ConnectionState, LostReason, RetryPolicy, StateChange
from forelock.held import Held

from agent_protocol import Request, Senseless, now, say

_DURATIONS = {
    "session": "session_timeout",
    "tick": "tick",
    "connection-timeout": "connection_timeout",
    "acquire-timeout": "acquire_timeout",
    "operation-timeout": "operation_timeout",
    "release-timeout": "release_timeout",
    "close-timeout": "close_timeout",
}


def client_options(request: Request) -> dict[str, Any]:
    """The arguments for a client."""
    options: dict[str, Any] = {
        argument: request.seconds(name) for name, argument in _DURATIONS.items() if name in request.args
    }
    # The runner's cells are chroots, and a server that has lost its data has lost them too.
    options["create_chroot"] = True
    for name in ("namespace", "label", "heartbeat"):
        if name in request.args:
            options[name] = request.args[name]
    if "retry-attempts" in request.args:
        delay = request.seconds("retry-delay")
        options["retry"] = RetryPolicy.times(request.args["retry-attempts"], 0.01 if delay is None else delay)
    return options


def mutex_options(request: Request) -> dict[str, Any]:
    """The arguments for a mutex."""
    options: dict[str, Any] = {"naming": request.args.get("naming", "curator")}
    if "max-hold" in request.args:
        options["max_hold"] = request.seconds("max-hold")
    if "timeout" in request.args:
        options["acquire_timeout"] = request.seconds("timeout")
    return options


def grant(held: Held) -> dict[str, Any]:
    """What there is to say of a grant."""
    return {"token": held.token, "epoch": held.epoch, "sequence": held.sequence}


def say_state(change: StateChange) -> None:
    """Says that a state was seen."""
    same = change.same_session if change.state is ConnectionState.RECONNECTED else None
    say(event="state", at=now(), state=change.state.value, session=change.session, same_session=same)


def say_lost(path: str, held: Held, reason: LostReason) -> None:
    """Says that a lock is lost."""
    say(event="lost", at=now(), path=path, reason=reason.value, token=held.token)


def say_block_ended(request: Request, error: BaseException | None, body_error: BaseException) -> None:
    """Says how a block ended: with its body's error, and whether one of ours is attached to that; or with ours."""
    if error is None:
        request.answer("ok")
    elif error is body_error:
        attached = getattr(error.__context__, "code", None)
        request.answer("body-error" if attached is None else f"body-error with {attached}")
    else:
        request.failed(error)


def look(held: Held, request: Request) -> bool:
    """Does what reads the clock and nothing else. Whether the request was of that kind."""
    match request.verb:
        case "is-valid":
            valid = held.is_valid()
            request.answer("true" if valid else "false")
        case "lock-state":
            reason = held.lost_reason
            request.answer(held.state.value if reason is None else f"lost {reason.value}")
        case "ensure":
            held.ensure(request.seconds("min") or 0.0)
            request.answer("ok")
        case "supersede":
            held.mark_superseded()
            request.answer("ok")
        case _:
            return False
    return True


def cannot(request: Request) -> Senseless:
    return Senseless(f"this agent can't {request.verb}")
