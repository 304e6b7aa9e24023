"""What a browser sends for the form of a queue."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, auth
from django.forms import ModelForm
from django.test import RequestFactory

from django_jobs.models import Queue
from tests.admin.walking import Page, change_url


def as_shown(page: Page, queue: Queue, **changed: Any) -> dict[str, Any]:
    """The form as its page shows it, with some fields ``changed``.

    The page is not rendered: of the CPU of these tests, it was three quarters."""
    request = RequestFactory().get(change_url(Queue, queue.pk))
    request.user = auth.get_user(page.client)
    stored = Queue.objects.get(pk=queue.pk)
    form = admin.site.get_model_admin(Queue).get_form(request, stored, change=True)(instance=stored)
    return filled_in(form, **changed)


def filled_in(form: ModelForm[Queue], **changed: Any) -> dict[str, Any]:
    """What a browser sends for ``form``, with some fields ``changed``."""
    shown = {name: form[name].value() for name in form.fields}
    return {name: "" if value is None else value for name, value in (shown | changed).items()}


def saved(page: Page, queue: Queue, **changed: Any) -> Queue:
    """The queue after the form was sent with some fields ``changed``."""
    answered = page.client.post(change_url(Queue, queue.pk), as_shown(page, queue, **changed))
    assert answered.status_code == 302, answered.context["adminform"].form.errors
    return Queue.objects.get(pk=queue.pk)


def errors(page: Page, queue: Queue, **changed: Any) -> dict[str, list[str]]:
    """What the form says that was sent with some fields ``changed``. Nothing is stored."""
    before = Queue.objects.filter(pk=queue.pk).values().get()
    answered = page.client.post(change_url(Queue, queue.pk), as_shown(page, queue, **changed))
    assert answered.status_code == 200
    assert Queue.objects.filter(pk=queue.pk).values().get() == before
    found: dict[str, list[str]] = answered.context["adminform"].form.errors
    return found
