"""Groups of users that look, that operate and that may do everything."""

from __future__ import annotations

from dataclasses import dataclass

from django.apps import apps
from django.db import router, transaction

APP = "django_jobs"
PREFIX = "jobs "
"""What the names of the groups begin with: a project may have an *admin* already."""
ROLES = ("viewer", "operator", "admin")
SHOWS_DATA = {"view_job_payload", "view_job_error", "reveal_job", "run_doctor"}
"""What shows data of the project, or statements of others: not for who only looks."""
OF_ADMINS = {"view_job_payload", "reveal_job", "edit_job", "enqueue_job", "start_workflow"}
"""What shows arguments or makes work: not for operators, nor are rows that hold settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleChange:
    """What was done to a group: how many permissions it has, and how many it was given and lost."""

    group: str
    is_new: bool
    has: int
    added: int
    removed: int


def is_of(role: str, codename: str) -> bool:
    looks = codename.startswith("view_") and codename not in SHOWS_DATA
    if role == "viewer":
        return looks
    changes_rows = codename.startswith(("add_", "change_", "delete_"))
    return role == "admin" or looks or not (changes_rows or codename in OF_ADMINS)


def set_roles(prefix: str = PREFIX, *, using: str | None = None) -> list[RoleChange]:
    """Give each group the permissions of its role; what it has of other apps stays. With ``using``,
    of ``migrate``, only groups that exist: a project that does not want them has none."""
    from django.contrib.auth.management import create_permissions
    from django.contrib.auth.models import Group, Permission

    alias = using or router.db_for_write(Group)
    names = [f"{prefix}{role}" for role in ROLES]
    groups = {one.name: one for one in Group.objects.using(alias).filter(name__in=names)}
    changes: list[RoleChange] = []
    with transaction.atomic(using=alias):
        for role, name in zip(ROLES, names, strict=True):
            group = groups.get(name)
            if group is None and using is not None:
                continue
            if not changes:  # a receiver of auth makes them too, and may be called after us
                create_permissions(apps.get_app_config(APP), verbosity=0, using=alias)
            group = group or Group.objects.using(alias).create(name=name)
            ours = Permission.objects.using(alias).filter(content_type__app_label=APP)
            wanted = {one.pk for one in ours if is_of(role, one.codename)}
            held = set(ours.filter(group=group).values_list("pk", flat=True))
            group.permissions.add(*wanted - held)
            group.permissions.remove(*held - wanted)
            changes.append(
                RoleChange(
                    group=name,
                    is_new=name not in groups,
                    has=len(wanted),
                    added=len(wanted - held),
                    removed=len(held - wanted),
                )
            )
    return changes
