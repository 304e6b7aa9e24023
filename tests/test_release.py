"""The rules by which ``tox -e release`` compares version, changelog and tag."""

from __future__ import annotations

import pytest

from tests.release import disagreements

CHANGELOG = """# Changelog

## [Unreleased]
{unreleased}
## [1.2.0] - 2026-11-20

- A change.

## [1.1.0] - 2026-10-01
"""
RELEASED = CHANGELOG.format(unreleased="")
AHEAD = CHANGELOG.format(unreleased="\n- Another change.\n")


@pytest.mark.parametrize(
    ("changelog", "tags", "others"),
    [
        (RELEASED, ["v1.2.0"], ["v1.1.0"]),
        (RELEASED, [], ["v1.1.0"]),
        (AHEAD, [], ["v1.1.0"]),
    ],
    ids=["tagged", "not tagged yet", "under way"],
)
def test_a_version_with_its_section_and_its_tag_agrees(
    changelog: str, tags: list[str], others: list[str]
) -> None:
    assert disagreements("1.2.0", changelog, tags, others) == []


@pytest.mark.parametrize(
    ("version", "changelog", "tags", "others", "problem"),
    [
        ("1.3.0", RELEASED, [], [], "CHANGELOG.md has no section [1.3.0]"),
        (
            "1.2.0",
            RELEASED.replace(" - 2026-11-20", ""),
            [],
            [],
            "the section [1.2.0] of CHANGELOG.md has no date",
        ),
        (
            "1.2.0",
            RELEASED,
            ["v1.1.0"],
            [],
            "this commit has the tag v1.1.0, and the version is 1.2.0",
        ),
        (
            "1.2.0",
            RELEASED,
            [],
            ["v1.2.0"],
            "v1.2.0 is the tag of another commit: raise the version",
        ),
        (
            "1.2.0",
            AHEAD,
            ["v1.2.0"],
            [],
            "this commit is v1.2.0, and CHANGELOG.md has entries under [Unreleased]",
        ),
    ],
)
def test_a_version_that_something_contradicts_is_not_released(
    version: str, changelog: str, tags: list[str], others: list[str], problem: str
) -> None:
    assert disagreements(version, changelog, tags, others) == [problem]
