"""Wagtail's Tasks run as jobs: its reference index, its search index, the files of renditions."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import django
import pytest

from tests.throwaway import Project, fresh_database

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(
        find_spec("wagtail") is None,
        reason="Wagtail is not installed: pip install -e '.[test-wagtail]'",
    ),
]

SETTINGS = """
INSTALLED_APPS = [
    "django.contrib.auth", "django.contrib.contenttypes", "django.contrib.messages",
    "django.contrib.postgres", "django.contrib.sessions", "django.contrib.staticfiles",
    "wagtail.images", "wagtail.documents", "wagtail.users", "wagtail.admin",
    "wagtail", "modelcluster", "taggit", "modelsearch", "django_jobs", "shop",
]
TEMPLATES = [{
    "BACKEND": "django.template.backends.django.DjangoTemplates",
    "APP_DIRS": True,
    "OPTIONS": {"context_processors": [
        "django.template.context_processors.request",
        "django.contrib.auth.context_processors.auth",
        "django.contrib.messages.context_processors.messages",
    ]},
}]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
MEDIA_ROOT = "media"
STATIC_URL = "static/"
WAGTAIL_SITE_NAME = "shop"
WAGTAILADMIN_BASE_URL = "http://localhost"
TASKS = {"default": {"BACKEND": "django_jobs.backend.JobsBackend"}}
"""
MODELS = """
from django.db import models
from wagtail.models import Page


class BreadPage(Page):
    photo = models.ForeignKey("wagtailimages.Image", models.PROTECT, related_name="+")
"""
WRITE = """
import json, os
from io import BytesIO
from django.core.files.images import ImageFile
from django_jobs.models import Job
from PIL import Image as Picture
from shop.models import BreadPage
from wagtail.images.models import Image
from wagtail.models import Page, ReferenceIndex

def image(title):
    content = BytesIO()
    Picture.new("RGB", (40, 30)).save(content, "PNG")
    content.seek(0)
    return Image.objects.create(title=title, file=ImageFile(content, name=f"{title}.png"))

photo = image("rye")
rendition = photo.get_rendition("width-10")
kept = os.path.exists(rendition.file.path)
page = BreadPage(title="Sourdough", slug="sourdough", photo=photo)
Page.get_first_root_node().add_child(instance=page)
rendition.delete()
print(json.dumps({
    "jobs": sorted(set(Job.objects.values_list("job_type", flat=True))),
    "references": ReferenceIndex.get_references_to(photo).count(),
    "rendition": [kept, os.path.exists(rendition.file.path), rendition.file.path],
}))
"""
READ = """
import json
from django_jobs.models import Job
from shop.models import BreadPage
from wagtail.images.models import Image
from wagtail.models import ReferenceIndex

photo = Image.objects.get(title="rye")
print(json.dumps({
    "statuses": sorted(set(Job.objects.values_list("status", flat=True))),
    "references": ReferenceIndex.get_references_to(photo).count(),
    "pages": [page.title for page in BreadPage.objects.search("sourdough")],
}))
"""


@pytest.mark.django_db
def test_the_indexes_are_written_and_files_deleted_by_a_worker(tmp_path: Path) -> None:
    with fresh_database() as database:
        project = Project(tmp_path, database)
        project.write("settings.py", (tmp_path / "settings.py").read_text() + SETTINGS)
        if django.VERSION < (6, 0):
            add = '\nINSTALLED_APPS = ["django_tasks", *INSTALLED_APPS]\n'
            project.write("settings.py", (tmp_path / "settings.py").read_text() + add)
        project.write("shop/models.py", MODELS)
        (tmp_path / "shop/migrations/0001_initial.py").unlink()
        project.write("write.py", WRITE)
        project.write("read.py", READ)
        said = project.manage(
            "makemigrations -v0 shop", "migrate -v0", "shell -v0 -c 'import write'"
        )
        assert said.returncode == 0, said.stderr
        before = json.loads(said.stdout)
        assert before["jobs"] == [
            "modelsearch.tasks.insert_or_update_object_task",
            "wagtail.tasks.delete_file_from_storage_task",
            "wagtail.tasks.update_reference_index_task",
        ]
        assert (before["references"], before["rendition"][:2]) == (0, [True, True])
        worked = project.manage("jobworker --burst")
        assert worked.returncode == 0, worked.stderr
        said = project.manage("shell -v0 -c 'import read'")
        assert said.returncode == 0, said.stderr
        after = json.loads(said.stdout)
        assert after == {"statuses": ["succeeded"], "references": 1, "pages": ["Sourdough"]}
        assert not Path(tmp_path, before["rendition"][2]).exists()
