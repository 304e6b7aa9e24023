"""Tags: what may be one, how they are combined, and that each way to enqueue writes them."""

from __future__ import annotations

from typing import Any

import pytest

from django_jobs import EnqueueError, chain, enqueue, enqueue_many, group, job
from django_jobs.api.schedules import schedule as declare_schedule
from django_jobs.domain.options import LONGEST_TAG, MOST_TAGS, as_text, of_text
from django_jobs.lifecycle.operations import jobs as operations
from django_jobs.models import Job, JobStatus, Queue
from django_jobs.testing import run_jobs
from tests.app.gate_jobs import charge_account
from tests.app.jobs import add, noop
from tests.factories import declared, due_schedule, look, make_dead, run_sql

pytestmark = pytest.mark.django_db

ODD = ['say "hi"', "back\\slash", "a,b", "{x}", "NULL", "ключ", "it's 100%", "a:b"]


def handler(first: int = 0, second: int = 0) -> None: ...


def tags_of(*ids: int) -> list[list[str] | None]:
    return [Job.objects.get(pk=id_).tags for id_ in ids]


def test_declared_tags_and_those_of_a_request_are_combined() -> None:
    with declared(handler, name="app.tagged", tags=("mail", "eu")) as tagged:
        enqueued = tagged.using(tags=["vip", "eu"]).enqueue()
        assert enqueued.tags == ["eu", "mail", "vip"]
        assert tags_of(enqueued.pk) == [["eu", "mail", "vip"]]
        assert tagged.using(tags="vip").using(tags="new").tags == ("eu", "mail", "new", "vip")
        assert tags_of(tagged.enqueue().pk) == [["eu", "mail"]]


def test_a_job_without_tags_has_none() -> None:
    assert noop.enqueue().tags is None
    assert tags_of(noop.using(tags=[]).enqueue().pk) == [None]


@pytest.mark.parametrize("tag", ODD)
def test_any_printable_text_is_a_tag(tag: str) -> None:
    assert of_text(as_text([tag]) or "") == [tag]
    one = noop.using(tags=tag).enqueue()
    many = noop.using(tags=[tag, "other"]).enqueue_many([{}, {}])
    assert one.tags == [tag]
    assert tags_of(one.pk, *many) == [[tag], sorted([tag, "other"]), sorted([tag, "other"])]
    assert list(Job.objects.tagged(tag).order_by("pk").values_list("pk", flat=True)) == [
        one.pk,
        *many,
    ]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (7, r'tags are texts, such as \["vip"\], not 7'),
        ({"vip": 1}, r"tags are texts, such as .*, not \{'vip': 1\}"),
        ([7], "a tag is an int, not text: 7"),
        ([""], "a tag has 0 characters, not 1 to 100: ''"),
        (["x" * (LONGEST_TAG + 1)], "a tag has 101 characters, not 1 to 100"),
        (["a\0b"], "a tag has a control character"),
        ([" vip"], "a tag begins or ends with a space: ' vip'"),
        ([str(number) for number in range(MOST_TAGS + 1)], "at most 20 tags, not 21"),
    ],
)
def test_what_cannot_be_a_tag_is_refused_before_anything_is_written(
    given: Any, problem: str
) -> None:
    with pytest.raises(EnqueueError, match=f"^app.noop: .*{problem}"):
        noop.using(tags=given)
    with pytest.raises(EnqueueError, match=f"^@job app.wrong: .*{problem}"):
        job(name="app.wrong", tags=given)(handler)
    with pytest.raises(EnqueueError, match=problem):
        chain(noop.step()).using(tags=given)


def test_declared_tags_and_those_of_a_request_are_counted_together() -> None:
    with declared(handler, name="app.tagged", tags=map(str, range(MOST_TAGS))) as tagged:
        with pytest.raises(EnqueueError, match="at most 20 tags, not 21"):
            tagged.using(tags="vip")
        assert tagged.using(tags="7").tags == tagged.tags


@pytest.mark.parametrize("option", ["labels", "tag"])
def test_the_option_of_other_queues_is_named(option: str) -> None:
    with pytest.raises(TypeError, match=f"no option '{option}'.*'tags'"):
        noop.using(**{option: "vip"})


def test_each_way_to_enqueue_writes_the_tags() -> None:
    vip = {"tags": ["vip"]}
    Queue.objects.filter(name="bulk").update(max_backlog=100)
    ids = [
        enqueue("app.noop", **vip).pk,
        noop.using(**vip, delay=60).enqueue().pk,
        noop.using(**vip, idempotency_key="a").enqueue().pk,
        noop.using(**vip, idempotency_key="b", unique_for=60).enqueue().pk,
        noop.using(**vip, idempotency_key="c", on_duplicate="replace").enqueue().pk,
        noop.using(**vip, queue="bulk").enqueue().pk,
        charge_account.using(**vip).enqueue(7).pk,
        *enqueue_many("app.noop", [{}], **vip),
        *enqueue_many("app.noop", [{}], idempotency_keys=["d"], **vip),
        *noop.using(**vip, unique_for=60).enqueue_many([{}], idempotency_keys=["e"]),
        *charge_account.using(**vip).enqueue_many([{"account_id": 7}]),
    ]
    assert tags_of(*ids) == [["vip"]] * len(ids)


def test_a_job_that_is_replaced_has_the_tags_of_the_new_request() -> None:
    replacing = noop.using(idempotency_key="k", on_duplicate="replace", delay=60)
    first = replacing.using(tags="old").enqueue()
    second = replacing.using(tags="new").enqueue()
    assert (second.pk, second.tags) == (first.pk, ["new"])


def test_the_steps_of_a_run_have_their_own_tags_and_those_of_the_run() -> None:
    with declared(handler, name="app.tagged", tags="mail") as tagged:
        run = chain(tagged.step(), noop.step()).using(tags=["vip"]).start()
        assert [step.tags for step in run.steps.order_by("pk")] == [["mail", "vip"], ["vip"]]
        run = group(tagged.using(tags="eu").steps([{}, {}])).start()
        assert [step.tags for step in run.steps.all()] == [["eu", "mail"]] * 2


def test_the_jobs_of_a_schedule_have_the_declared_tags() -> None:
    with declared(handler, name="app.tagged", tags=["mail", ODD[0]]) as tagged:
        due_schedule(job_type=tagged.name)
        look()
        assert Job.objects.get(job_type=tagged.name).tags == ["mail", ODD[0]]


def test_tags_outlive_the_end_of_a_job_and_its_replay() -> None:
    ended = add.using(tags="vip").enqueue(1, 2)
    run_jobs()
    dead = make_dead(noop.using(tags="vip"))
    assert Job.objects.get(pk=ended.pk).status == JobStatus.SUCCEEDED
    operations.replay([dead.pk], check=lambda job: None)
    assert set(Job.objects.tagged("vip").values_list("pk", "status")) == {
        (ended.pk, "succeeded"),
        (dead.pk, "ready"),
    }


def test_jobs_are_found_by_all_of_several_tags() -> None:
    both = noop.using(tags=["eu", "vip"]).enqueue()
    noop.using(tags=["vip"]).enqueue()
    assert [one.pk for one in Job.objects.tagged("vip", "eu")] == [both.pk]
    assert [one.pk for one in Job.objects.filter(tags__contains=["vip", "eu"])] == [both.pk]
    assert Job.objects.filter(tags__isnull=True).count() == 0


def test_a_declaration_takes_tags_from_schedules_only_by_the_job_type() -> None:
    with pytest.raises(TypeError, match="tags"):
        declare_schedule("app.tick", noop, every=60, tags=["vip"])  # type: ignore[call-arg]


def test_only_a_tagged_job_writes_to_the_index() -> None:
    size = "SELECT pg_relation_size('django_jobs_tags')"
    run_sql("REINDEX INDEX django_jobs_tags")  # without room of rows that others rolled back
    before = run_sql(size)
    noop.enqueue_many([{}] * 2_000)
    assert run_sql(size) == before
    noop.using(tags="x" * LONGEST_TAG).enqueue_many([{}] * 2_000)
    assert run_sql(size) > before
