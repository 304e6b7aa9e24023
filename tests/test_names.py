"""Names come from the field or from ``docs/glossary.md``, and each has one meaning."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import django_jobs

PACKAGE = Path(django_jobs.__file__).parent
MODULES = sorted(
    path for path in PACKAGE.rglob("*.py") if "migrations" not in path.relative_to(PACKAGE).parts
)

WORDS = """
apart aside bell board boot buried burial burials bury duties duty errand errands glance
graves heard held heart lookout salvaging say steering survey tell timekeeper
told touchy turns unheard verb verbs waking
"""
"""Words that no class, function or module may have in its name: those of this project alone."""

NAMES = """
Alarm Blocked Board Child Clock Control Deadline Holding InHand Isolated Limit Link Place
Report Slot Tree Watch announce answer boot_of carry_out control of_today outcome_of
persistent seconds_off what_goes why_fixed
"""
"""Names that say too little alone: ``TimeLimit`` and ``WorkerSlot`` are good names."""


def words_of(name: str) -> set[str]:
    """``give_back`` and ``GiveBack`` are two words."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}


def is_private_language(name: str) -> bool:
    return name in NAMES.split() or not words_of(name).isdisjoint(WORDS.split())


def definitions(module: Path) -> Iterator[str]:
    yield module.parent.name if module.stem == "__init__" else module.stem
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name


def variables(module: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(module.read_text())):
        match node:
            case ast.Name(id=name) | ast.arg(arg=name) | ast.keyword(arg=str(name)):
                yield name
            case ast.Attribute(attr=name):
                yield name


def test_no_definition_uses_a_private_word() -> None:
    assert not [
        (module, name)
        for module in MODULES
        for name in definitions(module)
        if is_private_language(name)
    ]


def test_no_variable_is_named_told() -> None:
    assert not [module for module in MODULES if {"told", "_told"} & set(variables(module))]


def test_a_word_inside_a_name_is_found() -> None:
    found = [name for name in ("StandingDuty", "is_touchy", "Link") if is_private_language(name)]
    assert found == ["StandingDuty", "is_touchy", "Link"]
    assert not is_private_language("WorkerSlot")


def test_the_glossary_defines_each_term_once_and_in_order() -> None:
    text = (PACKAGE.parent / "docs" / "glossary.md").read_text()
    terms = re.findall(r"^(\S.*)\n: \S", text, re.M)
    assert len(terms) > 50
    assert terms == sorted(set(terms), key=str.lower)
