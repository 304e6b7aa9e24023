"""What the tests of the demo share."""

from __future__ import annotations

from pathlib import Path

import pytest
from pytest_django import Settings

from django_jobs.models import Queue
from testproject.settings import DJANGO_JOBS

FILES = {
    "alone.py": "import os\n\n\nclass One:\n    def method(self):\n        pass\n",
    "pack/__init__.py": "",
    "pack/deep/inner.py": "async def first():\n    def second():\n        pass",
    "pack/broken.py": "def unfinished(:\n\n",
    "pack/escaped.py": "TEXT = '\\d'\n",
    "not_utf8.py": "TEXT = 'caf\udce9'\n",
    "test/left_out.py": "def never_counted():\n    pass\n",
    "site-packages/other.py": "def never_counted():\n    pass\n",
    "no_sources/readme.txt": "nothing here\n",
}


@pytest.fixture
def tree(tmp_path: Path, settings: Settings) -> Path:
    """A small tree of sources, which the demo's jobs index instead of Python's."""
    root = tmp_path / "sources"
    for path, text in FILES.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(text.encode(errors="surrogateescape"))
    settings.DEMO_SOURCES = str(root)
    return root


@pytest.fixture
def demo_queues(db: None) -> None:
    """The queues of the demo, which are not those of the tests."""
    Queue.objects.seed(DJANGO_JOBS["QUEUES"], "default")
