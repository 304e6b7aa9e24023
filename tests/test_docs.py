"""What the documentation says is true of the code."""

from __future__ import annotations

import ast
import re
import tomllib
from argparse import ArgumentParser, _SubParsersAction
from configparser import ConfigParser
from importlib import import_module
from pathlib import Path

import pytest
from django.apps import apps
from django.core.management import BaseCommand

import django_jobs
from django_jobs import conf, models, signals
from django_jobs.checks.settings import SECTIONS
from django_jobs.domain.backoff import DEFAULT_BACKOFF
from django_jobs.domain.options import JOB_OPTIONS
from django_jobs.domain.states import JobState, RunState
from django_jobs.management.subcommands import VERBS

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
PACKAGE = ROOT / "django_jobs"
COMMANDS = sorted(
    path.stem for path in (PACKAGE / "management" / "commands").glob("*.py") if path.stem[0] != "_"
)


def page(name: str) -> str:
    return (DOCS / name).read_text()


def blocks(text: str, language: str) -> list[str]:
    """The fenced code blocks of one language, also those inside a list, without its indent."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^\1```$", text, re.MULTILINE | re.DOTALL)
    return [re.sub(rf"^{indent}", "", body, flags=re.MULTILINE) for indent, body in found]


def first_cells(text: str) -> list[str]:
    """The first cell of every row of every table."""
    return re.findall(r"^\| (.*?) \|", text, re.MULTILINE)


def code_in_first_cells(text: str) -> list[str]:
    """What is set as code in the first cells."""
    return [code for cell in first_cells(text) for code in re.findall(r"`(.+?)`", cell)]


def section(text: str, heading: str) -> str:
    """What stands under a heading, up to the next one of its level."""
    level = heading.split(" ", 1)[0]
    return text.split(f"\n{heading}\n", 1)[1].split(f"\n{level} ", 1)[0]


# Versions and names


def test_the_version_is_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    version = django_jobs.__version__
    assert project["version"] == version
    assert f"version {version}" in (ROOT / "README.md").read_text()
    assert f"version {version}" in page("index.md")
    assert f"\n## [{version}] - " in (ROOT / "CHANGELOG.md").read_text()


def test_unreleased_is_the_first_section_of_the_changelog() -> None:
    headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "Unreleased"


def test_the_readme_names_every_python_and_django_that_the_classifiers_name() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [line.rsplit(" :: ", 1) for line in project["classifiers"]]
    pythons = [v for kind, v in named if kind == "Programming Language :: Python" and "." in v]
    djangos = [v for kind, v in named if kind == "Framework :: Django"]
    readme = (ROOT / "README.md").read_text()
    assert f"Python {pythons[0]} to {pythons[-1]}" in readme
    assert f"Django {', '.join(djangos)}" in readme
    for python in pythons:
        assert f"py{python.replace('.', '')}-django" in (ROOT / "tox.ini").read_text()
    for django in djangos:
        assert (
            f"django{django.replace('.', '')}: Django>={django}" in (ROOT / "tox.ini").read_text()
        )


def test_the_docs_install_the_name_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for path in (ROOT / "README.md", DOCS / "quickstart.md"):
        assert f"pip install {project['name']} " in path.read_text()


def test_ci_runs_the_two_commands_of_the_readme() -> None:
    script = (ROOT / ".ci" / "run").read_text().splitlines()
    readme = (ROOT / "README.md").read_text()
    demo, tests = (line.strip() for line in blocks(readme, "console") if "-m venv" in line)
    assert tests in script
    assert f"{demo} --once" in script


def test_ci_runs_the_oldest_and_the_newest_pair() -> None:
    config = ConfigParser()
    config.read(ROOT / "tox.ini")
    labels = dict(line.split(" = ") for line in config["tox"]["labels"].strip().splitlines())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    versions = re.findall(r":: (Python|Django) :: (\d\.\d+)", "\n".join(project["classifiers"]))
    pythons, djangos = (
        [version.replace(".", "") for name, version in versions if name == wanted]
        for wanted in ("Python", "Django")
    )
    ends = [f"py{pythons[end]}-django{djangos[end]}" for end in (0, -1)]
    assert labels["ci"].split(", ") == [*ends, "static"]
    assert "-m ci" in (ROOT / ".ci" / "run").read_text()


def test_the_hosted_docs_are_built_as_by_tox() -> None:
    hosted = (ROOT / ".readthedocs.yaml").read_text()
    config = ConfigParser()
    config.read(ROOT / "tox.ini")
    static = config["testenv:static"]
    python = static["base_python"].split(",")[0].removeprefix("python")
    assert hosted.splitlines()[1] == "version: 2"
    assert f'    python: "{python}"\n' in hosted
    assert hosted.endswith("extra_requirements:\n        - docs\n")
    assert "docs" in static["extras"].split(", ")
    assert "sphinx-build -W" in static["commands"]
    assert "sphinx:\n  configuration: docs/conf.py\n  fail_on_warning: true\n" in hosted


# Reference pages


def test_every_setting_is_documented_and_nothing_else() -> None:
    settings = page("reference/settings.md")
    table = settings.split("\n## ", 1)[0]
    assert set(code_in_first_cells(table)) == conf.KEYS
    assert set(re.findall(r"^## `(.+)`$", settings, re.MULTILINE)) == conf.KEYS


@pytest.mark.parametrize("key", SECTIONS)
def test_every_option_of_a_name_is_documented_and_nothing_else(key: str) -> None:
    options = section(page("reference/settings.md"), f"## `{key}`")
    assert code_in_first_cells(options) == list(SECTIONS[key].rules)


def test_the_defaults_in_the_settings_page_are_the_defaults() -> None:
    table = page("reference/settings.md").split("\n## ", 1)[0]
    documented = dict(re.findall(r"^\| \[`(\w+)`\].*? \| `(.+?)` \|", table, re.MULTILINE))
    default = conf.Conf()
    assert documented
    for key, text in documented.items():
        assert ast.literal_eval(text) == getattr(default, key.lower()), key
    redacted = section(page("reference/settings.md"), "## `REDACT_KEYS`")
    assert set(conf.DEFAULT_REDACT_KEYS) <= set(re.findall(r"`(\w+)`", redacted))


def test_every_check_is_documented_and_nothing_else() -> None:
    files = [*(PACKAGE / "checks").glob("*.py"), PACKAGE / "backend" / "jobs_backend.py"]
    source = "".join(path.read_text() for path in files)
    given = {f"django_jobs.{number}" for number in re.findall(r"\b[EIW]\d{3}\b", source)}
    assert given
    assert set(code_in_first_cells(page("reference/checks.md"))) == given


def test_every_command_is_documented_and_nothing_else() -> None:
    commands = page("reference/commands.md")
    assert set(re.findall(r"^## `(.+)`$", commands, re.MULTILINE)) == set(COMMANDS)
    verbs = [code.split(" ")[0] for code in code_in_first_cells(section(commands, "## `jobs`"))]
    assert sorted(verbs) == VERBS


def options_of(parser: ArgumentParser) -> set[str]:
    """Those of a command, and of all of its verbs."""
    options: set[str] = set()
    for action in parser._actions:
        options.update(action.option_strings)
        if isinstance(action, _SubParsersAction):
            options.update(*map(options_of, action.choices.values()))
    return options


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_of_a_command_is_documented_and_nothing_else(command: str) -> None:
    module = import_module(f"django_jobs.management.commands.{command}")
    parser = module.Command().create_parser("manage.py", command)
    of_django = {
        option
        for action in BaseCommand().create_parser("manage.py", command)._actions
        for option in action.option_strings
    }
    options = options_of(parser)
    text = section(page("reference/commands.md"), f"## `{command}`")
    documented = {code.split(" ")[0] for code in code_in_first_cells(text) if code.startswith("--")}
    assert documented == options - of_django


@pytest.mark.parametrize(
    "name",
    [
        *("Job", "Run", "Worker", "Schedule", "Tick", "Backfill", "Progress", "Receipt"),
        *("Quarantine", "Resource", "Tenant", "WorkflowDefinition", "WorkflowRun", "Dependency"),
        *("BulkOperation", "ScheduleException"),
    ],
)
def test_every_field_of_a_model_is_documented_and_nothing_else(name: str) -> None:
    model = getattr(models, name)
    fields = {field.name for field in model._meta.concrete_fields}
    if name != "Job":
        fields.discard("id")
    text = section(page("reference/models.md"), f"## {name}")
    rows = [row for row in text.splitlines() if row.startswith("| `")]
    documented = {code for row in rows for code in re.findall(r"`(\w+)`", row)}
    assert fields <= documented
    assert set(code_in_first_cells(text)) <= fields


def test_every_permission_is_documented_and_nothing_else() -> None:
    own = {
        f"django_jobs.{codename}"
        for model in apps.get_app_config("django_jobs").get_models()
        for codename, _ in model._meta.permissions
    }
    text = section(page("reference/models.md"), "## Permissions")
    assert set(code_in_first_cells(text)) == own


def test_every_signal_is_on_its_page_and_has_a_docstring_to_be_shown() -> None:
    source = (PACKAGE / "signals.py").read_text()
    text = page("reference/signals.md")
    for name, value in vars(signals).items():
        if isinstance(value, signals.Signal):
            assert re.search(rf'^{name} = (Worker)?Signal\(\)\n"""', source, re.MULTILINE), name
            assert f"autodata:: django_jobs.signals.{name}\n" in text


def test_every_public_name_is_on_the_python_page() -> None:
    text = page("reference/api.md")
    for name in set(django_jobs.__all__) - {"JobStatus", "RunOutcome"}:
        assert re.search(rf"auto\w+:: django_jobs\.{name}\b", text, re.MULTILINE), name
    for name in ("JobStatus", "RunOutcome"):
        assert f"autoclass:: django_jobs.models.{name}()\n" in page("reference/models.md")


def test_every_option_of_a_job_type_is_documented_and_nothing_else() -> None:
    table = section(page("reference/api.md"), "## Declare")
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == list(JOB_OPTIONS)


# The life of a job


def test_every_state_and_every_outcome_has_its_line() -> None:
    lifecycle = page("lifecycle.md")
    states = code_in_first_cells(section(lifecycle, "## The states"))
    assert set(states) == set(JobState)
    outcomes = code_in_first_cells(section(lifecycle, "## How an attempt ends"))
    assert set(outcomes) == set(RunState)


def human(seconds: float) -> str:
    hours, rest = divmod(round(seconds), 3600)
    minutes, rest = divmod(rest, 60)
    parts = ((hours, "h"), (minutes, "min"), (rest, "s"))
    return " ".join(f"{number} {unit}" for number, unit in parts if number)


def test_the_table_of_waits_agrees_with_the_default_backoff() -> None:
    table = re.findall(
        r"^\| (\d+) \| (.+?) \| (.+?) \| (.+?) \|$",
        section(page("lifecycle.md"), "## The waits between attempts"),
        re.MULTILINE,
    )
    assert len(table) >= 10
    total = 0.0
    for number, (failures, shortest, longest, documented) in enumerate(table, start=1):
        assert int(failures) == number
        total += DEFAULT_BACKOFF.longest(number)
        assert shortest == human(DEFAULT_BACKOFF.delay(number, lambda: 1.0))
        assert longest == human(DEFAULT_BACKOFF.delay(number, lambda: 0.0))
        assert documented == human(total)


def test_the_table_of_curves_agrees_with_their_rules() -> None:
    head, _, *rows = re.findall(
        r"^\|(.+)\|$", section(page("lifecycle.md"), "## Other curves"), re.MULTILINE
    )
    rules = [eval(f"Backoff.{call}", vars(django_jobs)) for call in re.findall("`(.+?)`", head)]
    assert len(rows) >= 6
    for row in rows:
        failures, *waits = map(str.strip, row.split("|"))
        assert waits == [human(rule.longest(int(failures))) for rule in rules]


def test_the_documented_default_backoff_is_the_default() -> None:
    (call,) = re.findall(r"`Backoff(\.exponential\(.+?\))`", page("lifecycle.md"))
    expression = ast.parse(f"Backoff{call}", mode="eval").body
    assert isinstance(expression, ast.Call)
    given = {word.arg: ast.literal_eval(word.value) for word in expression.keywords}
    assert django_jobs.Backoff.exponential(**given) == DEFAULT_BACKOFF


# Code and links


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_python_in_the_docs_is_python(path: Path) -> None:
    for code in blocks(path.read_text(), "python"):
        ast.parse(code)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_names_imported_from_the_package_exist(path: Path) -> None:
    for code in blocks(path.read_text(), "python"):
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("django_jobs"):
                module = import_module(node.module or "")
                for alias in node.names:
                    assert hasattr(module, alias.name), f"{node.module}.{alias.name}"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_to_files_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", path.read_text()):
        if "://" not in target:
            assert (path.parent / target).exists(), target


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_page_is_markdown_that_github_renders_too(path: Path) -> None:
    """Roles and labels of Sphinx stand there as they are written. What is made of docstrings, and
    the tables of contents, are blocks."""
    text = re.sub(r"^ *```.*?^ *```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert re.findall(r"\{\w+\}`[^`]*`", text) == []
    assert re.findall(r"^\([\w-]+\)=$", text, re.MULTILINE) == []
