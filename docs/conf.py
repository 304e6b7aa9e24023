"""How the documentation is built: ``sphinx-build -W -n docs build/docs``."""

from __future__ import annotations

import sys
from pathlib import Path

import django
from django.conf import settings
from pygments.lexers import PostgresLexer
from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

# autodoc imports the models. No connection is made.
settings.configure(
    DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", "NAME": "docs"}},
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "django_jobs"],
    USE_TZ=True,
)
django.setup()

from django_jobs import __version__  # noqa: E402 — needs the settings above

project = "django_jobs"
author = "The django_jobs maintainers"
copyright = "2026, The django_jobs maintainers"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"django_jobs {__version__}"
templates_path: list[str] = []

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
copybutton_prompt_text = r"\$ |>>> "
copybutton_prompt_is_regexp = True
copybutton_exclude = ".linenos, .gp, .go"

autodoc_member_order = "bysource"
autodoc_typehints = "none"
add_module_names = False
nitpicky = True
nitpick_ignore_regex = [
    # Types of other projects. There is no intersphinx, so that the build needs no network.
    (r"py:.*", r"(django|datetime|typing|collections|logging|enum|psycopg)(\..*)?"),
    # Type variables and private bases of the package.
    (r"py:.*", r"(P|R|P\.args|P\.kwargs|.*ParamSpec.*|.*TypeVar.*)"),
    # Standard library.
    (r"py:(class|exc)", r"(Exception|ValueError|StrEnum|Generic)"),
]


def setup(app: Sphinx) -> None:
    """Read SQL as PostgreSQL's: it has ``$$``."""
    app.add_lexer("sql", PostgresLexer)
