"""Where the begin and the end of an operation on all jobs are recorded: log and admin history."""

from __future__ import annotations

import logging
from contextlib import suppress

from django.apps import apps
from django.contrib.auth import get_user_model
from django.db import DatabaseError, router, transaction

from ..domain.bulk import BulkState
from ..models import BulkAction, BulkOperation
from ..signals import worker_event


def send_events(operation: BulkOperation, has_begun: bool) -> None:
    """Send the event of the begin, and that of the end if it has ended, after the commit."""
    asked = {
        "operation": operation.pk,
        "action": operation.action,
        "by": operation.actor_name,
    }
    if has_begun:
        fields = {**asked, "matched": operation.matched, "reason": operation.reason}
        worker_event.send_robust("operation_started", level=logging.INFO, fields=fields)
    if operation.is_unfinished:
        return
    counts = {"done": operation.done, "left": operation.left}
    if operation.action == BulkAction.REPLAY:
        counts |= {"succeeded": operation.succeeded, "failed": operation.failed}
    fields = {**asked, **counts, "seconds": _seconds(operation), "reason": operation.why}
    match operation.status:
        case BulkState.COMPLETED:
            worker_event.send_robust("operation_completed", level=logging.INFO, fields=fields)
        case BulkState.STOPPED:
            worker_event.send_robust("operation_stopped", level=logging.WARNING, fields=fields)
        case _:
            worker_event.send_robust("operation_failed", level=logging.ERROR, fields=fields)


def _seconds(operation: BulkOperation) -> float | None:
    worked = operation.worked(operation.finished_at) if operation.finished_at else None
    return None if worked is None else worked.total_seconds()


def log_end(operation: BulkOperation) -> None:
    """In the history of the admin, if the role of the workers may write there."""
    if not (operation.actor_id and apps.is_installed("django.contrib.admin")):
        return
    from django.contrib.admin.models import CHANGE, LogEntry
    from django.contrib.contenttypes.models import ContentType

    message = f"{operation.status}: {operation.done:,} done, {operation.left:,} left"
    if operation.why:
        message += f" ({operation.why})"
    with suppress(DatabaseError), transaction.atomic(using=router.db_for_write(LogEntry)):
        if not get_user_model()._default_manager.filter(pk=operation.actor_id).exists():
            return  # the constraint would fail the chunk
        LogEntry.objects.create(
            user_id=operation.actor_id,
            content_type=ContentType.objects.get_for_model(BulkOperation),
            object_id=str(operation.pk),
            object_repr=str(operation),
            action_flag=CHANGE,
            change_message=message,
        )
