"""The URLs of a project whose clients enqueue over HTTP."""

from django.urls import include, path

urlpatterns = [path("api/<slug:site>/jobs/", include("django_jobs.http.urls"))]
