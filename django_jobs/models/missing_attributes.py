"""Attributes that a job does not have."""

from __future__ import annotations

from typing import Never


class NotOfAJob:
    """An attribute that the results of other libraries have. The error names the replacement."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, job: object, owner: type) -> Never:
        raise AttributeError(
            f"'Job' object has no attribute {self._name!r}; write job.wait(), or "
            "job.refresh_from_db(), and then read job.status and job.result",
            name=self._name,
            obj=job,
        )
