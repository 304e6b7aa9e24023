"""The metrics in the formats of Prometheus and OpenMetrics, through prometheus_client."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ImproperlyConfigured

from ..domain.histograms import BOUNDS
from ..logs import log_event
from ..models.database import DATABASE_ERRORS
from .families import FAMILIES, Family
from .gauges import Gauges, read_gauges
from .stored import NoMetrics

if TYPE_CHECKING:
    from prometheus_client import Metric


class JobsCollector:
    """The metrics of the jobs' database, as a collector of ``prometheus_client``. Register it in a
    registry of your own to serve it with your other metrics."""

    def describe(self) -> Iterable[Metric]:
        """The families without samples, so that registering it reads nothing."""
        return [_metric(family) for family in FAMILIES]

    def collect(self) -> Iterator[Metric]:
        """Read the stored numbers once, and yield all families. If the database does not answer,
        they have no samples: the other metrics of the registry are served nevertheless."""
        try:
            gauges = read_gauges()
        except (NoMetrics, *DATABASE_ERRORS) as error:
            text = " ".join(str(error).split())
            log_event("database_error", logging.WARNING, {"what": "read metrics", "error": text})
            gauges = {}
        return _families(gauges)


class _Gauges(JobsCollector):
    """Numbers that were read already."""

    def __init__(self, gauges: Gauges) -> None:
        self._gauges = gauges

    def collect(self) -> Iterator[Metric]:
        return _families(self._gauges)


def render(accept: str = "") -> tuple[str, bytes]:
    """The content type and the text of all metrics, in the format that the header ``Accept`` asks
    for. Raises :class:`NoMetrics`, :class:`ImproperlyConfigured` without prometheus_client, and the
    errors of the database."""
    client = prometheus_client()
    registry = client.CollectorRegistry()
    registry.register(_Gauges(read_gauges()))
    encode: Callable[[Any], bytes]
    encode, content_type = client.exposition.choose_encoder(accept)
    return content_type, encode(registry)


def prometheus_client() -> Any:
    """The package of that name. Raises :class:`ImproperlyConfigured`, which names the extra, if it
    is not installed."""
    try:
        import prometheus_client
    except ImportError as error:
        raise ImproperlyConfigured(
            "Metrics need prometheus_client: pip install 'django-jobs-postgres[metrics]'"
        ) from error
    return prometheus_client


def _metric(family: Family) -> Metric:
    name = family.name.removesuffix("_total")
    metric: Metric = prometheus_client().Metric(name, family.help, family.kind)
    return metric


def _families(gauges: Gauges) -> Iterator[Metric]:
    return (_with_samples(family, gauges) for family in FAMILIES)


def _with_samples(family: Family, gauges: Gauges) -> Metric:
    metric = _metric(family)
    for row in gauges.get(family.part, ()):
        value = row.get(family.value)
        if value is None:  # or older code stored the numbers without it
            continue
        labels = {label: str(row[label]) for label in family.labels}
        if family.kind == "histogram":
            _add_histogram(metric, labels, *value)
        else:
            metric.add_sample(family.name, labels, value)
    return metric


def _add_histogram(
    metric: Metric, labels: dict[str, str], counts: list[int], seconds: float
) -> None:
    bounds = (*map(str, BOUNDS), "+Inf")
    for bound, count in zip(bounds, accumulate(counts), strict=True):
        metric.add_sample(f"{metric.name}_bucket", {**labels, "le": bound}, count)
    metric.add_sample(f"{metric.name}_count", labels, sum(counts))
    metric.add_sample(f"{metric.name}_sum", labels, seconds)
