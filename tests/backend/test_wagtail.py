"""Each Task of Wagtail runs as a job. There are five: the reference index, the search index, the
focal point of an image, the deletion of files, and the purge of a cache.

Renditions are no Task of Wagtail: ``get_rendition()`` makes the file in the process that asks for
it, here the one that calls ``write``. Only the deletion of that file is a Task."""

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
    "wagtail.contrib.frontend_cache", "wagtail.images", "wagtail.documents", "wagtail.users",
    "wagtail.admin", "wagtail", "modelcluster", "taggit", "modelsearch", "django_jobs", "shop",
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
WAGTAILIMAGES_FEATURE_DETECTION_ENABLED = True
WAGTAILFRONTENDCACHE = {"proxy": {"BACKEND": "shop.plugins.Proxy"}}
TASKS = {"default": {"BACKEND": "django_jobs.backend.JobsBackend"}}
"""
PLUGINS = """
from pathlib import Path

from wagtail.contrib.frontend_cache.backends.base import BaseBackend
from willow.plugins.pillow import PillowImage
from willow.registry import registry

# In place of OpenCV.
registry.register_operation(PillowImage, "detect_faces", lambda image: [])
registry.register_operation(PillowImage, "detect_features", lambda image: [(5, 5), (35, 25)])


class Proxy(BaseBackend):
    def purge(self, url):
        Path("purged").write_text(url)
"""
MODELS = """
from django.db import models
from wagtail.models import Page

from . import plugins


class BreadPage(Page):
    photo = models.ForeignKey("wagtailimages.Image", models.PROTECT, related_name="+")
"""
WRITE = """
import json, os
from io import BytesIO
from django.core.files.images import ImageFile
from django_jobs.models import Job
from django_jobs import registry
from PIL import Image as Picture
from shop.models import BreadPage
from wagtail.contrib.frontend_cache.utils import purge_url_from_cache
from wagtail.images.models import Image
from wagtail.models import Page, ReferenceIndex

def image(title):
    content = BytesIO()
    Picture.new("RGB", (40, 30)).save(content, "PNG")
    content.seek(0)
    return Image.objects.create(title=title, file=ImageFile(content, name=f"{title}.png"))

photo = image("rye")
sent = Job.objects.count()
rendition = photo.get_rendition("width-10")
made = (os.path.exists(rendition.file.path), Job.objects.count() - sent)
page = BreadPage(title="Sourdough", slug="sourdough", photo=photo)
Page.get_first_root_node().add_child(instance=page)
rendition.delete()
purge_url_from_cache("http://localhost/sourdough/")
print(json.dumps({
    "tasks": [name for name in registry.names() if name.startswith(("wagtail", "modelsearch"))],
    "jobs": sorted(set(Job.objects.values_list("job_type", flat=True))),
    "references": ReferenceIndex.get_references_to(photo).count(),
    "focal point": photo.has_focal_point(),
    "rendition": made,
    "path": rendition.file.path,
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
    "focal point": [photo.focal_point_x, photo.focal_point_y],
    "pages": [page.title for page in BreadPage.objects.search("sourdough")],
}))
"""


@pytest.mark.django_db
def test_each_task_of_wagtail_is_done_by_a_worker_and_a_rendition_by_its_caller(
    tmp_path: Path,
) -> None:
    with fresh_database() as database:
        project = Project(tmp_path, database)
        project.write("settings.py", (tmp_path / "settings.py").read_text() + SETTINGS)
        if django.VERSION < (6, 0):
            add = '\nINSTALLED_APPS = ["django_tasks", *INSTALLED_APPS]\n'
            project.write("settings.py", (tmp_path / "settings.py").read_text() + add)
        project.write("shop/models.py", MODELS)
        (tmp_path / "shop/migrations/0001_initial.py").unlink()
        project.write("shop/plugins.py", PLUGINS)
        project.write("write.py", WRITE)
        project.write("read.py", READ)
        said = project.manage(
            "makemigrations -v0 shop", "migrate -v0", "shell -v0 -c 'import write'"
        )
        assert said.returncode == 0, said.stderr
        before = json.loads(said.stdout)
        assert before["tasks"] == [
            "modelsearch.tasks.insert_or_update_object_task",
            "wagtail.contrib.frontend_cache.tasks.purge_urls_from_cache_task",
            "wagtail.images.tasks.set_image_focal_point_task",
            "wagtail.tasks.delete_file_from_storage_task",
            "wagtail.tasks.update_reference_index_task",
        ]
        assert before["jobs"] == before["tasks"]
        assert before["rendition"] == [True, 0]
        assert (before["references"], before["focal point"]) == (0, False)
        file = tmp_path / before["path"]
        assert file.exists()
        assert not (tmp_path / "purged").exists()
        worked = project.manage("jobworker --burst")
        assert worked.returncode == 0, worked.stderr
        said = project.manage("shell -v0 -c 'import read'")
        assert said.returncode == 0, said.stderr
        after = json.loads(said.stdout)
        assert after == {
            "statuses": ["succeeded"],
            "references": 1,
            "focal point": [20, 15],
            "pages": ["Sourdough"],
        }
        assert not file.exists()
        assert (tmp_path / "purged").read_text() == "http://localhost/sourdough/"
