"""A user whose scope is some queues and job types sees and changes no others."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured, PermissionDenied
from django.urls import reverse
from django.utils import timezone
from pytest_django import Settings

from django_jobs import OperationRefused, registry
from django_jobs.api.editing import edit_job, enqueue_by_hand
from django_jobs.lifecycle.operations import bulk, dead_letters, inspections, limits
from django_jobs.lifecycle.operations import jobs as operations
from django_jobs.lifecycle.scope import OUTSIDE, Scope, scope_of
from django_jobs.models import (
    DeadLetter,
    Dependency,
    Job,
    Quarantine,
    Queue,
    Resource,
    Run,
    Schedule,
    Tenant,
    Worker,
    WorkflowDefinition,
    WorkflowRun,
)
from tests.admin.walking import Page, change_url, list_url, listed, words
from tests.app.gate_jobs import transfer_funds
from tests.app.jobs import add, noop
from tests.factories import (
    copies_of,
    declared,
    due_schedule,
    enqueue_and_claim,
    failure,
    fold_runs,
    make_dead,
    make_user,
    register_worker,
    settle_one,
)

pytestmark = pytest.mark.django_db

VERBS = ("cancel_job", "reprioritize_job", "run_job", "replay_job", "dismiss_job", "inspect_job")
SEES = ("view_job", "view_run", "view_queue", "pause_queue", "view_worker", "view_schedule")
ALL = (*VERBS, *SEES, "view_resource", "view_tenant", "view_quarantine", "view_workflowrun")
CHANGES = ("add_schedule", "pause_resource", "quarantine_job_type", "change_resource", "run_doctor")


def emails_only(user: Any) -> dict[str, list[str]] | None:
    return None if user.username == "otto" else {"queues": ["emails"]}


def app_types(user: Any) -> dict[str, Any]:
    return {"queues": ["default", "emails"], "job_types": ["app.add*", "other"]}


def charges(user: Any) -> dict[str, list[str]]:
    return {"queues": ["default"], "job_types": ["app.bill"]}


def nonsense(user: Any) -> Any:
    return {"queue": "emails"}


@pytest.fixture
def scoped(settings: Settings) -> Callable[..., None]:
    def use(function: Callable[..., Any]) -> None:
        path = f"{__name__}.{function.__name__}"
        settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, "ADMIN_SCOPE": path}

    return use


@pytest.fixture
def emails(scoped: Callable[..., None]) -> None:
    scoped(emails_only)


def dead(queue: str) -> Job:
    held = enqueue_and_claim(noop, queue=queue)
    settle_one(held, failure(final=True))
    return Job.objects.get(pk=held.id)


@pytest.mark.usefixtures("emails")
def test_lists_pages_and_searches_have_the_rows_of_the_scope_alone(
    page_of: Callable[..., Page],
) -> None:
    mine, other = dead("emails"), dead("bulk")
    page, whole = page_of(*ALL), page_of(*ALL, name="otto")
    for model in (Job, DeadLetter, Run):
        assert listed(page, model) == [mine.pk]
        assert listed(whole, model) == [other.pk, mine.pk]
    assert listed(page, Job, q=f"{mine.pk} {other.pk}") == [mine.pk]
    assert listed(page, Job, q="type:app.noop") == [mine.pk]
    assert listed(page, Job, queue="bulk") == []
    assert listed(page, Queue) == [Queue.objects.get(name="emails").pk]
    run = Run.objects.get(job=other)
    for model, pk in ((Job, other.pk), (DeadLetter, other.pk), (Run, run.pk)):
        assert page.client.get(change_url(model, pk)).status_code == 302  # "does not exist"
        assert whole.client.get(change_url(model, pk)).status_code == 200
    assert page.client.get(change_url(Job, mine.pk)).status_code == 200


@pytest.mark.usefixtures("emails")
def test_a_question_names_no_error_of_a_job_outside_of_the_scope(
    page_of: Callable[..., Page],
) -> None:
    def asked(fingerprint: str) -> str:
        query = f"?fingerprint={fingerprint}"
        return str(olga.ask(DeadLetter, "replay_jobs", mine.pk, query=query).content.decode())

    other, mine = dead("bulk"), dead("emails")
    Job.objects.filter(pk=other.pk).update(last_error="ValueError: customer 8231")
    olga = page_of(*ALL, "view_deadletter", "view_job_error")
    assert "failure ValueError: boom." in asked(mine.fingerprint)
    Job.objects.filter(pk=other.pk).update(fingerprint="8c1f0e6a2b47d95e")
    assert "failure 8c1f0e6a2b47d95e." in asked("8c1f0e6a2b47d95e")


@pytest.mark.usefixtures("emails")
def test_pages_about_everything_are_refused(page_of: Callable[..., Page]) -> None:
    page = page_of(*ALL, *CHANGES)
    whole = page_of(*ALL, *CHANGES, name="otto")
    for model in (Worker, Schedule, Resource, Tenant, Quarantine, WorkflowRun):
        assert page.client.get(list_url(model)).status_code == 403, model
    for name in ("django_jobs_failures", "django_jobs_schedule_add"):
        url = reverse(f"admin:{name}")
        assert page.client.get(url).status_code == 403, name
        assert whole.client.get(url).status_code == 200, name


@pytest.mark.usefixtures("emails")
def test_no_permission_opens_the_list_of_schedules(page_of: Callable[..., Page]) -> None:
    schedule = due_schedule(name="payroll")
    page = page_of("change_schedule", "delete_schedule")
    whole = page_of("change_schedule", "delete_schedule", name="otto")
    assert page.client.get(list_url(Schedule)).status_code == 403
    assert page.client.get(change_url(Schedule, schedule.pk)).status_code == 403
    assert whole.client.get(list_url(Schedule)).status_code == 200


@pytest.mark.usefixtures("emails")
def test_a_page_that_is_refused_has_no_tab_and_no_link(page_of: Callable[..., Page]) -> None:
    page, whole = page_of(*ALL), page_of(*ALL, name="otto")
    for name in ("django_jobs_overview_changelist", "django_jobs_failures", "django_jobs_run_cost"):
        url = reverse(f"admin:{name}")
        assert page.client.get(url).status_code == 403, name
        assert f'"{url}"' not in page.text(list_url(Run)), name
        assert f'"{url}"' in whole.text(list_url(Run)), name
    assert f'href="{list_url(DeadLetter)}">Failures<' in page.text(list_url(Run))
    index = reverse("admin:app_list", args=["django_jobs"])
    assert "Overview" not in page.text(index)
    assert "Overview" in whole.text(index)


@pytest.mark.usefixtures("emails")
def test_an_action_that_is_refused_is_not_offered(page_of: Callable[..., Page]) -> None:
    verbs = ("signal_workflowrun", "skip_workflowstep")
    page, whole = page_of(*ALL, *verbs), page_of(*ALL, *verbs, name="otto")
    noop.using(queue="emails", delay=60).enqueue()

    def offered_actions(page: Page) -> set[str]:
        form = page.client.get(list_url(Job)).context["action_form"]
        return {name for name, _label in form.fields["action"].choices}

    refused = {"approve_steps", "reject_steps", "signal_jobs", "skip_steps"}
    assert offered_actions(whole) - offered_actions(page) == refused
    assert "cancel_jobs" in offered_actions(page)


@pytest.mark.usefixtures("emails")
def test_queues_cannot_be_added_or_edited(page_of: Callable[..., Page]) -> None:
    page = page_of(*ALL, *CHANGES, "view_queue", "add_queue", "change_queue")
    queue = Queue.objects.get(name="emails")
    address = change_url(Queue, queue.pk)
    assert page.client.get(address).status_code == 200
    assert page.client.post(address, {"max_concurrency": 99}).status_code == 403
    assert page.client.get(reverse("admin:django_jobs_queue_add")).status_code == 403


def edit_url(pk: int) -> str:
    return reverse("admin:django_jobs_job_edit", args=[pk])


def queues_of(page: Page, url: str) -> list[str]:
    return [name for name, _label in page.client.get(url).context["form"].fields["queue"].choices]


@pytest.mark.usefixtures("emails")
def test_jobs_of_the_scope_are_edited_and_stay_in_it(page_of: Callable[..., Page]) -> None:
    page = page_of(*ALL, "edit_job")
    mine, other = dead("emails"), dead("bulk")
    running = enqueue_and_claim(noop, queue="bulk")
    assert edit_url(mine.pk) in page.text(change_url(Job, mine.pk))
    assert queues_of(page, edit_url(mine.pk)) == ["emails"]
    for pk in (other.pk, running.id, 10**12):  # nobody learns which of them there are
        assert page.client.get(edit_url(pk)).status_code == 404
    sent = {"queue": "emails", "priority": "7"}
    moved = page.client.post(edit_url(mine.pk), sent | {"queue": "bulk"})
    assert "Select a valid choice." in moved.content.decode()
    question = page.client.post(edit_url(mine.pk), sent)
    state = question.context["confirmation"].initial["state"]
    confirmed = {**sent, "confirmed": "1", "reason": "sooner", "state": state}
    assert page.client.post(edit_url(other.pk), confirmed).status_code == 404
    assert page.client.post(edit_url(mine.pk), confirmed).status_code == 302
    assert Job.objects.get(pk=mine.pk).status == "ready"
    assert Job.objects.get(pk=mine.pk).priority == 7
    assert Job.objects.get(pk=other.pk).status == "dead"


@pytest.mark.usefixtures("emails")
def test_an_edit_checks_the_scope_again_before_and_after() -> None:
    ada = make_user(*ALL, "edit_job")
    mine, other = (noop.using(queue=queue, delay=60).enqueue() for queue in ("emails", "bulk"))
    running = enqueue_and_claim(noop, queue="bulk")
    for pk in (other.pk, running.id, dead("bulk").pk):
        assert edit_job(pk, priority=3, queue="emails", actor=ada).refused == {pk: OUTSIDE}
    assert edit_job(mine.pk, queue="bulk", actor=ada).refused == {mine.pk: OUTSIDE}
    assert set(Job.objects.filter(priority=3)) == set()
    assert Job.objects.get(pk=mine.pk).queue == "emails"
    assert edit_job(mine.pk, priority=3, actor=ada).done == [mine.pk]


def test_an_edit_checks_the_job_type(scoped: Callable[..., None]) -> None:
    scoped(app_types)
    ada = make_user(*ALL, "edit_job", "view_job_payload")
    mine, other = add.enqueue(1), noop.enqueue()
    assert edit_job(other.pk, priority=3, actor=ada).refused == {other.pk: OUTSIDE}
    assert edit_job(mine.pk, payload={"first": 2}, queue="emails", actor=ada).done == [mine.pk]


def test_an_edit_names_no_other_job_that_holds_the_key(scoped: Callable[..., None]) -> None:
    scoped(app_types)
    ada = make_user(*ALL, "edit_job")
    noop.using(queue="emails", idempotency_key="k").enqueue()
    mine = add.using(idempotency_key="k").enqueue(1)
    refused = edit_job(mine.pk, queue="emails", actor=ada).refused[mine.pk]
    assert refused == "another job holds its key in the queue emails"


def send_mail(to: str) -> None: ...


def bill(cents: int) -> None: ...


@pytest.fixture
def by_hand() -> Iterator[None]:
    """Two job types that can be enqueued by hand, declared for a queue each."""
    with (
        declared(send_mail, name="app.address", schedulable=True, queue="emails"),
        declared(bill, name="app.bill", schedulable=True, queue="bulk"),
    ):
        yield


def enqueue_url(name: str = "") -> str:
    return reverse("admin:django_jobs_job_enqueue") + (f"?job_type={name}" if name else "")


@pytest.mark.usefixtures("emails", "by_hand")
def test_jobs_are_enqueued_by_hand_of_the_types_and_into_the_queues_of_the_scope(
    page_of: Callable[..., Page],
) -> None:
    page = page_of(*ALL, "enqueue_job")
    assert enqueue_url() in page.text(list_url(Job))
    offered = [one["name"] for one in page.client.get(enqueue_url()).context["choices"]]
    assert "app.address" in offered
    assert "app.bill" not in offered
    assert page.client.get(enqueue_url("app.bill")).status_code == 404
    assert page.client.post(enqueue_url("app.bill"), {"argument_cents": 1}).status_code == 404
    assert queues_of(page, enqueue_url("app.address")) == ["", "emails"]
    sent = {"argument_to": "ada"}
    wrong = page.client.post(enqueue_url("app.address"), {**sent, "queue": "bulk"})
    assert "Select a valid choice." in wrong.content.decode()
    assert page.client.post(enqueue_url("app.address"), sent).status_code == 302
    assert [(job.job_type, job.queue) for job in Job.objects.all()] == [("app.address", "emails")]


@pytest.mark.usefixtures("by_hand")
def test_a_type_that_the_scope_names_is_enqueued_into_its_queues_alone(
    scoped: Callable[..., None], page_of: Callable[..., Page]
) -> None:
    scoped(charges)
    page = page_of("view_job", "enqueue_job")
    assert queues_of(page, enqueue_url("app.bill")) == ["default"]
    assert page.client.get(enqueue_url("app.address")).status_code == 404
    missing = page.client.post(enqueue_url("app.bill"), {"argument_cents": 1})
    assert "This field is required." in missing.content.decode()
    page.client.post(enqueue_url("app.bill"), {"argument_cents": 1, "queue": "default"})
    assert [(job.job_type, job.queue) for job in Job.objects.all()] == [("app.bill", "default")]


@pytest.mark.usefixtures("by_hand")
def test_an_enqueue_by_hand_checks_the_scope_again(scoped: Callable[..., None]) -> None:
    scoped(emails_only)
    ada = make_user("enqueue_job")
    for name, payload, options in (
        ("app.bill", {"cents": 1}, {"queue": "emails"}),
        ("app.address", {"to": "ada"}, {"queue": "bulk"}),
        ("app.bill", {"cents": 1}, {}),
    ):
        with pytest.raises(OperationRefused, match="that you may not act on"):
            enqueue_by_hand(name, payload, actor=ada, **options)
    assert not Job.objects.exists()
    copied = registry.get("app.add").using(queue="bulk").enqueue(1, 2)
    ada = make_user("enqueue_job", "edit_job", "view_job_payload", name="copies")
    with pytest.raises(OperationRefused, match="schedulable"):
        enqueue_by_hand("app.add", {"first": 1}, actor=ada, queue="emails", like=copied.pk)
    copied.delete()
    scoped(charges)
    eve = make_user("enqueue_job", name="eve")
    noop.using(idempotency_key="k").enqueue()
    given: dict[str, Any] = {"queue": "default", "idempotency_key": "k"}
    with pytest.raises(OperationRefused, match="a job that you may not see holds"):
        enqueue_by_hand("app.bill", {"cents": 1}, actor=eve, **given)
    for on_duplicate in ("replace", "raise"):
        with pytest.raises(OperationRefused, match="on_duplicate is 'return'"):
            enqueue_by_hand("app.bill", {"cents": 1}, actor=eve, on_duplicate=on_duplicate, **given)
    assert Job.objects.get().job_type == "app.noop"


def test_a_replay_names_no_other_job_that_holds_the_key(scoped: Callable[..., None]) -> None:
    scoped(app_types)
    ada = make_user(*ALL, "edit_job")
    mine = make_dead(add.using(idempotency_key="k"), 1)
    holder = noop.using(idempotency_key="k").enqueue()
    refused = operations.replay([mine.pk], check=lambda job: None, actor=ada).refused[mine.pk]
    assert refused == "another job holds its idempotency key 'k'"
    assert edit_job(mine.pk, priority=3, actor=ada).refused == {mine.pk: refused}
    assert (
        f"job {holder.pk} " in operations.replay([mine.pk], check=lambda job: None).refused[mine.pk]
    )


@pytest.mark.usefixtures("emails")
def test_actions_change_the_rows_of_the_scope_alone(page_of: Callable[..., Page]) -> None:
    mine, other = dead("emails"), dead("bulk")
    page = page_of(*ALL)
    said = page.act(Job, "replay_jobs", mine.pk, other.pk)
    assert "1 job was sent back" in said
    assert Job.objects.get(pk=mine.pk).status == "ready"
    assert Job.objects.get(pk=other.pk).status == "dead"
    done = page.confirm(Job, "cancel_jobs", 0, select_across=1, max_id=10**9)
    assert done.status_code == 302
    assert Job.objects.get(pk=other.pk).status == "dead"
    assert Job.objects.get(pk=mine.pk).status == "cancelled"


@pytest.mark.usefixtures("emails")
def test_operations_check_the_scope_again() -> None:
    ada = make_user(*ALL, *CHANGES)
    waiting = [noop.using(queue=queue, delay=60).enqueue().pk for queue in ("emails", "bulk")]
    gone = [dead(queue).pk for queue in ("emails", "bulk")]
    refused = {waiting[1]: OUTSIDE}
    assert operations.reprioritize(waiting, 5, actor=ada).refused == refused
    assert operations.run_now(waiting, actor=ada).refused == refused
    assert operations.cancel(waiting, actor=ada).refused == refused
    assert operations.replay(gone, check=lambda job: None, actor=ada).refused == {gone[1]: OUTSIDE}
    assert dead_letters.dismiss([gone[1]], actor=ada).refused == {gone[1]: OUTSIDE}
    held = enqueue_and_claim(noop, queue="bulk")
    assert inspections.ask([held.id], actor=ada).refused == {held.id: OUTSIDE}
    assert Job.objects.get(pk=waiting[1]).status == "scheduled"
    assert Job.objects.get(pk=waiting[1]).priority == 0
    assert operations.cancel(waiting, actor=None).refused.keys() == {waiting[0]}


@pytest.mark.usefixtures("emails")
def test_operations_that_are_about_everything_are_refused() -> None:
    ada = make_user(*ALL, *CHANGES)
    assert operations.pause(["emails"], actor=ada) == ["emails"]
    for call in (
        lambda: operations.pause(["bulk"], actor=ada),
        lambda: operations.resume(["emails", "bulk"], actor=ada),
        lambda: operations.stop_workers([1], actor=ada),
        lambda: limits.pause_resources(["stripe"], actor=ada),
    ):
        with pytest.raises(PermissionDenied):
            call()
    assert Queue.objects.get(name="bulk").paused_at is None


NAMES = ["app", "app.add", "app.add*", "app_add", "App.add", "app.%", "app.add.more", "*", "ä.x"]


@pytest.mark.parametrize(
    "scope",
    [
        Scope(),
        Scope(queues=()),
        Scope(queues=("emails",)),
        Scope(job_types=()),
        Scope(queues=("bulk", "emails"), job_types=("app.add", "other")),
        *(Scope(job_types=(name,)) for name in ("app.*", "app_*", "*", "**", "app.%*", "app.add*")),
        *(Scope(job_types=(name,)) for name in ("app_add", "a%", "Ä.*", "ä*", "app.add**", "")),
    ],
    ids=str,
)
def test_a_scope_is_the_same_in_python_in_a_list_and_in_an_operation(scope: Scope) -> None:
    rows = {
        noop.using(queue=queue).enqueue().pk: (queue, name)
        for queue in ("bulk", "emails")
        for name in NAMES
    }
    for pk, (_queue, name) in rows.items():
        Job.objects.filter(pk=pk).update(job_type=name)
    inside = [pk for pk, (queue, name) in rows.items() if scope.has(queue, name)]
    listed = Job.objects.filter(scope.of(queue="queue", job_type="job_type"))
    assert list(listed.order_by("pk").values_list("pk", flat=True)) == inside
    terms = {"all": True, "scope": scope.as_term()}
    assert bulk.find("cancel", terms, 0, max(rows)).ids == inside
    assert Scope.of_term(terms).has("emails", "app.add") == scope.has("emails", "app.add")


def billed() -> None:
    """What has a tag."""


def offered(page: Page, model: Any) -> dict[str, set[str]]:
    """The choices of each filter of a list."""
    fields = page.client.get(list_url(model)).context["cl"].filter_fields
    return {one["name"]: set(re.findall('value="([^"]*)"', one["options"])) for one in fields}


@pytest.mark.usefixtures("emails")
def test_filters_offer_the_names_of_the_scope_alone(page_of: Callable[..., Page]) -> None:
    due_schedule(name="payroll")
    Tenant.objects.create(name="acme")
    WorkflowDefinition.objects.create(
        **{"name": "orders.fulfil", "version": 1, "fingerprint": "1", "graph": {}},
        created_at=timezone.now(),
    )
    noop.using(queue="emails").enqueue()
    add.using(queue="bulk").enqueue(1)
    make_dead(add, 1)
    fold_runs()
    page, whole = page_of(*ALL), page_of(*ALL, name="otto")
    with declared(billed, tags=("vip",)):
        few, many = offered(page, Job), offered(whole, Job)
    assert few["queue"] == {"emails"}
    assert few["job_type"] == {"app.noop"} | {
        name for name in registry.names() if registry.get(name).queue == "emails"
    }
    for kind, name in (("schedule", "payroll"), ("tenant", "acme"), ("workflow", "orders.fulfil")):
        assert name in many[kind]
        assert few[kind] == set()
    assert {"emails", "bulk"} < many["queue"]
    assert {"app.noop", "app.add"} < many["job_type"]
    assert (few["tag"], many["tag"]) == (set(), {"vip"})
    assert offered(page, DeadLetter)["queue"] == {"emails"}


def test_filters_offer_the_job_types_of_the_scope_alone(
    scoped: Callable[..., None], page_of: Callable[..., Page]
) -> None:
    add.enqueue(1)
    noop.enqueue()
    scoped(app_types)
    offers = offered(page_of(*ALL), Job)
    assert offers["queue"] == {"default", "emails"}
    assert "app.add" in offers["job_type"]
    assert all(name.startswith("app.add") for name in offers["job_type"])


def why(page: Page, job: Job) -> str:
    """The sentence and the gates of a job, without the page's own links and tags."""
    text = page.text(change_url(Job, job.pk))
    sentence = text.partition('<p class="jobs-sentence">')[2].partition("</p>")[0]
    section = text.partition('aria-labelledby="jobs-why"')[2].partition("</section>")[0]
    assert sentence, text
    assert "/job/" not in sentence + section
    return words(f"{sentence} {section}")


@pytest.mark.usefixtures("emails")
def test_a_job_page_names_no_job_and_no_type_that_holds_a_thread(
    page_of: Callable[..., Page],
) -> None:
    worker = register_worker("mixed", queues=["default", "emails"])
    enqueue_and_claim(add, 1, worker=worker)
    text = why(page_of("view_job"), noop.using(queue="emails").enqueue())
    assert "1 of 1 busy on 1 worker: 1 jobs (a job for " in text
    assert "app.add" not in text
    assert "#" not in text


@pytest.mark.usefixtures("emails")
def test_a_job_page_names_no_job_that_holds_a_resource_a_tenant_or_a_key(
    page_of: Callable[..., Page],
) -> None:
    page = page_of("view_job")
    for name in ("ledger", "stripe"):
        Resource.objects.create(name=name, max_concurrency=1)
    Tenant.objects.create(name="acme", max_concurrency=1, paused_at=timezone.now())
    job = transfer_funds.using(queue="emails").enqueue(7, "acme")
    copies_of(job, 3)
    text = why(page, job)
    also = (
        "Also: the resource ledger (1 of 1 taken); the resource stripe (1 of 1 taken); "
        "the concurrency key account:7:EUR (3 of 3 taken); no worker is alive."
    )
    assert also in text
    assert "#" not in text
    assert "the resource stripe (1 of 1 taken): a job (ready)" in text
    assert "account:7:EUR (3 of 3 taken): a job (ready), a job (ready), a job (ready)" in text
    Tenant.objects.update(paused_at=None)
    assert "the tenant acme (1 of 1 taken): a job (ready)" in why(page, job)


@pytest.mark.usefixtures("emails")
def test_a_job_page_names_no_step_that_it_waits_for(page_of: Callable[..., Page]) -> None:
    child, parent = noop.using(queue="emails").enqueue(), noop.using(queue="bulk").enqueue()
    Job.objects.filter(pk=child.pk).update(status="waiting", prerequisites=1)
    Job.objects.filter(pk=parent.pk).update(step="secret-step")
    Dependency.objects.create(workflow_run_id=1, parent=parent, child=child, when="succeeded")
    text = why(page_of("view_job"), child)
    assert text.startswith("Waits for the steps before it.")
    assert "secret-step" not in text


def test_job_types_are_named_or_begin_alike(
    scoped: Callable[..., None], page_of: Callable[..., Page]
) -> None:
    mine = add.enqueue(1)
    noop.enqueue()
    add.using(queue="bulk").enqueue(1)
    scoped(app_types)
    assert listed(page_of(*ALL), Job) == [mine.pk]


def test_a_superuser_code_and_a_project_without_the_setting_have_no_scope(
    scoped: Callable[..., None], superuser: Any
) -> None:
    ada = make_user(*ALL)
    assert scope_of(ada) is None
    scoped(emails_only)
    assert scope_of(superuser) is None
    assert scope_of(None) is None
    assert scope_of(ada) == Scope(queues=("emails",))


def test_a_wrong_answer_of_the_function_shows_nothing(scoped: Callable[..., None]) -> None:
    scoped(nonsense)
    with pytest.raises(ImproperlyConfigured, match="returns None or a dict with lists of names"):
        operations.cancel([noop.enqueue().pk], actor=make_user(*ALL))
