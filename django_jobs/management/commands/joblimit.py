"""``manage.py joblimit``: pause resources and tenants, and open breakers."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable, Iterable
from typing import Any

from django.core.management.base import CommandError

from ...api.closing import demand_known
from ...conf import conf
from ...exceptions import OperationRefused, UnknownResource
from ...lifecycle.operations import limits
from ...metrics.limits import take_limits
from ...models import Tenant
from ..arguments import add_subcommand
from ..base import OperatorCommand, operator, unknown_tenants
from ..status_text import render_limits

KINDS = ("resource", "tenant")


class Command(OperatorCommand):
    """List resources and tenants; pause and resume them; open and close breakers."""

    help = "List resources and tenants; pause or resume one, or open or close a breaker by hand."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parsers = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
        add_subcommand(parsers, "list", self._list, "list the resources, and the tenants with jobs")
        for action, does, meaning in (
            ("pause", self._pause, "start no job that uses the resource, or of the tenant"),
            ("resume", self._resume, "start such jobs again"),
        ):
            added = add_subcommand(parsers, action, does, meaning)
            added.add_argument("kind", choices=KINDS)
            added.add_argument("names", nargs="+", metavar="NAME")
            if action == "pause":
                added.add_argument("--reason", default="", help="stored, with your user name")
        for action, does, meaning in (
            ("open", self._open, "open the breaker of a resource: no job that uses it starts"),
            ("close", self._close, "close the breaker of a resource"),
        ):
            added = add_subcommand(parsers, action, does, meaning)
            added.add_argument("names", nargs="+", metavar="RESOURCE")
            added.add_argument("--reason", default="", help="stored, with your user name")

    def handle(self, *args: Any, **options: Any) -> None:
        options["does"](**options)

    def _list(self, **options: Any) -> None:
        text = render_limits(*take_limits())
        self.stdout.write(text or "There are no resources, and no tenants with live jobs.")

    def _pause(self, *, kind: str, names: list[str], reason: str, **options: Any) -> None:
        pause = limits.pause_resources if kind == "resource" else limits.pause_tenants
        if kind == "resource":
            _demand_resources(names)
        before = set(Tenant.objects.using(conf().database).values_list("name", flat=True))
        try:
            changed = pause(names, reason=_signed(reason, "paused"), by=operator())
        except OperationRefused as error:
            raise CommandError(str(error)) from None
        done = "paused. Jobs that are ready or running still run."
        self._show(names, changed, done, "already paused")
        if kind == "tenant":
            for line in unknown_tenants(names, before):
                self.stdout.write(line)

    def _resume(self, *, kind: str, names: list[str], **options: Any) -> None:
        if kind == "resource":
            _demand_resources(names)
        resume = limits.resume_resources if kind == "resource" else limits.resume_tenants
        self._show(names, resume(names), "resumed.", "not paused")

    def _open(self, **options: Any) -> None:
        self._set_breaker(limits.open_breaker, "open", "opened", **options)

    def _close(self, **options: Any) -> None:
        self._set_breaker(limits.close_breaker, "closed", "closed", **options)

    def _set_breaker(
        self,
        change: Callable[..., list[str]],
        state: str,
        done: str,
        *,
        names: list[str],
        reason: str,
        **options: Any,
    ) -> None:
        _demand_resources(names)
        changed = change(names, reason=_signed(reason, done), by=operator())
        self._show(names, changed, f"the breaker is {state}.", f"already {state}")

    def _show(self, names: Iterable[str], changed: list[str], done: str, unchanged: str) -> None:
        for name in dict.fromkeys(names):
            self.stdout.write(f"{name}: {done if name in changed else f'{unchanged}.'}")


def _signed(reason: str, operation: str) -> str:
    """The reason, with the name of the operator."""
    return f"{reason} ({operator()})" if reason else f"{operation} by {operator()}"


def _demand_resources(names: Iterable[str]) -> None:
    """Raise ``CommandError`` for an unknown resource, before any is changed."""
    try:
        for name in names:
            demand_known("resource", name)
    except UnknownResource as error:
        raise CommandError(str(error)) from None
