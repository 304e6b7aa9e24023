"""The description of the interface is that of the views."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import django_jobs.http
from django_jobs.domain.callbacks import LONGEST_ADDRESS
from django_jobs.domain.options import LONGEST_TAG, MOST_TAGS
from django_jobs.http import urls, views
from django_jobs.models import JobStatus
from django_jobs.testing import run_jobs
from tests.app.jobs import noop
from tests.http.conftest import URL, JsonClient
from tests.receivers import webhook

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.app.http_urls")]
FILE = json.loads((Path(django_jobs.http.__file__).parent / "openapi.json").read_text())
METHODS = {"/": {"GET", "POST"}, "/{job_id}/": {"GET"}, "/{job_id}/cancel/": {"POST"}}


def resolved(node: Any) -> Any:
    """The description with what it refers to in place."""
    if isinstance(node, dict) and "$ref" in node:
        found: Any = FILE
        for part in node["$ref"].removeprefix("#/").split("/"):
            found = found[part]
        return resolved(found)
    if isinstance(node, dict):
        return {key: resolved(value) for key, value in node.items()}
    return [resolved(value) for value in node] if isinstance(node, list) else node


PATHS = resolved(FILE["paths"])


def fits(path: str, method: str, response: Any) -> int:
    """The status of an answer that is as described."""
    described = PATHS[path][method]["responses"][str(response.status_code)]
    (kind,) = described["content"]
    assert response["Content-Type"] == kind
    jsonschema.validate(response.json(), described["content"][kind]["schema"])
    for name, header in described.get("headers", {}).items():
        jsonschema.validate(response[name], header["schema"])
    return int(response.status_code)


def test_each_view_and_each_of_its_methods_is_described() -> None:
    routes = {f"/{one.pattern}".replace("<job_id>", "{job_id}") for one in urls.urlpatterns}
    assert set(FILE["paths"]) == routes - {"/openapi.json"} == set(METHODS)
    for path, methods in METHODS.items():
        assert {key.upper() for key in FILE["paths"][path]} - {"PARAMETERS"} == methods


def test_the_methods_that_are_described_are_those_that_are_allowed(client: JsonClient) -> None:
    for path, methods in METHODS.items():
        url = f"{URL}{path[1:].format(job_id=1)}"
        assert {*client.patch(url)["Allow"].split(", ")} - {"HEAD"} == methods


def test_its_values_are_those_of_the_code() -> None:
    schemas = resolved(FILE["components"]["schemas"])
    assert schemas["Job"]["properties"]["status"]["enum"] == JobStatus.values
    tags = schemas["Request"]["properties"]["tags"]
    assert (tags["maxItems"], tags["items"]["maxLength"]) == (MOST_TAGS, LONGEST_TAG)
    assert schemas["Page"]["properties"]["jobs"]["maxItems"] == views.PAGE


def test_the_answers_are_as_described(client: JsonClient) -> None:
    made = client.enqueue("app.noop", tags=["a"], key="k")
    assert fits("/", "post", made) == 202
    assert fits("/", "post", client.enqueue(key="k", payload={"first": 1})) == 409
    assert fits("/", "post", client.enqueue("app.unknown")) == 403
    assert fits("/", "post", client.enqueue()) == 422
    assert fits("/", "get", client.get(URL, {"tag": "a"})) == 200
    assert fits("/", "get", client.get(URL)) == 400
    assert fits("/{job_id}/", "get", client.get(made["Location"])) == 200
    assert fits("/{job_id}/", "get", client.get(f"{URL}0/")) == 404
    cancel = f"{made['Location']}cancel/"
    assert fits("/{job_id}/cancel/", "post", client.send(cancel)) == 200
    assert fits("/{job_id}/cancel/", "post", client.send(cancel)) == 409


def test_the_call_at_the_end_is_as_described(client: JsonClient, settings: Any) -> None:
    schemas = resolved(FILE["components"]["schemas"])
    assert schemas["Request"]["properties"]["callback_url"]["maxLength"] == LONGEST_ADDRESS
    (called,) = PATHS["/"]["post"]["callbacks"]["finished"].values()
    with webhook() as receiver:
        host, secret = f"localhost:{receiver.port}", f"whsec_{b64encode(bytes(32)).decode()}"
        options = {"job_types": ["app.noop"], "callback_hosts": {host: secret}}
        settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, "HTTP": options}
        client.enqueue("app.noop", callback_url=f"http://{host}/")
        run_jobs(check=True)
    ((headers, _),) = receiver.requests
    assert all(headers[one["name"]] for one in called["post"]["parameters"])
    (body,) = called["post"]["requestBody"]["content"].values()
    jsonschema.validate(receiver.received[0], body["schema"])


def test_it_is_served_with_its_address(client: JsonClient) -> None:
    noop.enqueue()
    served = client.get(f"{URL}openapi.json").json()
    assert served["servers"] == [{"url": URL.rstrip("/")}]
    assert served["paths"] == FILE["paths"]
