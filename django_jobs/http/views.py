"""The views, and who may use them: JSON in, JSON out, and problems as RFC 9457 has them."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterable
from contextlib import nullcontext
from functools import wraps
from http import HTTPStatus
from pathlib import Path
from typing import Any, NoReturn

from django.conf import settings
from django.core.exceptions import RequestDataTooBig
from django.db import transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.middleware.csrf import CsrfViewMiddleware
from django.urls import reverse
from django.utils.module_loading import import_string
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt

from .. import registry
from ..conf import conf
from ..domain.callbacks import secrets_for
from ..domain.errors import cut
from ..domain.hints import hint
from ..domain.options import FOREIGN_OPTIONS, tag_problem
from ..domain.payload import VALUE_KEYS, a_kind, is_reference, is_same
from ..domain.run_log import masked, without_assigned
from ..domain.states import JobState
from ..domain.workflows import CALLBACK
from ..exceptions import Discard, EnqueueError, QueueFull, UnknownQueue, UnknownResource
from ..lifecycle.operations import jobs as job_operations
from ..lifecycle.scope import scope_of
from ..lifecycle.step_insert import NewStep
from ..logs.receivers import log_event
from ..models import Job
from ..models.database import jobs_connection, needing_tables
from ..worker.handlers.built_in import call_back

PERMISSIONS = {
    "enqueue": "django_jobs.enqueue_job",
    "view": "django_jobs.view_job",
    "result": "django_jobs.view_job_payload",
    "error": "django_jobs.view_job_error",
    "cancel": "django_jobs.cancel_job",
}
"""What a session needs for each action."""
Authorize = Callable[[HttpRequest, str, str, Job | None], bool]


def allowed_types() -> list[str]:
    return [name for one in conf().http.get("job_types", ()) for name in registry.family(one)]


def own_rule() -> Authorize | None:
    path = conf().http.get("authorize")
    return import_string(path) if path else None


def may(request: HttpRequest, action: str, job_type: str, job: Job | None = None) -> bool:
    """Whether the request may do this to jobs of a type in the allow-list: to ``job``, or to a new
    one, or to some."""
    if rule := own_rule():
        answer = rule(request, action, job_type, job)
        if answer and answer is not True:  # a coroutine, or a response that refuses
            path = conf().http["authorize"]
            raise TypeError(f"{path}() returns True or False, not {a_kind(answer)}")
        return bool(answer)
    user: Any = getattr(request, "user", None)
    if user is None or not user.has_perm(PERMISSIONS[action]):
        return False
    scope = scope_of(user)
    if scope is None:
        return True
    if job is not None:
        return scope.has(job.queue, job.job_type)
    declared = registry.find(job_type)
    return declared is not None and scope.has_declared(declared.queue, declared.name)


def actor_of(request: HttpRequest) -> Any:
    """The user who acts, if Django's permissions decide."""
    return None if own_rule() else request.user


def forged(request: HttpRequest) -> bool:
    """Whether a request that a session authorizes lacks its CSRF token. A function of the project
    finds who calls in what no browser sends of itself."""
    if own_rule():
        return False

    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    middleware = CsrfViewMiddleware(view)
    middleware.process_request(request)
    return middleware.process_view(request, view, (), {}) is not None


PAGE = 100
"""Jobs of one answer."""
KEY_SECONDS = 86_400
"""For this time a repeated ``Idempotency-Key`` returns the same job, also when it has ended."""
RETRY_AFTER_SECONDS = 10
"""After the refusal of a full queue, or of a storage that does not answer."""
LONGEST_ERROR = 300
DEEPEST = 100
JSON_TYPE = "application/json"
LARGEST_ID = 2**63 - 1
KEYS = ("job_type", "payload", "tags", "callback_url")
"""Those of a body."""
PARAMETERS = ("tag", "before")
"""Those of a list."""

View = Callable[..., HttpResponse]


class Refused(Exception):
    """The answer is a problem with this status."""

    def __init__(self, status: int, detail: str, **headers: str) -> None:
        super().__init__(detail)
        self.status = status
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


def answers(*methods: str) -> Callable[[View], View]:
    """A view of these methods, whose refusals are problems and are logged."""

    def decorate(view: View) -> View:
        @csrf_exempt  # a session's token is looked at here, and its lack is a problem like others
        @never_cache
        @wraps(view)
        def respond(request: HttpRequest, **captured: Any) -> HttpResponse:
            try:
                if request.method not in methods:
                    allow = ", ".join(methods)
                    raise Refused(405, f"The methods here are {allow}.", Allow=allow)
                if forged(request):
                    raise Refused(403, "Send the CSRF token of the session as X-CSRFToken.")
                return view(request, **captured)
            except Refused as refused:
                return _problem(request, refused)

        return respond

    return decorate


def _problem(request: HttpRequest, refused: Refused) -> HttpResponse:
    fields = {"status": refused.status, "method": request.method, "reason": str(refused)}
    if (cause := refused.__cause__) is not None:  # not for the client
        fields["error"] = repr(cause)
    log_event("http_refused", logging.INFO, fields)
    title = HTTPStatus(refused.status).phrase
    body = {"title": title, "status": refused.status, "detail": str(refused)}
    return JsonResponse(
        body,
        status=refused.status,
        content_type="application/problem+json",
        headers=refused.headers,
    )


@answers("GET", "HEAD", "POST")
def jobs(request: HttpRequest, **captured: Any) -> HttpResponse:
    """Enqueue a job, or list those with a tag."""
    return _enqueue(request) if request.method == "POST" else _list(request)


@answers("GET", "HEAD")
def job(request: HttpRequest, job_id: str, **captured: Any) -> HttpResponse:
    return JsonResponse(_shown(request, _visible(request, job_id), whole=True))


@answers("POST")
def cancel(request: HttpRequest, job_id: str, **captured: Any) -> HttpResponse:
    """Cancel a job that has not begun, or ask a running one to stop."""
    found = _visible(request, job_id)
    if not may(request, "cancel", found.job_type, found):
        raise Refused(403, "You may not cancel this job.")
    with needing_tables:
        done = job_operations.cancel([found.pk], actor=actor_of(request)).done
    found = _visible(request, job_id)
    if not done:
        raise Refused(409, f"The job has ended: {found.status}.")
    status = 200 if found.is_final else 202
    return JsonResponse(_shown(request, found, whole=True), status=status)


@answers("GET", "HEAD")
def openapi(request: HttpRequest, **captured: Any) -> HttpResponse:
    """The description of this interface."""
    described = json.loads((Path(__file__).parent / "openapi.json").read_text())
    described["servers"] = [{"url": _url(request, "jobs").rstrip("/")}]
    return JsonResponse(described)


def _enqueue(request: HttpRequest) -> HttpResponse:
    asked = _body(request)
    name = asked["job_type"]
    declared = registry.find(name) if name in allowed_types() else None
    if declared is None or not may(request, "enqueue", name):
        raise Refused(403, "You may not enqueue this job type, or there is none of this name.")
    key = request.headers.get("Idempotency-Key")
    address = _address(asked)
    together = transaction.atomic(using=jobs_connection().alias) if address else nullcontext()
    try:
        chosen = declared.using(
            tags=asked.get("tags"),
            idempotency_key=key,
            unique_for=KEY_SECONDS if key else None,
            headers={CALLBACK: address} if address else None,
        )
        payload = chosen.bind(**asked.get("payload", {}))
        with together:
            made = chosen.insert(payload)
            if address and not made.deduplicated:
                _call_at_end(request, made)
    except QueueFull as error:
        raise Refused(429, str(error), Retry_After=str(RETRY_AFTER_SECONDS)) from None
    except (UnknownQueue, UnknownResource):  # the project's mistake
        raise
    except EnqueueError as error:
        raise Refused(422, str(error)) from None
    if made.deduplicated and not (
        made.status
        and made.job_type in registry.family(name)
        and _is_payload(made, payload)
        and (made.headers or {}).get(CALLBACK) == address
        and may(request, "enqueue", name, made)
    ):
        raise Refused(409, "This Idempotency-Key belongs to another request.")
    url = _url(request, "job", job_id=made.pk)
    headers = {"Location": url, "Idempotency-Replayed": str(made.deduplicated).lower()}
    return JsonResponse(_brief(made, url), status=202, headers=headers)


def _is_payload(made: Job, payload: dict[str, Any]) -> bool:
    """Whether the job has this payload, also if its large arguments are in files."""
    return made.payload.keys() == payload.keys() and all(
        is_same(value, payload[name]) or is_same(_loaded(value), payload[name])
        for name, value in made.payload.items()
    )


def _loaded(value: Any) -> Any:
    """An argument or a result, read from its file if it was stored there because of its size.
    Refused with 410 if the file is gone, and with 503 if the storage does not give it."""
    if conf().storage is None or not is_reference(value) or value.keys() != VALUE_KEYS:
        return value
    from ..lifecycle.stored_files import Stored

    try:
        return Stored.load(value)
    except (EnqueueError, Discard) as error:
        raise Refused(410, "A large value of this job was in a file, which is gone.") from error
    except Exception as error:  # of any storage
        problem = "A large value of this job is in a file that the storage does not give now."
        raise Refused(503, problem, Retry_After=str(RETRY_AFTER_SECONDS)) from error


def _call_at_end(request: HttpRequest, made: Job) -> None:
    """Let a call wait for the end of a new job: any end opens a step that waits for it."""
    call = call_back.using(queue=made.queue)
    payload = {"job_id": made.pk, "link": _url(request, "job", job_id=made.pk)}
    if made.is_final:  # a full queue dropped it
        call.insert(payload)
        return
    from ..lifecycle.workflows.spawning import add_next

    text = call.encoded_payload(payload)
    add_next(made.pk, "job", NewStep(name="callback", new=call.request(), payload=text, others=1))


def _body(request: HttpRequest) -> dict[str, Any]:
    if request.content_type != JSON_TYPE:
        raise Refused(415, f"Send {JSON_TYPE}.", Accept_Post=JSON_TYPE)
    most = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
    try:  # Django looks at the Content-Length alone, which a body in chunks lacks
        too_large = most is not None and len(request.body) > most
    except RequestDataTooBig:
        too_large = True
    if too_large:
        raise Refused(413, f"The body has more than {most:,} bytes.")
    try:
        asked = json.loads(request.body, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise Refused(400, "The body is no JSON.") from None
    if not isinstance(asked, dict) or not isinstance(asked.get("job_type"), str):
        raise Refused(400, 'The body is an object with a "job_type".')
    _refuse_unknown(asked, KEYS, "The body has the unknown key")
    if not isinstance(asked.get("payload", {}), dict):
        raise Refused(400, '"payload" is an object: the arguments by name.')
    if not isinstance(asked.get("tags", []), list):
        raise Refused(400, '"tags" is a list of texts.')
    return asked


def _refuse_unknown(given: Iterable[str], known: Collection[str], problem: str) -> None:
    for name in given:
        if name not in known:
            meant = hint(FOREIGN_OPTIONS.get(name, name), known, f"known are: {', '.join(known)}")
            raise Refused(400, f"{problem} {cut(repr(name), 100)}{meant}.")


def _address(asked: dict[str, Any]) -> str | None:
    if "callback_url" not in asked:
        return None
    address = asked["callback_url"]
    if not isinstance(address, str):
        raise Refused(400, '"callback_url" is a text.')
    try:
        secrets_for(address, conf().http.get("callback_hosts", {}))
    except ValueError as error:
        raise Refused(400, f"The callback_url {error}.") from None
    return address


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _list(request: HttpRequest) -> HttpResponse:
    types = [name for name in allowed_types() if may(request, "view", name)]
    if not types:
        raise Refused(403, "You may not see jobs.")
    _refuse_unknown(request.GET, PARAMETERS, "The list has the unknown parameter")
    if repeated := [name for name, given in request.GET.lists() if len(given) > 1]:
        raise Refused(400, f"The parameter {repeated[0]} is given more than once.")
    tag, before = request.GET.get("tag", ""), request.GET.get("before", str(LARGEST_ID))
    if problem := tag_problem(tag):
        raise Refused(400, f"The parameter tag {problem}.")
    if (end := _id(before)) is None:
        raise Refused(400, "The parameter before is the id of a job.")
    rows = Job.objects.using(conf().database).listed_by_tag(tag).filter(pk__lt=end)
    rows = rows.filter(job_type__in=types).select_related("progress").order_by("-pk")
    found = list(rows.defer("payload", "result", "headers", "signals")[:PAGE])
    following = None
    if len(found) == PAGE:
        query = request.GET.copy()
        query["before"] = str(found[-1].pk)
        following = f"{_url(request, 'jobs')}?{query.urlencode()}"
    seen = (row for row in found if may(request, "view", row.job_type, row))
    shown = [_shown(request, row, whole=False) for row in seen]
    return JsonResponse({"jobs": shown, "next": following})


def _id(text: str) -> int | None:
    is_short = text.isascii() and text.isdigit() and len(text) <= len(str(LARGEST_ID))
    return int(text) if is_short and int(text) <= LARGEST_ID else None


def _visible(request: HttpRequest, job_id: str) -> Job:
    rows = Job.objects.using(conf().database).select_related("progress")
    found = rows.filter(pk=_id(job_id) or 0, job_type__in=allowed_types()).first()
    if found is None or not may(request, "view", found.job_type, found):
        raise Refused(404, "There is no such job, or you may not see it.")
    return found


def _url(request: HttpRequest, name: str, **more: Any) -> str:
    match: Any = request.resolver_match
    kwargs = {key: value for key, value in match.kwargs.items() if key != "job_id"}
    return reverse(f"{match.namespace}:{name}", kwargs=kwargs | more)


def _brief(job: Job, url: str) -> dict[str, Any]:
    links = {"self": url, "cancel": f"{url}cancel/"}
    return {"id": job.pk, "job_type": job.job_type, "status": job.status, "links": links}


def _shown(request: HttpRequest, job: Job, *, whole: bool) -> dict[str, Any]:
    words = conf().redact_keys
    progress = getattr(job, "progress", None)
    shown: dict[str, Any] = {
        **_brief(job, _url(request, "job", job_id=job.pk)),
        "attempt": job.attempt,
        "max_attempts": job.max_attempts,
        "tags": job.tags or [],
        "progress": progress and {"fraction": progress.fraction, "note": progress.note},
        "error": None,
        "created_at": job.created_at,
        "due_at": job.available_at,
        "started_at": job.started_at,
        "finished_at": job.finished_at,
    }
    error = "" if job.status == JobState.SUCCEEDED else job.last_error
    if error and may(request, "error", job.job_type, job):
        shown["error"] = cut(without_assigned(error, words), LONGEST_ERROR)
    if whole:
        may_see = job.result is not None and may(request, "result", job.job_type, job)
        shown["result"] = masked(_loaded(job.result), words, DEEPEST, "…") if may_see else None
    return shown
