"""The handlers that this process knows, by name."""

from __future__ import annotations

import pytest

from django_jobs import UnknownJobType, job, registry
from tests.app import jobs
from tests.factories import declared


def test_the_handlers_of_installed_apps_are_found_by_themselves() -> None:
    assert registry.find("app.noop") is jobs.noop
    assert registry.get("app.add") is jobs.add
    assert registry.names() == sorted(registry.names())


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    assert registry.find("app.nope") is None
    with pytest.raises(
        UnknownJobType, match=r"no job type is named 'app.nope'; known are: .*app.add"
    ):
        registry.get("app.nope")


def test_a_dotted_path_is_a_name_like_any_other_and_is_never_imported() -> None:
    for path in ("os.system", "subprocess.check_output", "tests.app.jobs.noop"):
        with pytest.raises(UnknownJobType):
            registry.get(path)


def test_the_first_of_a_name_keeps_it_and_the_clash_is_remembered() -> None:
    def one() -> None: ...
    def other() -> None: ...

    with declared(one, name="app.same") as first:
        job(name="app.same")(other)
        assert registry.find("app.same") is first
        ((name, kept, refused),) = registry.clashes()
        assert name == "app.same"
        assert kept.endswith("one")
        assert refused.endswith("other")
    assert registry.find("app.same") is None
    assert registry.clashes() == []


def test_a_module_that_is_imported_again_is_no_clash() -> None:
    def handler() -> None: ...

    with declared(handler, name="app.again"):
        second = job(name="app.again")(handler)
        assert registry.find("app.again") is second
        assert registry.clashes() == []


@pytest.mark.parametrize(
    "module, name",
    [
        ("tests.app.jobs", "app.f"),
        ("tests.app.jobs.emails", "app.f"),
        ("django.contrib.auth.jobs", "auth.f"),
        ("somewhere.else.entirely", "else.f"),
        ("script", "script.f"),
    ],
)
def test_the_name_of_a_handler_is_that_of_its_app_and_its_own(module: str, name: str) -> None:
    assert registry.default_name(module, "f") == name
