"""``manage.py joblimit``: pause resources and tenants, and open breakers."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from ...api.closing import demand_known
from ...conf import conf
from ...lifecycle.operations import limits
from ...metrics.limits import take_limits
from ...models import Tenant
from ..base import ActionCommand, operator, subcommands_of, unknown_tenants
from ..status_text import render_limits


class Action(NamedTuple):
    meaning: str
    operations: Mapping[str, Callable[..., list[str]]]
    """By the kind of what changes."""
    done: str
    unchanged: str
    verb: str = ""
    """What the operator did, who is stored with it. Empty: nothing is stored."""


ACTIONS = {
    "pause": Action(
        "start no job that uses the resource, or of the tenant",
        {"resource": limits.pause_resources, "tenant": limits.pause_tenants},
        "paused. Jobs that are ready or running still run.",
        "already paused.",
        "paused",
    ),
    "resume": Action(
        "start such jobs again",
        {"resource": limits.resume_resources, "tenant": limits.resume_tenants},
        "resumed.",
        "not paused.",
    ),
    "open": Action(
        "open the breaker of a resource: no job that uses it starts",
        {"resource": limits.open_breaker},
        "the breaker is open.",
        "already open.",
        "opened",
    ),
    "close": Action(
        "close the breaker of a resource",
        {"resource": limits.close_breaker},
        "the breaker is closed.",
        "already closed.",
        "closed",
    ),
}


class Command(ActionCommand):
    help = "List resources and tenants; pause or resume one, or open or close a breaker by hand."

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_action = subcommands_of(parser)
        add_action("list", _list, "list the resources, and the tenants with jobs")
        for name, action in ACTIONS.items():
            add = add_action(name, _change, action.meaning)
            if "tenant" in action.operations:
                add("kind", choices=tuple(action.operations))
            add("names", nargs="+", metavar="NAME" if "tenant" in action.operations else "RESOURCE")
            if action.verb:
                add("--reason", default="", help="stored, with your user name")


def _list(options: dict[str, Any]) -> Iterator[str]:
    text = render_limits(*take_limits())
    yield text or "There are no resources, and no tenants with live jobs."


def _change(options: dict[str, Any]) -> Iterator[str]:
    action, names = ACTIONS[options["action"]], options["names"]
    kind = options.get("kind", "resource")
    if kind == "resource":
        for name in names:  # before any is changed
            demand_known(kind, name)
    tenants = Tenant.objects.using(conf().database).values_list("name", flat=True)
    known = set(tenants) if kind == "tenant" else set()
    stored = {}
    if action.verb:
        reason = options["reason"]
        who = f"{reason} ({operator()})" if reason else f"{action.verb} by {operator()}"
        stored = {"reason": who, "by": operator()}
    changed = action.operations[kind](names, **stored)
    for name in dict.fromkeys(names):
        yield f"{name}: {action.done if name in changed else action.unchanged}"
    if kind == "tenant" and action.verb:
        yield from unknown_tenants(names, known)
