"""The handlers that this process knows, by name."""

from __future__ import annotations

import pytest

from django_jobs import UnknownJobType, job, registry
from tests.app import jobs, version_jobs
from tests.factories import declared


def test_the_handlers_of_installed_apps_are_discovered() -> None:
    assert registry.find("app.noop") is jobs.noop
    assert registry.get("app.add") is jobs.add
    assert registry.names() == sorted(registry.names())


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    assert registry.find("app.nope") is None
    for name in ("app.unheard_of", "nope"):
        with pytest.raises(
            UnknownJobType, match=f"^no job type is named '{name}'; known are: .*app.add"
        ):
            registry.get(name)


@pytest.mark.parametrize("name", ["app.nooop", "ap.noop", "App.noop"])
def test_a_misspelt_name_is_refused_with_the_right_one(name: str) -> None:
    with pytest.raises(
        UnknownJobType, match=f"'{name}'; did you mean 'app.noop'[?] known are: .*app.add"
    ):
        registry.get(name)


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


def test_a_module_imported_again_is_not_a_clash() -> None:
    def handler() -> None: ...

    with declared(handler, name="app.again"):
        second = job(name="app.again")(handler)
        assert registry.find("app.again") is second
        assert registry.clashes() == []


def test_an_alias_finds_its_job_type_but_is_not_listed() -> None:
    assert registry.find("app.old_name") is version_jobs.renamed
    assert registry.get("app.older_name") is version_jobs.renamed
    assert "app.old_name" not in registry.names()
    assert "app.present_name" in registry.names()


def test_every_name_of_a_row_has_its_version() -> None:
    versions = registry.versions()
    assert list(versions) == sorted(versions)
    assert versions["app.greet"] == 3
    assert versions["app.present_name"] == versions["app.old_name"] == 1
    assert set(registry.names()) < set(versions)


def test_all_names_of_a_job_type_are_its_family() -> None:
    family = ["app.present_name", "app.old_name", "app.older_name"]
    assert [registry.family(name) for name in family] == [family] * 3
    assert registry.family("app.nope") == ["app.nope"]


@pytest.mark.parametrize("taken", ["app.noop", "app.old_name"])
def test_an_alias_of_another_job_type_is_a_clash_and_is_not_moved(taken: str) -> None:
    def handler() -> None: ...

    theirs = registry.find(taken)
    with declared(handler, name="app.greedy", aliases=[taken]) as greedy:
        assert registry.find(taken) is theirs
        assert registry.find("app.greedy") is greedy
        ((name, _, refused),) = registry.clashes()
        assert (name, refused) == (taken, greedy.handler_path)
    assert registry.clashes() == []
    assert registry.find(taken) is theirs


def test_a_name_that_is_an_alias_of_another_is_a_clash() -> None:
    def handler() -> None: ...

    job(name="app.old_name")(handler)
    try:
        assert registry.find("app.old_name") is version_jobs.renamed
        assert [clash[0] for clash in registry.clashes()] == ["app.old_name"]
    finally:
        registry._clashes.clear()


def test_a_module_imported_again_replaces_its_aliases() -> None:
    def handler() -> None: ...

    with declared(handler, name="app.again", aliases=["app.first", "app.second"]):
        second = job(name="app.again", aliases=["app.second"])(handler)
        assert registry.find("app.second") is second
        assert registry.find("app.first") is None
        assert registry.clashes() == []
    assert registry.find("app.second") is None


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
def test_a_handler_is_named_by_its_app_and_function(module: str, name: str) -> None:
    assert registry.default_name(module, "f") == name


def test_a_test_takes_no_name_of_the_app() -> None:
    with pytest.raises(AssertionError, match=r"app\.noop is taken"), declared(len, name="app.noop"):
        pass
    assert registry.find("app.noop") is not None
