"""The translations are complete, and compiled as they are written."""

from __future__ import annotations

import ast
import gettext
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from django.utils import translation

PACKAGE = Path(__file__).resolve().parent.parent / "django_jobs"
GERMAN = PACKAGE / "locale" / "de" / "LC_MESSAGES"
PLACEHOLDER = re.compile(r"%\(\w+\)s|\{\w*\}")
SETTINGS = "DJANGO_SETTINGS_MODULE"
LINE = re.compile(r'(msgctxt|msgid_plural|msgid|msgstr(?:\[\d\])?) (".*")')

Entry = dict[str, str]


def entries(text: str) -> list[Entry]:
    """The messages of a file of translations."""
    found = []
    for block in text.split("\n\n")[1:]:
        entry: Entry = {}
        name = ""
        for line in block.splitlines():
            if start := LINE.fullmatch(line):
                name = start[1]
                entry[name] = ast.literal_eval(start[2])
            elif line.startswith('"') and name:
                entry[name] += ast.literal_eval(line)
        if entry.get("msgid"):
            found.append(entry)
    return found


def written() -> list[Entry]:
    return entries((GERMAN / "django.po").read_text())


def texts(entry: Entry) -> tuple[str, ...]:
    return tuple(entry.get(name, "") for name in ("msgctxt", "msgid", "msgid_plural"))


@pytest.mark.skipif(shutil.which("xgettext") is None, reason="gettext is not installed")
def test_each_text_of_the_package_has_a_german_one(tmp_path: Path) -> None:
    copy = tmp_path / "django_jobs"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("locale", "__pycache__"))
    (copy / "locale").mkdir()
    command = [sys.executable, "-m", "django", "makemessages", "--locale=de", "--no-location"]
    # The settings of the tests are not importable from there, where the package is installed.
    without = {name: value for name, value in os.environ.items() if name != SETTINGS}
    subprocess.run(command, cwd=copy, env=without, check=True, capture_output=True)
    now = entries((copy / "locale/de/LC_MESSAGES/django.po").read_text())
    there = {texts(entry) for entry in written()}
    assert [entry["msgid"] for entry in now if texts(entry) not in there] == []
    assert there - {texts(entry) for entry in now} == set()


def test_texts_are_translated_under_names_that_makemessages_knows() -> None:
    unknown = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == "django.utils.translation":
                unknown += [f"{path.name}: {one.asname}" for one in node.names if one.asname]
    assert [one for one in unknown if not one.endswith(": _")] == []
    assert unknown


def test_no_translation_is_empty_or_unsure() -> None:
    assert "fuzzy" not in (GERMAN / "django.po").read_text()
    for entry in written():
        ours = [value for name, value in entry.items() if name.startswith("msgstr")]
        assert len(ours) == (2 if "msgid_plural" in entry else 1), entry
        assert all(ours), entry


def test_translations_have_the_values_of_their_texts() -> None:
    for entry in written():
        wanted = set(PLACEHOLDER.findall(entry.get("msgid_plural", entry["msgid"])))
        ours = [value for name, value in entry.items() if name.startswith("msgstr")]
        assert set(PLACEHOLDER.findall(ours[-1])) == wanted, entry


def test_the_compiled_translations_are_those_that_are_written() -> None:
    with (GERMAN / "django.mo").open("rb") as file:
        compiled = gettext.GNUTranslations(file)
    for entry in written():
        match texts(entry):
            case "", text, "":
                assert compiled.gettext(text) == entry["msgstr"]
            case context, text, "":
                assert compiled.pgettext(context, text) == entry["msgstr"]
            case _, text, plural:
                both = [compiled.ngettext(text, plural, number) for number in (1, 2)]
                assert both == [entry["msgstr[0]"], entry["msgstr[1]"]]


def test_django_finds_them() -> None:
    with translation.override("de"):
        assert translation.gettext("Why is it not running?") == "Warum läuft er nicht?"
