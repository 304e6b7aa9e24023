"""``path("jobs/", include("django_jobs.http.urls"))``: jobs over HTTP."""

from __future__ import annotations

from django.urls import path

from . import views

app_name = "django_jobs_http"
urlpatterns = [
    path("", views.jobs, name="jobs"),
    path("openapi.json", views.openapi, name="openapi"),
    path("<job_id>/", views.job, name="job"),
    path("<job_id>/cancel/", views.cancel, name="cancel"),
]
