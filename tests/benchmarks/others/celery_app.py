"""The handler as a task of Celery. No results are kept, as its documentation advises for speed."""

from __future__ import annotations

import os

from celery import Celery

from .handler import note

app = Celery("others", broker=os.environ.get("OTHERS_REDIS"), set_as_current=False)
app.conf.task_ignore_result = True
note_task = app.task(name="note")(note)
