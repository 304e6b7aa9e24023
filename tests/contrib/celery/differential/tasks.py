"""The tasks of the situations. None of them knows of django_jobs.

``at`` is the situation and the name of a task in it; nearly each task takes it.
"""

from __future__ import annotations

import functools
import signal
import sys
import time
from typing import Any

from celery import Task, chord, group, shared_task
from celery.contrib.abortable import AbortableTask
from celery.exceptions import Ignore, Reject, Retry, SoftTimeLimitExceeded

from .records import connect_to_the_workers, note
from .values import ERRORS, VALUES, OneArgument

connect_to_the_workers()


class Hooked(Task):  # type: ignore[misc]
    """The project's base class, which notes each hook."""

    abstract = True

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        note(task_id, "before_start", list(args), kwargs)

    def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:
        note(task_id, "on_success", retval, list(args), kwargs)

    def on_retry(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        note(task_id, "on_retry", exc, list(args), kwargs, einfo)

    def on_failure(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        note(task_id, "on_failure", exc, list(args), kwargs, einfo)

    def after_return(
        self, status: str, retval: Any, task_id: str, args: Any, kwargs: Any, einfo: Any
    ) -> None:
        note(task_id, "after_return", status, retval, list(args), kwargs, einfo)


class Tenant(Hooked):
    """Adds a header to each message, as packages for tenants do."""

    abstract = True

    def apply_async(self, *args: Any, **options: Any) -> Any:
        headers = {**(options.pop("headers", None) or {}), "tenant": "t1"}
        return super().apply_async(*args, headers=headers, **options)


class Acts(Hooked):
    """Ends a task in one of its hooks."""

    abstract = True

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        super().before_start(task_id, args, kwargs)
        self.act("before_start", args)

    def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:
        super().on_success(retval, task_id, args, kwargs)
        self.act("on_success", args)

    def on_retry(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        super().on_retry(exc, task_id, args, kwargs, einfo)
        self.act("on_retry", args)

    def on_failure(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        super().on_failure(exc, task_id, args, kwargs, einfo)
        self.act("on_failure", args)

    def after_return(
        self, status: str, retval: Any, task_id: str, args: Any, kwargs: Any, einfo: Any
    ) -> None:
        super().after_return(status, retval, task_id, args, kwargs, einfo)
        self.act("after_return", args)

    def act(self, hook: str, args: Any) -> None:
        if args[0] != hook:
            return
        if args[1] == "retries":
            if not self.request.retries:
                raise self.retry(exc=KeyError(hook), countdown=0)
            return
        raise {"raises": KeyError, "ignores": Ignore, "rejects": Reject}[args[1]](hook)


hooked = functools.partial(shared_task, base=Hooked)


@shared_task(base=Acts, bind=True)
def acts(self: Any, hook: str, how: str, *, at: str = "") -> Any:
    if hook == "on_failure":
        raise ValueError("the task itself")
    if hook == "on_retry" and not self.request.retries:
        raise self.retry(countdown=0)
    return "done"


@hooked
def echo(value: Any = None, other: Any = None, *, at: str = "") -> Any:
    return value


@shared_task
def plain(value: Any = None, at: str = "") -> Any:
    return value


@hooked
def out(name: str, *, at: str = "") -> Any:
    """A value that a message may not be able to carry."""
    return VALUES[name]()


@hooked
def fail(name: str, *, at: str = "") -> Any:
    raise ERRORS[name]()


@hooked
def after(value: Any, *more: Any, at: str = "") -> Any:
    """Whatever it gets is seen in its hooks."""
    return [type(value).__name__, len(more)]


@hooked
def collect(values: Any, at: str = "") -> Any:
    return [type(one).__name__ for one in values]


@hooked
def add(x: Any, y: Any = 0, at: str = "") -> Any:
    return x + y


@hooked
def everything(*args: Any, **kwargs: Any) -> Any:
    return [list(args), kwargs]


@hooked
def by_position(a: Any, b: Any = 2, /, *, at: str = "") -> Any:
    return [a, b]


@hooked
def defaults(a: Any, b: Any = 2, *, c: Any = 3, at: str = "") -> Any:
    return [a, b, c]


@hooked(bind=True)
def bound(self: Any, a: Any, b: Any = 2, at: str = "") -> Any:
    return [self.name, self.request.retries, a, b]


def twice(function: Any) -> Any:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return [function(*args, **kwargs)] * 2

    return call


@hooked
@twice
def decorated(a: Any, b: Any = 2, at: str = "") -> Any:
    return [a, b]


@hooked(typing=False)
def untyped(a: Any, b: Any = 2, at: str = "") -> Any:
    return [a, b]


@hooked(ignore_result=True)
def ignored(value: Any = None, at: str = "") -> Any:
    return value


@hooked(acks_late=True)
def late(value: Any = None, at: str = "") -> Any:
    return value


@hooked(queue="bulk", priority=3)
def placed(value: Any = None, at: str = "") -> Any:
    return value


@hooked
def routed(value: Any = None, at: str = "") -> Any:
    return value


@hooked(throws=(KeyError,))
def expected(at: str = "") -> Any:
    raise KeyError("k")


@hooked(expires=1000, time_limit=900, soft_time_limit=800)
def limited(value: Any = None, at: str = "") -> Any:
    return value


@hooked(
    serializer="json", track_started=True, store_errors_even_if_ignored=True, ignore_result=True
)
def stores_errors(at: str = "") -> Any:
    raise ValueError("no")


@hooked(name="a name of its own")
def named(value: Any = None, at: str = "") -> Any:
    return value


@shared_task(base=Tenant, bind=True)
def tenant(self: Any, value: Any = None, at: str = "") -> Any:
    return self.request.get("tenant")


@hooked(bind=True)
def stateful(self: Any, how: str, at: str = "") -> Any:
    """Reports states."""
    self.update_state(state="PROGRESS", meta={"n": 1})
    if how == "fails":
        raise ValueError("no")
    return "done"


@hooked(bind=True)
def relay(
    self: Any, name: str, args: Any = (), kwargs: Any = None, options: Any = None, at: str = ""
) -> Any:
    """Sends another task, and returns its id."""
    return self.app.tasks[name].apply_async(args, kwargs or {}, **(options or {})).id


@hooked(bind=True)
def spread(self: Any, how: str, at: str = "") -> Any:
    """Sends a canvas, of the names ``at``-1, -2, -3."""
    one, two, three = (add.si(n, n, at=f"{at}-{n}") for n in (1, 2, 3))
    canvases = {
        "chain": one | two | three,
        "group": group(one, two, three),
        "chord": chord([one, two], collect.s(at=f"{at}-3")),
    }
    canvases[how].delay()
    return how


@hooked(bind=True)
def itself(self: Any, left: int, at: str = "") -> Any:
    """Sends itself again."""
    if left:
        self.apply_async((left - 1,), {"at": f"{at}+"})
    return left


@hooked(bind=True)
def replaces(self: Any, at: str = "") -> Any:
    raise self.replace(add.si(1, 2, at=f"{at}-1"))


@hooked(bind=True)
def adds_to_chord(self: Any, at: str = "") -> Any:
    self.add_to_chord(add.si(1, 2, at=f"{at}-1"))
    return 0


@hooked(bind=True)
def reads_chain(self: Any, at: str = "") -> Any:
    """The tasks behind it."""
    return [one["task"] for one in self.request.chain or []]


@hooked(bind=True)
def cuts_chain(self: Any, at: str = "") -> Any:
    self.request.chain = None
    return "cut"


@shared_task
async def waits(at: str = "") -> Any:
    return 1


# How tasks end


@hooked
def leaves(status: Any, at: str = "") -> Any:
    sys.exit(status)


@hooked
def ignores(reason: Any = "not needed", *, at: str = "") -> Any:
    raise Ignore(reason)


@hooked(acks_late=True)
def rejects(reason: Any = "malformed", at: str = "") -> Any:
    raise Reject(reason, requeue=False)


@hooked
def retries_by_hand(at: str = "") -> Any:
    raise Retry("by hand", ValueError("why"))


@hooked(bind=True, max_retries=2, default_retry_delay=0)
def again(self: Any, how: str, at: str = "", attempt: int = 0) -> Any:
    """Retries in a way of its own, and is done in the third attempt."""
    retries = self.request.retries
    done = retries >= 2
    match how:
        case "plain" if not done:
            raise self.retry()
        case "countdown" if not done:
            raise self.retry(countdown=0.01)
        case "exc" if not done:
            raise self.retry(exc=ValueError("why"), countdown=0)
        case "exhausted":
            raise self.retry(countdown=0)
        case "exhausted with exc":
            raise self.retry(exc=ValueError("why"), countdown=0)
        case "exhausted with two arguments":
            raise self.retry(exc=OSError(5, "no"), countdown=0)
        case "exhausted in except":
            try:
                {}["k"]
            except KeyError:
                self.retry(countdown=0)
        case "exc in except" if not done:
            try:
                {}["k"]
            except KeyError as error:
                raise self.retry(exc=error, countdown=0) from error
        case "no retries":
            raise self.retry(max_retries=0, countdown=0)
        case "no retries with exc":
            raise self.retry(max_retries=0, exc=ValueError("why"))
        case "one retry":
            raise self.retry(max_retries=1, exc=ValueError("why"), countdown=0)
        case "kwargs" if not done:
            raise self.retry(kwargs={"at": at, "attempt": attempt + 1}, countdown=0)
        case "args" if not done:
            raise self.retry(args=["args"], kwargs={"at": at, "attempt": attempt + 2}, countdown=0)
        case "queue" if not done:
            raise self.retry(queue="emails", countdown=0)
        case "priority" if not done:
            raise self.retry(priority=5, countdown=0)
        case "headers" if not done:
            raise self.retry(headers={"trace": f"x{retries}"}, countdown=0)
        case "not thrown" if not done:
            self.retry(throw=False, countdown=0)
            return ["went on", retries]
        case "then fails":
            if retries:
                raise ValueError("no")
            raise self.retry(countdown=0)
        case "then a set":
            if retries:
                return {1}
            raise self.retry(countdown=0)
        case "expires" if not done:
            raise self.retry(countdown=0, expires=1000)
        case "time limit" if not done:
            raise self.retry(countdown=0, time_limit=500)
        case "waits":
            raise self.retry(exc=ValueError("why"), countdown=1000)
        case "waits without exc":
            raise self.retry(countdown=1000)
    return [how, retries, attempt]


@hooked(
    bind=True,
    autoretry_for=(ValueError, LookupError),
    dont_autoretry_for=(KeyError,),
    max_retries=1,
    default_retry_delay=0,
)
def auto(self: Any, name: str, times: int, at: str = "") -> Any:
    """Fails so many times."""
    if self.request.retries < times:
        raise ERRORS[name]()
    return self.request.retries


@hooked(autoretry_for=(Exception,), max_retries=1, default_retry_delay=0)
def auto_out(name: str, at: str = "") -> Any:
    return VALUES[name]()


@hooked(bind=True, autoretry_for=(ValueError,), retry_backoff=1, retry_jitter=False, max_retries=1)
def backs_off(self: Any, times: int, at: str = "") -> Any:
    if self.request.retries < times:
        raise ValueError("no")
    return self.request.retries


@hooked(bind=True, autoretry_for=(OneArgument,), retry_kwargs={"max_retries": 1, "countdown": 0})
def auto_kwargs(self: Any, at: str = "") -> Any:
    raise OneArgument(503)


@hooked(bind=True, max_retries=None, default_retry_delay=0)
def endless(self: Any, times: int, at: str = "") -> Any:
    if self.request.retries < times:
        raise self.retry()
    return self.request.retries


@hooked(bind=True, max_retries=2, default_retry_delay=0, acks_late=True)
def late_again(self: Any, at: str = "") -> Any:
    if self.request.retries < 2:
        raise self.retry()
    return self.request.retries


@hooked(bind=True, max_retries=2, default_retry_delay=0, ignore_result=True)
def ignored_again(self: Any, at: str = "") -> Any:
    if self.request.retries < 2:
        raise self.retry()
    return self.request.retries


def spin(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.01)


@hooked(soft_time_limit=2, time_limit=1000)
def cleans_up(at: str = "") -> Any:
    try:
        spin(900)
    except SoftTimeLimitExceeded:
        return "cleaned up"


@hooked(soft_time_limit=2, time_limit=1000)
def too_long(at: str = "") -> Any:
    spin(900)


@hooked(
    soft_time_limit=2,
    time_limit=1000,
    autoretry_for=(SoftTimeLimitExceeded,),
    max_retries=1,
    default_retry_delay=0,
)
def too_long_twice(at: str = "") -> Any:
    spin(900)


@hooked(time_limit=3)
def far_too_long(at: str = "") -> Any:
    spin(900)


@hooked
def works(at: str = "") -> Any:
    """Runs until it is stopped."""
    spin(900)


@hooked(bind=True)
def lasts(self: Any, how: str, at: str = "") -> Any:
    """Runs for as long as its worker may need to hear that it is revoked."""
    for n in range(80 if how == "reports" else 10):
        spin(0.1)
        self.update_state(state="PROGRESS", meta=n)
    if how == "fails":
        raise KeyError(how)
    if how == "retries" and not self.request.retries:
        raise self.retry(countdown=1)
    return how


@hooked(bind=True, base=AbortableTask)
def aborts(self: Any, at: str = "") -> Any:
    """Runs until it is aborted."""
    while not self.is_aborted():
        time.sleep(0.05)
    return "aborted"


@hooked
def has_signals(at: str = "") -> Any:
    """Whether it is in a main thread."""
    signal.signal(signal.SIGUSR2, signal.SIG_DFL)
    return "possible"
