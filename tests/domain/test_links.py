"""Templates of addresses, and the values that fill them."""

from __future__ import annotations

from typing import Any

import pytest

from django_jobs.domain.links import filled, is_safe, link_problem


@pytest.mark.parametrize(
    "url",
    [
        "https://a.example/x",
        "http://localhost:8000",
        "/admin/",
        "/",
        "https://a.example?q={job_id}",
    ],
)
def test_addresses_of_http_and_of_this_site_are_safe(url: str) -> None:
    assert is_safe(url)
    assert link_problem({"label": "x", "url": url}) is None


@pytest.mark.parametrize(
    "url",
    [
        *("javascript:alert(1)", "JaVaScRiPt:x", "data:text/html,x", "//evil.example/", "/\\evil"),
        *("https:evil.example", "https:///evil", "ftp://a.example", "a/b", "", " https://a", None),
        *(
            "https://{queue}/",
            "https://a.{queue}/",
            "https://a.example@evil/",
            "https://a:{job_id}/",
        ),
        *(
            "https://a.example\\@evil/",
            "https://a.example/\n",
            "https://[/",
            "https://a.example{job_id}",
        ),
        "https://a b.example/",
    ],
)
def test_any_other_address_is_refused(url: Any) -> None:
    assert not is_safe(url)
    assert "a url begins with https://" in (link_problem({"label": "x", "url": url}) or "")


@pytest.mark.parametrize(
    ("link", "problem"),
    [
        ("https://a.example", "a link is a dict with label and url"),
        ({"label": "x"}, "a link is a dict with label and url"),
        ({"label": " ", "url": "/"}, "a label is text"),
        ({"label": "x", "url": "/{jobid}"}, "there is no field {jobid}; known are: {job_id}"),
        ({"label": "x", "url": "/{}"}, "{} is no field"),
        ({"label": "x", "url": "/{job_id!r}"}, "{job_id} is no field"),
        ({"label": "x", "url": "/{job_id:>9}"}, "{job_id} is no field"),
        ({"label": "x", "url": "/{payload}"}, "there is no field {payload}"),
        ({"label": "x", "url": "/{payload.__class__[0]}"}, "is no field"),
        ({"label": "x", "url": "/{job_id"}, "expected '}'"),
    ],
)
def test_what_cannot_be_a_link_is_named(link: Any, problem: str) -> None:
    assert problem in (link_problem(link) or "")


@pytest.mark.parametrize(
    ("value", "url"),
    [
        (7, "/x/7?a={}"),
        ("a/b?c#d&e", "/x/a%2Fb%3Fc%23d%26e?a={}"),
        ('"><script>', "/x/%22%3E%3Cscript%3E?a={}"),
        ("é{job_id}", "/x/%C3%A9%7Bjob_id%7D?a={}"),
        *((missing, None) for missing in (None, "", True, [], {}, ".", "..")),
    ],
)
def test_a_value_is_quoted_and_a_missing_one_leaves_the_link_out(
    value: Any, url: str | None
) -> None:
    assert filled("/x/{payload.order_id}?a={{}}", lambda field: value) == url
