"""The address of the page."""

from django.urls import include, path

urlpatterns = [path("metrics/", include("django_jobs.metrics.urls"))]
