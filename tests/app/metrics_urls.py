"""The URLs of a project that serves its metrics."""

from django.urls import include, path

urlpatterns = [path("ops/", include([path("metrics/", include("django_jobs.metrics.urls"))]))]
