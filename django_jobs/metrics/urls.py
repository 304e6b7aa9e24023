"""``path("metrics/", include("django_jobs.metrics.urls"))``: the metrics for Prometheus."""

from __future__ import annotations

from django.urls import path

from .exposition import metrics

app_name = "django_jobs_metrics"
urlpatterns = [path("", metrics, name="metrics")]
