"""System checks: every way to misconfigure is told, with an id and a hint."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from django.core.checks import CheckMessage, run_checks
from django.db import connection
from pytest_django import DjangoAssertNumQueries, Settings

from django_jobs import Backoff, job, registry, schedule
from django_jobs.checks import TAG
from django_jobs.checks import settings as checks_settings
from django_jobs.checks.settings import check_run_logs
from django_jobs.conf import KEYS
from tests.factories import declared


def found(settings: Settings, **jobs: Any) -> list[CheckMessage]:
    """What the checks say of ``DJANGO_JOBS`` with these keys."""
    settings.DJANGO_JOBS = {"QUEUES": queues(), "RESOURCES": resources(), **jobs}
    return run_checks(tags=[TAG])


def resources() -> dict[str, Any]:
    """All resources that the handlers in reach name."""
    return {name: {} for job_type in registry.names() for name in registry.get(job_type).resources}


def queues(**options: Any) -> dict[str, Any]:
    """All queues that the handlers in reach name, with the given options."""
    named = {registry.get(name).queue for name in registry.names()}
    return {**{name: {} for name in named}, "default": {}, **options}


def everything() -> list[CheckMessage]:
    """What ``check --deploy`` says."""
    return run_checks(tags=[TAG], include_deployment_checks=True)


def ids(messages: list[CheckMessage]) -> list[str]:
    return [str(message.id).removeprefix("django_jobs.") for message in messages]


def only(messages: list[CheckMessage]) -> CheckMessage:
    (message,) = messages
    assert message.hint
    return message


@pytest.mark.django_db
def test_the_settings_of_the_tests_pass_all_checks() -> None:
    messages = run_checks(databases=["default"])
    assert [message for message in messages if message.is_serious()] == []


def test_no_setting_at_all_is_fine_but_for_the_queues_of_the_handlers(settings: Settings) -> None:
    settings.DJANGO_JOBS = {}
    assert set(ids(run_checks(tags=[TAG]))) <= {"W001", "W002"}


def test_another_database_vendor_is_reported_without_a_connection(settings: Settings) -> None:
    settings.DATABASES["lite"] = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
    try:
        from django.db import connections

        connections.settings = connections.configure_settings(settings.DATABASES)
        message = only(found(settings, DATABASE="lite"))
        assert ids([message]) == ["E001"]
        assert "is sqlite" in message.msg
        assert message.hint == (
            'Set the ENGINE of DATABASES["lite"] to "django.db.backends.postgresql", or name '
            'another alias in DJANGO_JOBS["DATABASE"].'
        )
    finally:
        del settings.DATABASES["lite"]
        connections.settings = connections.configure_settings(settings.DATABASES)


def test_an_unknown_database_alias_is_reported_with_the_known_ones(settings: Settings) -> None:
    message = only(found(settings, DATABASE="jobs"))
    assert ids([message]) == ["E008"]
    assert "'default'" in str(message.hint)


@pytest.mark.parametrize(
    "key, meant",
    [
        ("LEASE_SECOND", "LEASE_SECONDS"),
        ("lease_seconds", "LEASE_SECONDS"),
        ("QUEUE", "QUEUES"),
        ("RETENTIONS", "RETENTION"),
    ],
)
def test_an_unknown_key_is_reported_with_a_similar_one(
    settings: Settings, key: str, meant: str
) -> None:
    message = only(found(settings, **{key: 1}))
    assert ids([message]) == ["E002"]
    assert f"Did you mean '{meant}'?" in str(message.hint)


def test_an_unknown_key_is_reported_with_all_known_ones(settings: Settings) -> None:
    message = only(found(settings, BROKER_URL="redis://"))
    assert "Did you mean" not in str(message.hint)
    known = "ADMIN_SCOPE, ADMIN_STATEMENT_TIMEOUT, ALERTS, CANCEL_GRACE_SECONDS, CHECK_ANNOTATIONS,"
    assert f"Known are: {known}" in str(message.hint)


def test_an_unknown_option_of_a_queue_is_reported(settings: Settings) -> None:
    message = only(found(settings, QUEUES=queues(default={"max_concurency": 3})))
    assert ids([message]) == ["E002"]
    assert '["QUEUES"]["default"]' in message.msg
    assert "Did you mean 'max_concurrency'?" in str(message.hint)


def test_a_lease_shorter_than_three_heartbeats_is_reported(settings: Settings) -> None:
    assert found(settings, LEASE_SECONDS=30, HEARTBEAT_SECONDS=10) == []
    message = only(found(settings, LEASE_SECONDS=30, HEARTBEAT_SECONDS=11))
    assert ids([message]) == ["E003"]
    assert "30 s is shorter than 3 heartbeats of 11 s" in message.msg


def test_time_zones_are_needed(settings: Settings) -> None:
    settings.USE_TZ = False
    assert ids([only(found(settings))]) == ["E004"]


def test_a_job_type_without_a_time_out_is_named_where_it_is_deployed(settings: Settings) -> None:
    def named() -> str:
        return "".join(one.msg for one in everything() if one.id == "django_jobs.I001")

    def patient() -> None: ...

    queue, quick = "of_checks", {"timeout": 5}
    with declared(patient, name="aa.patient", queue=queue):
        assert found(settings) == []
        assert "aa.patient" in named()
        found(settings, QUEUES=queues(**{queue: quick}))
        assert "aa.patient" not in named()
    for limit in (quick, {"silence_timeout": 5}):
        with declared(patient, name="aa.patient", queue=queue, **limit):
            found(settings)
            assert "aa.patient" not in named()
    settings.DJANGO_JOBS = {"QUEUES": dict.fromkeys(queues(), quick)}
    assert not named()


def test_running_at_once_is_reported_where_it_is_deployed(settings: Settings) -> None:
    def deployed() -> list[CheckMessage]:
        return [one for one in everything() if one.id != f"{TAG}.I001"]

    assert (found(settings), deployed()) == ([], [])
    assert found(settings, IMMEDIATE=True) == []
    message = only(deployed())
    assert ids([message]) == ["W005"]
    assert 'DJANGO_JOBS["IMMEDIATE"] is on' in message.msg
    settings.DJANGO_JOBS = ["IMMEDIATE"]
    assert ids(deployed()) == ["E007"]


def test_two_handlers_of_one_name_are_reported_with_both_paths(settings: Settings) -> None:
    def one() -> None: ...
    def other() -> None: ...

    with declared(one, name="app.same"):
        job(name="app.same")(other)
        message = only(found(settings))
    assert ids([message]) == ["E005"]
    assert "one" in message.msg
    assert "other" in message.msg
    assert found(settings) == []


def test_two_handlers_of_one_name_in_a_module_are_reported_and_a_reload_is_not(
    settings: Settings,
) -> None:
    one = "from django_jobs import job\n@job(name='app.one')\ndef one(): ...\n"
    module: dict[str, Any] = {"__name__": "app.twice"}
    for text, times in ((one, 2), (f"{one}@job(name='app.one')\ndef one(other): ...\n", 1)):
        for _ in range(times):
            exec(compile(text, "twice.py", "exec"), module)
        messages = found(settings)
        registry.unregister("app.one")
        assert ids(messages) == (["E005"] if times == 1 else [])
    assert "'app.one' is declared twice: by app.twice.one and by app.twice.one" in messages[0].msg


def test_an_alias_of_another_handler_is_reported(settings: Settings) -> None:
    def handler() -> None: ...

    with declared(handler, name="app.greedy", aliases=["app.noop"]):
        message = only(found(settings))
    assert ids([message]) == ["E005"]
    assert "'app.noop' is declared twice" in message.msg
    assert "or drop the alias" in str(message.hint)


def test_an_unconfigured_queue_of_a_handler_is_a_warning(settings: Settings) -> None:
    def handler() -> None: ...

    configured = queues()
    with declared(handler, name="app.lonely", queue="nightly"):
        message = only(found(settings, QUEUES=configured))
    assert ids([message]) == ["W001"]
    assert not message.is_serious()
    assert "'nightly' is not in" in message.msg
    assert message.msg.endswith("the job type app.lonely.")
    assert 'Add "nightly": {} there' in str(message.hint)


def test_the_handlers_of_one_unknown_queue_are_one_warning(settings: Settings) -> None:
    def handler() -> None: ...

    configured = queues()
    with (
        declared(handler, name="app.one", queue="nightly"),
        declared(handler, name="app.two", queue="nightly"),
        declared(handler, name="app.three", queue="weekly"),
    ):
        messages = found(settings, QUEUES=configured)
    assert ids(messages) == ["W001", "W001"]
    assert "the job types app.one, app.two" in messages[0].msg
    assert "'weekly'" in messages[1].msg


def test_an_unconfigured_queue_of_schedules_is_a_warning(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def handler() -> None: ...

    monkeypatch.setattr(registry, "_schedules", {})
    configured = queues()
    schedule("every day", "app.noop", every=86_400, queue="nightly")
    schedule("every hour", "app.noop", every=3_600)
    message = only(found(settings, QUEUES=configured))
    assert ids([message]) == ["W001"]
    assert "'nightly' is not in" in message.msg
    assert message.msg.endswith("It is used by the schedule every day.")
    schedule("every week", "app.noop", every=604_800, queue="nightly")
    with declared(handler, name="app.lonely", queue="nightly"):
        message = only(found(settings, QUEUES=configured))
    assert message.msg.endswith("the job type app.lonely and the schedules every day, every week.")
    assert found(settings, QUEUES={**configured, "nightly": {}}) == []


def test_a_resource_whose_rate_a_job_type_declares_is_no_warning(settings: Settings) -> None:
    def handler() -> None: ...

    configured = resources()
    with declared(handler, name="app.limited", resources="app.limited"):
        registry.note_rate("app.limited", "6/m")
        assert found(settings, RESOURCES=configured) == []
    with declared(handler, name="app.limited", resources="app.limited"):  # of another project
        assert ids(found(settings, RESOURCES=configured)) == ["W002"]


def test_an_unconfigured_resource_of_handlers_is_a_warning(settings: Settings) -> None:
    def handler() -> None: ...

    configured = resources()
    with (
        declared(handler, name="app.one", resources="nightly"),
        declared(handler, name="app.two", resources=["nightly", *configured]),
    ):
        message = only(found(settings, RESOURCES=configured))
    assert ids([message]) == ["W002"]
    assert not message.is_serious()
    assert message.msg == (
        "The resource 'nightly' is not in DJANGO_JOBS[\"RESOURCES\"]. It is used by the job types "
        "app.one, app.two."
    )
    assert 'Add "nightly": {} there' in str(message.hint)


def test_hints_show_the_right_code_and_no_file_of_the_repository(settings: Settings) -> None:
    wrong = {
        **{key: values[0] for key, values in BAD_VALUES.items()},
        **{
            key: {"default": {option: values[0] for option, values in options.items()}}
            for key, options in BAD_OPTIONS.items()
        },
    }
    messages = found(settings, **wrong)
    assert len(messages) == len(BAD_VALUES.keys() - BAD_OPTIONS) + sum(
        map(len, BAD_OPTIONS.values())
    )
    for message in messages:
        assert str(message.hint).startswith("Write, for example, ")
        assert "docs/" not in str(message.hint)


def test_a_number_as_backoff_is_refused_with_what_to_write(settings: Settings) -> None:
    message = only(found(settings, QUEUES=queues(default={"backoff": 5})))
    assert message.msg == 'DJANGO_JOBS["QUEUES"]["default"]["backoff"] is not a Backoff: 5.'
    assert "Backoff.fixed(5)" in str(message.hint)


@pytest.mark.parametrize("value", [["default"], "default", 7, [], (), "", 0])
def test_a_setting_that_is_not_a_dict_is_reported(settings: Settings, value: Any) -> None:
    settings.DJANGO_JOBS = value
    assert ids(run_checks(tags=[TAG])) == ["E007"]
    assert checks_settings.check_server(databases=["default"]) == []


@pytest.mark.parametrize("token", ["hush\n", b"hush"])
def test_a_token_that_no_request_can_send_is_refused_and_not_shown(
    settings: Settings, token: Any
) -> None:
    settings.DJANGO_JOBS = {"METRICS_TOKEN": token}
    (message,) = run_checks(tags=[TAG])
    assert message.id == "django_jobs.E007"
    assert "without spaces and line breaks around it: (a secret)." in message.msg
    assert "hush" not in str(message)


SIGNS = "whsec_" + 8 * "AAAA"
BAD_VALUES: dict[str, list[Any]] = {
    "DATABASE": [None, 7],
    "METRICS_TOKEN": [None, 7, b"token", "token\n", " token"],
    "ISSUE_URL": [None, 7, "javascript:alert({title})", "https://example.com/new", "/new?{title}"],
    "QUEUES": [None, ["default"], {"": {}}, {"a b": {}}, {7: {}}, {"q" * 101: {}}, {"ok": None}],
    "RESOURCES": [None, ["stripe"], {"": {}}, {"a b": {}}, {7: {}}, {"ok": None}, {"ok": 5}],
    "ALERTS": [None, "ops", {"": {"to": "json.dumps"}}, {"ok": 3}, {"ok": {}}],
    "TENANTS": [None, "acme", {"": {}}, {"a\n": {}}, {7: {}}, {"t" * 101: {}}, {"ok": 3}],
    "LEASE_SECONDS": [0, -1, "30", True, None, float("nan"), float("inf")],
    "HEARTBEAT_SECONDS": [0, "1", float("nan")],
    "ADMIN_STATEMENT_TIMEOUT": [0, "3s", True],
    "POLL_SECONDS": [0, None, "fast"],
    "SWEEP_SECONDS": [-5, None],
    "MAX_PAYLOAD_BYTES": [0, 1.5, "1MB", True, 2**40],
    "MAX_RESULT_BYTES": [0, None],
    "CODE_VERSION": [None, 12, "v" * 101],
    "RETENTION": [
        None,
        "7d",
        {"succeeded": "a week"},
        {"ready": "7d"},
        {"dead": -1},
        {"runs": {"age": "7d"}},
    ],
    "HISTORY": [None, "day", {"partition": "hour"}, {"partitions": "day"}],
    "CANCEL_GRACE_SECONDS": [-1, None, "5", True, float("nan"), float("inf")],
    "QUARANTINE": [
        *(None, 10, {"crash": 3}, {"crashes": 0}, {"crashes": True}, {"crashes": 2.5}),
        *({"seconds": 0}, {"seconds": None}, {"seconds": "10m"}, {7: 7}),
    ],
    "IMMEDIATE": [None, 0, 1, "no"],
    "SCHEDULES": [None, 0, 1, "no"],
    "REDACT_KEYS": ["password", None, [1]],
    "CHECK_ANNOTATIONS": ["yes", 1],
    "TOTALS": [None, 0, "no"],
    "RUNSERVER": ["yes", 1],
    "RUN_COST": ["yes", 1],
    "COUNT_QUERIES": ["yes", 1],
    "RUN_LOGS": [
        *("LOUD", True, [], {"lines": 0}, {"lines": "5"}, {"bytes": 2**30}, {"size": 5}),
        *({"level": None}, {"level": "loud"}, 1.5),
    ],
    "STORAGE": [
        *("default", [], {"alias": "nowhere"}, {"alias": []}, {"name": "default"}),
        *({"above_bytes": 0}, {"above_bytes": "9"}),
    ],
    "HTTP": [
        *([], "app.add", {"types": []}, {"job_types": "app.add"}, {"job_types": [1]}),
        *({"authorize": 1}, {"callback_hosts": ["hooks.example.com"]}),
        *({"callback_hosts": {host: SIGNS}} for host in ("", 1, "https://a.com", "A.com", "a b")),
        *({"callback_hosts": {"a.com": secret}} for secret in ("", "x", 1, "whsec_AAAA")),
    ],
    "HOOKS": ["mysite.hooks.locale", None, [print], {"mysite.hooks.locale"}],
    "ADMIN_SCOPE": [None, 7, ["mysite.jobs.scope"]],
    "LINKS": [None, 7, {}, ["x"], [{"label": "x"}], [{"label": "x", "url": "javascript:x"}]],
}
BAD_OPTIONS: dict[str, dict[str, list[Any]]] = {
    "QUEUES": {
        "max_concurrency": [0, -1, 1.5, "3", True],
        "max_backlog": [0, "many"],
        "slo_seconds": [0, -1, "30", True],
        "slo_target": [0, 1, 99, "0.99"],
        "slo_since": ["blocked", True, ["ready"]],
        "on_full": ["drop", True, ["raise"]],
        "strict": [1, "yes"],
        "priority_weight": [-1, "60", float("nan"), 1e12],
        "max_attempts": [0, 2**15, "5"],
        "backoff": [
            5,
            {"curve": "cubic", "base": 1},
            {"curve": "fixed"},
            {"curve": "fixed", "base": -1},
        ],
        "timeout": [0, "30", float("inf"), 1e8],
        "retention": [
            *("7d", {"succeeded": "a week"}, {"running": "1d"}, {"succeeded": {"number": 5}}),
            *({"dead": {"number": 0}}, {"dead": {"number": "5"}}, {"dead": {"size": 5}}),
        ],
    },
    "RESOURCES": {
        "max_concurrency": [0, -1, 1.5, "3", True],
        "rate": [0, "50", 50, "0/s", "5/0s", "-5/s", "5/year", ["5/s"], ""],
        "burst": [0, 1.5, "many"],
        "breaker": [
            *(20, {"failure": 20}, {}, {"failures": 0}, {"failures": None}, {"failures": 2.5}),
            *({"failures": 2, "window": 0}, {"failures": 2, "open_for": "30s"}, {7: 7}),
        ],
        "retry_budget": [1.1, -0.1, "20%", True, float("nan")],
        "max_waiting": [0, -1, 1.5, "3", True],
    },
    "TENANTS": {
        "weight": [0, -1, "3", float("nan"), float("inf"), True],
        "max_concurrency": [0, "3"],
        "max_waiting": [0, "3"],
        "slo_seconds": [0, "30"],
        "slo_target": [1, "0.99"],
        "rate": [50, "0/s", "5/x"],
        "burst": [0, "3"],
    },
    "ALERTS": {
        "to": [7, "", "mailto:", "https://", "no.such.path"],
        "on": [[], "dead_jobs", ["dead"]],
        "at_most_per_hour": [0, 3_601, "3"],
    },
}
REQUIRED = {"ALERTS": {"to": "json.dumps"}}


def test_the_bad_values_of_these_tests_are_of_all_keys() -> None:
    assert {key: set(options) for key, options in BAD_OPTIONS.items()} == {
        key: set(section.rules) for key, section in checks_settings.SECTIONS.items()
    }
    assert set(BAD_VALUES) == set(KEYS) == set(checks_settings.RULES)


@pytest.mark.parametrize(
    "key, value", [(key, value) for key, values in BAD_VALUES.items() for value in values]
)
def test_an_invalid_value_is_reported_without_a_crash(
    settings: Settings, key: str, value: Any
) -> None:
    messages = found(settings, **{key: value})
    assert set(ids(messages)) == {"E007"}
    assert all(key in message.msg and message.hint for message in messages)


@pytest.mark.parametrize(
    "key, option, value",
    [
        (key, option, value)
        for key, options in BAD_OPTIONS.items()
        for option, values in options.items()
        for value in values
    ],
)
def test_an_invalid_option_of_a_name_is_reported(
    settings: Settings, key: str, option: str, value: Any
) -> None:
    message = only(found(settings, **{key: {"default": {**REQUIRED.get(key, {}), option: value}}}))
    assert ids([message]) == ["E007"]
    assert f'DJANGO_JOBS["{key}"]["default"]["{option}"]' in message.msg


def test_valid_values_are_not_reported(settings: Settings) -> None:
    options = {
        "max_concurrency": 3,
        "max_backlog": 10,
        "on_full": "drop_lowest",
        "slo_since": "ready",
        "strict": True,
        "priority_weight": 0,
        "max_attempts": 1,
        "backoff": Backoff.fixed(3),
        "timeout": 0.5,
        "retention": {"succeeded": "1d", "dead": {"age": None, "number": 100}},
    }
    chosen = queues(default=options, other={"backoff": Backoff.fixed(3).as_json(), "timeout": None})
    assert (
        found(
            settings,
            QUEUES=chosen,
            RETENTION={"dead": 3600, "runs": "1d"},
            HISTORY={"partition": "week"},
            REDACT_KEYS={"pin"},
        )
        == []
    )
    assert found(settings, CANCEL_GRACE_SECONDS=0, QUARANTINE={"crashes": None}) == []
    assert found(settings, QUARANTINE={"crashes": 3, "seconds": 0.5}) == []


def test_valid_limits_are_not_reported(settings: Settings) -> None:
    limits = {
        "max_concurrency": 1,
        "rate": "10/5s",
        "burst": 1,
        "breaker": {"failures": 20, "window": 60, "open_for": 30},
        "retry_budget": 0,
    }
    chosen = {**resources(), "a": limits, "b": {"breaker": {"failures": 1}}, "c": {"rate": None}}
    assert found(settings, RESOURCES=chosen) == []
    limits = {"weight": 0.5, "max_concurrency": 1, "rate": "10/5s", "burst": 1}
    tenants = {"Zoë & co": limits, "7": {}}
    assert found(settings, TENANTS=tenants) == []


def test_an_invalid_limit_is_reported_with_the_reason(settings: Settings) -> None:
    def problem(**options: Any) -> str:
        return only(found(settings, RESOURCES={"stripe": options})).msg

    where = 'DJANGO_JOBS["RESOURCES"]["stripe"]'
    reason = "'0/s' lets nothing through: a rate is at least 0.0001"
    assert problem(rate="0/s") == f"{where}[\"rate\"] is wrong ({reason}): '0/s'."
    assert problem(breaker={"failures": 0}) == (
        f'{where}["breaker"] is wrong ("failures" is not a whole number from 1 to '
        "2,147,483,647): {'failures': 0}."
    )
    assert 'failures" is missing, the number at which it opens' in problem(breaker={"window": 5})
    assert "not 'failure')" in problem(breaker={"failure": 20})
    assert problem(burst=5) == f'{where}["burst"] is wrong (it needs a "rate"): 5.'
    assert problem(retry_budget=1.1) == f'{where}["retry_budget"] is not a number from 0 to 1: 1.1.'


@pytest.mark.parametrize("key", ["QUEUES", "TENANTS"])
def test_a_target_without_seconds_is_reported(settings: Settings, key: str) -> None:
    chosen = {"QUEUES": queues(), key: {"default": {"slo_target": 0.999}}}
    message = only(found(settings, **chosen))
    where = f'DJANGO_JOBS["{key}"]["default"]["slo_target"]'
    assert message.msg == f'{where} is wrong (it needs a "slo_seconds"): 0.999.'


def test_an_unknown_option_of_a_resource_and_of_a_tenant_is_reported(settings: Settings) -> None:
    message = only(found(settings, RESOURCES={**resources(), "a": {"max_concurency": 3}}))
    assert ids([message]) == ["E002"]
    assert "Did you mean 'max_concurrency'?" in str(message.hint)
    message = only(found(settings, TENANTS={"acme": {"breaker": {"failures": 3}}}))
    assert ids([message]) == ["E002"]
    assert (
        "Known are: burst, max_concurrency, max_waiting, rate, slo_seconds, slo_target, weight."
        in str(message.hint)
    )


@pytest.mark.django_db
def test_the_server_is_queried_only_if_its_database_is_checked(
    django_assert_num_queries: DjangoAssertNumQueries,
) -> None:
    with django_assert_num_queries(0):
        assert checks_settings.check_server() == []
        assert checks_settings.check_server(databases=["other"]) == []
    with django_assert_num_queries(1):
        assert checks_settings.check_server(databases=["default"]) == []


@pytest.mark.django_db
def test_a_server_that_is_too_old_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    major = connection.cursor().connection.info.server_version // 10_000
    monkeypatch.setattr(checks_settings, "OLDEST_POSTGRESQL", major + 1)
    message = only(checks_settings.check_server(databases=["default"]))
    assert ids([message]) == ["E009"]
    assert f"is PostgreSQL {major}" in message.msg


# Hooks


def test_hooks_that_can_be_used_pass(settings: Settings) -> None:
    assert found(settings, HOOKS=["tests.app.hooks.locale", "tests.app.hooks.tenants"]) == []


@pytest.mark.parametrize(
    "path, problem",
    [
        ("nowhere.hooks.locale", "cannot be imported: ModuleNotFoundError: No module named"),
        ("tests.app.hooks.locael", "cannot be imported: ImportError: Module "),
        ("locale", "cannot be imported: ImportError: locale doesn't look like a module path"),
        ("tests.app.hooks.seen", "is a list, which cannot be called"),
        ("tests.app.hooks.undecorated", "is a generator function without @contextmanager"),
        ("tests.app.hooks.asynchronous", "is async; a hook is a plain function"),
        ("tests.app.hook_jobs.context", "does not take one argument, the event"),
    ],
)
def test_a_hook_that_cannot_be_used_is_reported(
    settings: Settings, path: str, problem: str
) -> None:
    message = only(found(settings, HOOKS=[path]))
    assert ids([message]) == ["E019"]
    assert message.msg.startswith(f'The hook {path!r} in DJANGO_JOBS["HOOKS"] {problem}')


@pytest.mark.parametrize(
    ("alerts", "text"),
    [
        ("https://hooks.example.com/s3cret", 'DJANGO_JOBS["ALERTS"] is not a dict: (a secret).'),
        ({"ops": "https://hooks.example.com/s3cret"}, "is not a dict of options: (a secret)."),
        ({"ops": {}}, 'DJANGO_JOBS["ALERTS"]["ops"] is without a "to": [].'),
        ({"ops": {"to": "https://u:s3cret@example.com/"}}, "is not an address of the web"),
        ({"ops": {"to": "https://[s3cret"}}, "is not an address of the web: (a secret)."),
        ({"ops": {"to": "mailto:s3cret"}}, "is wrong (one of its mail addresses is not valid)"),
        ({"ops": {"to": "s3cret.no"}}, "is a path that cannot be imported (ModuleNotFoundError)"),
        ({"ops": {"to": "json.__name__"}}, "(its function is a str, which cannot be called)"),
        ({"ops": {"to": "asyncio.wait_for"}}, "(its function is async; write a plain function)"),
        ({"ops": {"to": "os.getpid"}}, "(its function does not take one argument, the message)"),
        ({"ops": {"to": "json.dumps", "on": ["dead"]}}, "is wrong (no situation is 'dead')"),
        ({"ops": {"to": "json.dumps", "on": "dead_jobs"}}, "is not a list of situations"),
        ({"ops": {"to": "json.dumps", "at_most_per_hour": 0}}, "is not a whole number from 1"),
        ({"": {"to": "json.dumps"}}, "is not text of 1 to 100 characters"),
    ],
)
def test_a_wrong_alert_is_reported_without_its_address(
    settings: Settings, alerts: Any, text: str
) -> None:
    message = only(found(settings, ALERTS=alerts))
    assert (message.id, text in message.msg) == ("django_jobs.E007", True), message.msg
    assert "s3cret" not in f"{message.msg} {message.hint}"


def test_an_unknown_key_of_the_retention_names_all_that_it_may_have(settings: Settings) -> None:
    message = only(found(settings, RETENTION={"run": "90d", "workflows": "7d"}))
    keys = "its keys may be cancelled, dead, runs, succeeded, workflows, not 'run'"
    assert keys in message.msg


def test_alerts_to_all_kinds_of_receivers_are_fine(settings: Settings) -> None:
    receivers = ("mailto:a@example.com, b@example.com", "https://example.com/x", "json.dumps")
    alerts = {to: {"to": to, "on": ("dead_jobs",), "at_most_per_hour": 5} for to in receivers}
    assert found(settings, ALERTS=alerts) == []


@pytest.mark.parametrize(
    "logging_setting, level, missing",
    [
        ({}, logging.WARNING, True),
        ({"loggers": {"shop": {"level": "ERROR"}, "other": {}}}, logging.WARNING, True),
        ({"loggers": {"shop": {"level": "DEBUG"}}}, logging.WARNING, False),
        ({}, logging.INFO, False),
    ],
)
def test_lines_of_runs_that_no_logger_passes_on_are_reported(
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    logging_setting: dict[str, Any],
    level: int,
    missing: bool,
) -> None:
    settings.LOGGING = logging_setting
    monkeypatch.setattr(logging.getLogger(), "level", level)
    settings.DJANGO_JOBS = {"RUN_LOGS": "INFO"}
    assert ids(check_run_logs()) == ["W007"] * missing
    settings.DJANGO_JOBS = {}
    assert check_run_logs() == []
