"""The one setting, with its defaults."""

from __future__ import annotations

import pytest
from django.core.exceptions import ImproperlyConfigured
from pytest_django import Settings

from django_jobs.conf import Conf, conf, raw


def test_without_the_setting_the_defaults_hold(settings: Settings) -> None:
    settings.DJANGO_JOBS = {}
    assert conf() == Conf()
    assert conf().lease_seconds == 24
    assert conf().queues == {"default": {}}
    assert conf().retention == {
        "succeeded": "7d",
        "cancelled": "7d",
        "dead": None,
        "runs": None,
        "workflows": "7d",
    }


def test_a_project_may_leave_the_setting_out(settings: Settings) -> None:
    del settings.DJANGO_JOBS
    assert raw() == {}


def test_given_settings_apply_and_a_change_is_seen_at_once(settings: Settings) -> None:
    settings.DJANGO_JOBS = {"POLL_SECONDS": 7}
    assert conf().poll_seconds == 7
    settings.DJANGO_JOBS = {"POLL_SECONDS": 8}
    assert conf().poll_seconds == 8


def test_a_retention_for_one_status_leaves_the_defaults_of_the_others(settings: Settings) -> None:
    settings.DJANGO_JOBS = {"RETENTION": {"dead": "30d"}}
    assert conf().retention == {**Conf().retention, "dead": "30d"}


def test_unknown_keys_are_ignored(settings: Settings) -> None:
    settings.DJANGO_JOBS = {"NO_SUCH_KEY": 1, "poll_seconds": 9}
    assert conf() == Conf()


def test_a_heartbeat_is_a_quarter_of_the_lease_unless_it_is_set(settings: Settings) -> None:
    settings.DJANGO_JOBS = {"LEASE_SECONDS": 60}
    assert conf().beat_seconds == 15
    settings.DJANGO_JOBS = {"LEASE_SECONDS": 60, "HEARTBEAT_SECONDS": 5}
    assert conf().beat_seconds == 5


def test_a_setting_that_is_not_a_dict_is_refused(settings: Settings) -> None:
    settings.DJANGO_JOBS = ["QUEUES"]
    with pytest.raises(ImproperlyConfigured, match="must be a dict, not list"):
        raw()
    settings.DJANGO_JOBS = []
    with pytest.raises(ImproperlyConfigured, match="must be a dict, not list"):
        conf()
    settings.DJANGO_JOBS = None
    assert raw() == {}
