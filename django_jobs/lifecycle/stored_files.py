"""Files of ``DJANGO_JOBS["STORAGE"]`` that payloads, results and checkpoints refer to.

A file is saved before the row that refers to it is committed, and deleted after that row was. What
a transaction that rolled back has left behind is found by the day in its name.
"""

from __future__ import annotations

import io
import json
import re
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import IO, Any

from django.core.exceptions import ImproperlyConfigured
from django.core.files.base import ContentFile, File
from django.core.files.storage import Storage, storages
from django.db import transaction
from django.utils.text import get_valid_filename

from ..conf import conf
from ..domain.hints import Explained
from ..domain.payload import (
    FILE_KEYS,
    MAX_DEPTH,
    STORED,
    NotStorable,
    Path,
    a_kind,
    encode,
    is_reference,
    references,
)
from ..exceptions import Discard, PayloadError, Retry
from ..models import Job
from ..models.database import execute, fetch, jobs_connection
from .bulk_insert import Item
from .pruning import Page

FOLDER = "django_jobs"
OURS = re.compile(rf"{FOLDER}/\d{{4}}-\d\d-\d\d/[0-9a-f]{{32}}-[\w.-]{{1,150}}")
"""What a name has to be: no reference leads out of the folder."""

LONGEST_NAME = 100
SMALLEST = 500
"""Bytes of an argument that are not worth a file, because its reference has half of them."""

FILES = 50
"""Files that are deleted in one transaction, which keeps their rows locked."""

REGISTER = """
INSERT INTO django_jobs_storedfile AS file (name, job_id, is_checkpoint, created_at)
SELECT name, job, %(is_checkpoint)s, statement_timestamp()
FROM unnest(%(names)s::text[], %(jobs)s::bigint[]) AS input (name, job)
ON CONFLICT (name, job_id) DO UPDATE
SET is_checkpoint = file.is_checkpoint AND EXCLUDED.is_checkpoint
"""

# A deletion of the file waits for this transaction, or this statement for the deletion.
HOLD = """
SELECT name FROM django_jobs_storedfile WHERE name = ANY(%(names)s::text[]) FOR KEY SHARE
"""

ONE_AT_A_TIME = "SELECT pg_try_advisory_xact_lock(hashtextextended('django_jobs.files', 0))"
# OFFSET 0 makes an index search of each job. The checkpoint before the last one is needed while a
# transaction with the last one is open.
UNUSED = """
WITH page AS MATERIALIZED (
    SELECT id, name, job_id, is_checkpoint, created_at FROM django_jobs_storedfile
    WHERE id > %(after)s::bigint AND job_id <> 0
    ORDER BY id
    LIMIT %(page)s
), unused AS MATERIALIZED (
    SELECT id FROM page
    WHERE NOT EXISTS (SELECT 1 FROM django_jobs_job AS job WHERE job.id = page.job_id OFFSET 0)
       OR is_checkpoint AND created_at < statement_timestamp() - interval '1 day'
          AND NOT EXISTS (
            SELECT 1 FROM django_jobs_progress AS progress
            WHERE progress.job_id = page.job_id AND strpos(checkpoint::text, page.name) > 0
            OFFSET 0)
    ORDER BY id
    LIMIT %(files)s
)
SELECT (SELECT array_agg(id) FROM unused), max(id), count(*) FROM page
"""
# Two statements: the second one sees what those have written who held the rows before.
LOCK = "SELECT id FROM django_jobs_storedfile WHERE id = ANY(%(ids)s::bigint[]) FOR UPDATE"
UNSHARED = """
SELECT DISTINCT name FROM django_jobs_storedfile AS file
WHERE id = ANY(%(ids)s::bigint[]) AND NOT EXISTS (
    SELECT 1 FROM django_jobs_storedfile AS other
    WHERE other.name = file.name AND other.id <> ALL(%(ids)s::bigint[]))
"""
DELETE = """
DELETE FROM django_jobs_storedfile
WHERE id = ANY(%(ids)s::bigint[]) AND name <> ALL(%(left)s::text[])
"""

DECIDES = """
SELECT 1 FROM django_jobs_dependency
WHERE parent_id = %(id)s AND condition IS NOT NULL LIMIT 1
"""
KNOWN = "SELECT DISTINCT name FROM django_jobs_storedfile WHERE name = ANY(%(names)s::text[])"
# A day begins with a digit, and all other names with FOLDER.
LAST_DAY = """
SELECT name FROM django_jobs_storedfile WHERE name < 'a' AND job_id = 0 ORDER BY name DESC LIMIT 1
"""
SET_LAST_DAY = """
WITH gone AS (
    DELETE FROM django_jobs_storedfile WHERE name = %(last)s AND job_id = 0
)
INSERT INTO django_jobs_storedfile (name, job_id, is_checkpoint, created_at)
VALUES (%(day)s, 0, false, statement_timestamp())
ON CONFLICT (name, job_id) DO NOTHING
"""


def _storage() -> Storage:
    options = conf().storage
    if options is None:
        raise ImproperlyConfigured('Stored() needs DJANGO_JOBS["STORAGE"] = {"alias": "default"}')
    return storages[options.get("alias", "default")]


class _Gone(Discard, FileNotFoundError):
    """No retry finds it again."""


class Stored(metaclass=Explained):
    """A file as an argument or in a result: bytes, or a binary file. It is saved on the storage of
    ``DJANGO_JOBS["STORAGE"]`` when the job is enqueued, or the result written. A handler gets one
    whose content is read on request. ``name`` is that of the file, without folders, and ``size``
    in bytes; of one that is not saved yet it may be None.

    Raises ``ImproperlyConfigured`` without the setting, and ``TypeError`` for text.
    """

    def __init__(self, file: bytes | IO[bytes] | File[Any], name: str = "") -> None:
        _storage()
        if isinstance(file, str | io.TextIOBase) or not (
            isinstance(file, bytes) or hasattr(file, "read")
        ):
            raise TypeError(f"Stored() takes bytes or a file in binary mode, not {a_kind(file)}")
        content = ContentFile(file) if isinstance(file, bytes) else file
        self._file: File[Any] = content if isinstance(content, File) else File(content)
        given = str(name or getattr(file, "name", None) or "file")
        self.name = re.split(r"[/\\]", given)[-1][-LONGEST_NAME:]
        self.size: int | None = getattr(self._file, "size", None)
        self.path = ""
        """The name of the file on the storage; empty before it is saved."""

    @classmethod
    def _saved(cls, path: str, name: str, size: int) -> Stored:
        self = cls.__new__(cls)
        self.path, self.name, self.size = path, name, size
        return self

    def __repr__(self) -> str:
        return f"<Stored {self.name}>"

    def open(self) -> File[Any]:
        """The file, open for reading in binary mode. Raises what the storage raises; a
        ``FileNotFoundError`` makes a job dead at once, as :class:`~django_jobs.Discard` does."""
        try:
            return _storage().open(self.path) if self.path else self._file.open()
        except FileNotFoundError:
            raise _Gone(f"the file {self.path} is not there: it was deleted") from None

    def read(self) -> bytes:
        """All of its content. Raises what the storage raises."""
        with self.open() as file:
            content: bytes = file.read()
        return content

    @staticmethod
    def load(value: Any) -> Any:
        """JSON of a job, such as ``job.result``, with a :class:`Stored` in the place of each
        reference to a file. What was stored because of its size is read. Raises
        :class:`PayloadError` for a reference that leads elsewhere, and what the storage raises."""
        if is_reference(value):
            path = _path_of(value)
            if value.keys() == FILE_KEYS:
                return Stored._saved(path, str(value["name"]), value["size"])
            return json.loads(Stored._saved(path, "", value["size"]).read())  # has no references
        if isinstance(value, dict):
            return {key: Stored.load(item) for key, item in value.items()}
        return [Stored.load(item) for item in value] if isinstance(value, list) else value


def loaded(value: Any) -> Any:
    """:meth:`Stored.load` for an attempt, which is retried if the storage does not answer."""
    try:
        return Stored.load(value)
    except (PayloadError, Discard):
        raise
    except Exception as error:
        raise Retry(reason=f"a stored file cannot be read: {error!r}") from error


def _path_of(reference: dict[str, Any]) -> str:
    path = reference[STORED]
    if not (isinstance(path, str) and OURS.fullmatch(path)):
        raise PayloadError(f"{STORED!r} refers to no file that was stored by django_jobs")
    return path


def refuse_references(job_type: str, value: Any, known: Any = None) -> None:
    """Raise :class:`PayloadError` if ``value`` refers to a file to which ``known``, what the job
    has, does not: it would be deleted with the other job."""
    paths, ours = ({str(one[STORED]) for one in references(given)} for given in (value, known))
    for path in paths - ours:
        raise PayloadError(
            f"{job_type}: {path!r} is a file of another job; only enqueue() and enqueue_many() of "
            "a job take a reference, not of a workflow"
        )


class Files:
    """The files that a value refers to: those that were saved for it, and those that were there."""

    def __init__(self) -> None:
        self.saved: list[str] = []
        self.shared: list[str] = []

    def put(
        self,
        value: Any,
        name: Path,
        *,
        split: bool = False,
        unless: Callable[[], bool] = lambda: False,
    ) -> Any:
        """``value`` with references in the place of files. If it is larger than ``above_bytes``, it
        is saved as a whole, ``unless`` that must not be, or ``split``, its largest items are; none
        that has files, because the copy of a reference does not know them. Raises
        :class:`NotStorable`, and what the storage raises."""
        above = (conf().storage or {}).get("above_bytes")
        parts = dict(value) if split else {str(name): value}
        texts: dict[str, bytes] = {}
        for key, part in parts.items():
            before = len(self.saved) + len(self.shared)
            parts[key] = self._with_references(part, name, 1)
            if above is not None and before == len(self.saved) + len(self.shared):
                where = (name, ".{}", key) if split else name
                texts[key] = encode(part, max_bytes=sys.maxsize, name=where).encode()
        size = sum(map(len, texts.values()))
        for key in sorted(texts, key=lambda key: -len(texts[key])):
            if above is None or size <= above or len(texts[key]) < SMALLEST or unless():
                break
            size -= len(texts[key])
            parts[key] = self._save(ContentFile(texts[key], f"{key}.json"))
        return parts if split else parts[str(name)]

    def _with_references(self, value: Any, name: Path, depth: int) -> Any:
        if isinstance(value, Stored):
            if not value.path:
                return {**self._save(value._file, value.name), "name": value.name}
            self.shared.append(value.path)
            return {STORED: value.path, "name": value.name, "size": value.size}
        if depth > MAX_DEPTH:  # refused by who encodes it
            return value
        if is_reference(value):
            self.shared.append(_path_of(value))
        elif isinstance(value, dict) and STORED in value:
            raise NotStorable(
                name,
                f"the key {STORED!r} is that of a reference to a file, as it is "
                "in another job's payload",
            )
        elif isinstance(value, dict):
            return {
                key: self._with_references(item, name, depth + 1) for key, item in value.items()
            }
        elif isinstance(value, list | tuple):
            return [self._with_references(item, name, depth + 1) for item in value]
        return value

    def _save(self, file: File[Any], name: str = "") -> dict[str, Any]:
        storage = _storage()
        safe = get_valid_filename(re.sub(r"^\W+", "_", name or file.name or ""))[-LONGEST_NAME:]
        path = storage.save(
            f"{FOLDER}/{datetime.now(UTC):%Y-%m-%d}/{uuid.uuid4().hex}-{safe}", file
        )
        self.saved.append(path)
        if not OURS.fullmatch(path):
            raise ImproperlyConfigured(f"the storage of DJANGO_JOBS has renamed a file to {path!r}")
        return {STORED: path, "size": storage.size(path)}

    def discard(self) -> None:
        """Delete what was saved, because no row refers to it."""
        for path in self.saved:
            with suppress(Exception):  # a later sweep finds it
                _storage().delete(path)


def register(files_by_job: Sequence[tuple[int, Files]], *, is_checkpoint: bool = False) -> None:
    """Note that these jobs refer to these files, in the transaction that writes the jobs or when
    they are there. Raises :class:`PayloadError` if a shared file was deleted with its job."""
    shared = {path for _, files in files_by_job for path in files.shared}
    if shared and (gone := shared - {name for (name,) in fetch(HOLD, {"names": list(shared)})}):
        raise PayloadError(f"the file {min(gone)} is not there, or was deleted with its job")
    pairs = {(path, job) for job, files in files_by_job for path in (*files.saved, *files.shared)}
    if pairs:
        names, jobs = zip(*sorted(pairs), strict=True)
        rows = {"names": list(names), "jobs": list(jobs), "is_checkpoint": is_checkpoint}
        execute(REGISTER, rows)


@contextmanager
def _or_discard(files: Files, job_type: str = "") -> Iterator[None]:
    """Delete the files if the block raises. Not if a commit does, which may have succeeded. With a
    ``job_type``, what cannot be stored is a :class:`PayloadError`."""
    try:
        yield
    except BaseException as error:
        files.discard()
        if job_type and isinstance(error, NotStorable):
            raise PayloadError(f"{job_type}: {error}") from None
        raise


def insert_with_files(
    job_type: str, payload: dict[str, Any], write: Callable[[dict[str, Any]], Job]
) -> Job:
    """Save the files of a payload, and ``write`` the job."""
    files = Files()
    with _or_discard(files, job_type):
        payload = files.put(payload, "payload", split=True)
    if not (files.saved or files.shared):
        return write(payload)
    with transaction.atomic(using=jobs_connection().alias), _or_discard(files):
        job = write(payload)
        if job.deduplicated:
            files.discard()
        else:
            register([(job.pk, files)])
    return job


def encoded_of(
    job_id: int, value: Any, *, max_bytes: int, name: str, is_checkpoint: bool = False
) -> str:
    """The result or a checkpoint of a job that runs as JSON text, after its files were saved. A
    result on which a branch of its workflow depends stays in the row. Raises
    :class:`NotStorable`, and what the storage raises."""
    files = Files()
    with _or_discard(files):
        stored = files.put(
            value, name, unless=lambda: not is_checkpoint and bool(fetch(DECIDES, {"id": job_id}))
        )
        text = encode(stored, max_bytes=max_bytes, name=name)
        register([(job_id, files)], is_checkpoint=is_checkpoint)
    return text


class TextWithFiles(str):
    """The payload of one of many jobs as JSON text, with its files."""

    files: Files


def encoded_with_files(
    job_type: str,
    encode: Callable[..., str],
    payload: dict[str, Any],
    path: Path,
) -> TextWithFiles:
    """Save the files of the payload of one of many jobs, and ``encode`` it."""
    files = Files()
    with _or_discard(files, job_type):
        stored = files.put(payload, path, split=True)
        text = TextWithFiles(encode(stored, path, files_of=stored))
    text.files = files
    return text


def register_batch(batch: Sequence[Item], ids: Sequence[int]) -> None:
    """:func:`register` the files of many jobs."""
    texts = ((id_, item[0]) for id_, item in zip(ids, batch, strict=True))
    register([(id_, text.files) for id_, text in texts if isinstance(text, TextWithFiles)])


def delete_unused(after: int = 0, page: int = 2_000) -> tuple[Page, Exception | None]:
    """Delete up to 50 files that no job refers to any longer, of those behind the row ``after``.
    Those that the storage refuses to delete stay, and its last error is returned."""
    left: list[str] = []
    problem = None
    with transaction.atomic(using=jobs_connection().alias):
        if fetch(ONE_AT_A_TIME, {}) != [(True,)]:
            return Page(deleted=0, next_after=None), None
        parameters = {"after": after, "page": page, "files": FILES}
        ((ids, last, seen),) = fetch(UNUSED, parameters)
        if ids:
            fetch(LOCK, {"ids": ids})
            for (path,) in fetch(UNSHARED, {"ids": ids}):
                try:
                    _storage().delete(path)
                except Exception as error:
                    left.append(path)
                    problem = error
            execute(DELETE, {"ids": ids, "left": left})
    is_full = bool(ids) and len(ids) == FILES
    following = ids[-1] if is_full else last if seen == page else None
    return Page(deleted=len(ids or ()) - len(left), next_after=following), problem


def delete_left_behind() -> int:
    """Delete the files of a day up to the one before yesterday that no row knows: those of
    transactions that rolled back. Return how many. Each day is listed once, by one worker."""
    last = "".join(name for (name,) in fetch(LAST_DAY, {}))
    newest = f"{datetime.now(UTC) - timedelta(days=2):%Y-%m-%d}"
    if last >= newest:
        return 0
    storage = _storage()
    days: list[str] = []
    with suppress(FileNotFoundError, NotImplementedError):  # nothing is stored; it cannot list
        days = [day for day in storage.listdir(FOLDER)[0] if last < day <= newest]
    day = min(days, default=newest)
    found = storage.listdir(f"{FOLDER}/{day}")[1] if days else []
    paths = [path for name in found if OURS.fullmatch(path := f"{FOLDER}/{day}/{name}")]
    known = {name for (name,) in fetch(KNOWN, {"names": paths})}
    unknown = [path for path in paths if path not in known]
    for path in unknown:
        storage.delete(path)
    execute(SET_LAST_DAY, {"last": last, "day": day})
    return len(unknown)
