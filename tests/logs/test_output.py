"""Standard error, whose reader may be slow or gone."""

from __future__ import annotations

import contextlib
import logging
import os

from django_jobs import logs


def test_unread_lines_are_dropped_and_counted_later() -> None:
    reading, writing = os.pipe()
    handler = logs.PatientHandler()
    with open(reading, "rb") as reader, open(writing, "w") as handler.stream:
        os.set_blocking(writing, False)
        with contextlib.suppress(BlockingIOError):
            while os.write(writing, b"." * 4_096):
                pass
        os.set_blocking(writing, True)
        for text in ("one", "two"):
            handler.emit(logging.makeLogRecord({"msg": text}))
        reader.read1(1_000_000)
        handler.emit(logging.makeLogRecord({"msg": "three"}))
        assert reader.read1() == b"event=log_lines_left_out lines=2\nthree\n"
