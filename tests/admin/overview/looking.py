"""Reads the overview as a person does."""

from __future__ import annotations

import html
import re

from django.urls import reverse

from tests.admin.walking import Page, words
from tests.factories import run_sql


def url() -> str:
    return reverse("admin:django_jobs_overview_changelist")


def overview(page: Page) -> str:
    """The page with numbers of now."""
    run_sql("DELETE FROM django_jobs_storedmetrics")
    return page.text(url())


def problems(text: str) -> list[str]:
    """The sentences of the problems."""
    found = re.findall(r'<ul class="jobs-problems">(.*?)</ul>', text, re.DOTALL)
    items = re.findall(r"</span><span>(.*?)</span><a href", found[0]) if found else []
    return [words(item).replace(" ,", ",").replace(" .", ".") for item in items]


def links_of_problems(text: str) -> list[str]:
    """The addresses that the problems lead to."""
    found = re.findall(r'<ul class="jobs-problems">(.*?)</ul>', text, re.DOTALL)
    links = re.findall(r'</span><a href="([^"]*)"', found[0]) if found else []
    return list(map(html.unescape, links))


def tiles(text: str) -> dict[str, str]:
    """The number of each tile by its label."""
    pairs = re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", text)
    return {words(label): words(number) for label, number in pairs}


def table(text: str, title: str) -> dict[str, dict[str, str]]:
    """The rows of a table by their first cell, each by the labels of its columns."""
    (body,) = re.findall(
        rf'<caption class="visually-hidden">{title}[^<]*</caption>(.*?)</table>', text, re.DOTALL
    )
    *_, heads = re.findall(r"<tr>(.*?)</tr>", body.split("<tbody>")[0], re.DOTALL)
    labels = [words(one) for one in re.findall(r"<th[^>]*>(.*?)</th>", heads)]
    rows: dict[str, dict[str, str]] = {}
    for row in re.findall(r"<tr>(.*?)</tr>", body.split("<tbody>")[1], re.DOTALL):
        cells = [words(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL)]
        rows[cells[0]] = dict(zip(labels, cells, strict=True))
    return rows


def chart(text: str) -> list[dict[str, int]]:
    """The numbers of the chart, from its table."""
    (body,) = re.findall(r'<details class="jobs-table-of">(.*?)</details>', text, re.DOTALL)
    labels = [words(one) for one in re.findall(r'number">(.*?)</th>', body)]
    rows: list[dict[str, int]] = []
    for row in re.findall(r'<tr><th scope="row">(.*?)</tr>', body, re.DOTALL):
        numbers = [int(cell.replace(",", "")) for cell in re.findall(r'number">([\d,]+)</td>', row)]
        rows.append(dict(zip(labels, numbers, strict=True)))
    return rows
