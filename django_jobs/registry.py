"""The job types, the declared schedules and the workflows of this process, by name."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.utils.module_loading import autodiscover_modules

from .domain.hints import did_you_mean
from .domain.payload import is_same
from .exceptions import UnknownJobType

if TYPE_CHECKING:
    from types import CodeType, FrameType

    from .api.job_type import JobType
    from .api.workflows.workflow import Workflow

BUILT_IN = "django_jobs."
"""What the names of this package's job types begin with. Workers know them; no list shows them."""

_job_types: dict[str, JobType[..., Any]] = {}
_aliases: dict[str, JobType[..., Any]] = {}
_clashes: list[tuple[str, str, str]] = []
_by_chance: set[str] = set()
_modules: dict[str, CodeType | None] = {}
"""The code of the module that declared a job type: another one after a reload."""
_schedules: dict[str, dict[str, Any]] = {}
_schedule_clashes: set[str] = set()
_workflows: dict[str, dict[int, Workflow]] = {}
_workflow_copies: list[Workflow] = []
_rates: dict[str, str] = {}


def register(job_type: JobType[..., Any], module: CodeType | None = None) -> None:
    """Register a job type under its name and its aliases. If a name is taken, the first job type
    keeps it, and a system check reports the clash. So it is if both are of one ``module``."""
    first = find(job_type.name)
    is_again = first is not None and module is not None and _modules.get(job_type.name) is module
    if first is not None and (first.handler_path != job_type.handler_path or is_again):
        _clashes.append((job_type.name, first.handler_path, job_type.handler_path))
        return
    _drop_aliases(job_type.name)  # of the same module, imported before
    _job_types[job_type.name] = job_type
    _modules[job_type.name] = module
    if apps.ready:
        _by_chance.add(job_type.name)
    for alias in job_type.aliases:
        first = find(alias)
        if first is not None and first is not job_type:
            _clashes.append((alias, first.handler_path, job_type.handler_path))
        else:
            _aliases[alias] = job_type


def unregister(name: str) -> None:
    """Remove a job type. For tests that register one."""
    _drop_aliases(name)
    gone = _job_types.pop(name, None)
    _by_chance.discard(name)
    _modules.pop(name, None)
    for resource in () if gone is None else gone.resources:
        _rates.pop(resource, None)
    forgotten = {name, *(gone.aliases if gone is not None else ())}
    _clashes[:] = [clash for clash in _clashes if clash[0] not in forgotten]


def note_rate(resource: str, rate: str) -> None:
    """Note that a job type declares the rate of a resource itself, which is made with it."""
    _rates[resource] = rate


def rates() -> dict[str, str]:
    """The rates that job types declare, by the name of the resource."""
    return dict(_rates)


def find(name: str) -> JobType[..., Any] | None:
    """The job type with this name or alias, or None."""
    return _job_types.get(name) or _aliases.get(name)


def get(name: str) -> JobType[..., Any]:
    """The job type with this name or alias. Raises :class:`UnknownJobType` with known names."""
    job_type = find(name)
    if job_type is None:
        # Names of one app begin alike. With the default cutoff, 0.6, any two would be similar.
        hint = did_you_mean(name, names(), cutoff=0.8)
        listed = f"known are: {', '.join(names()) or 'none'}"
        raise UnknownJobType(
            f"no job type is named {name!r}; {' '.join(filter(None, (hint, listed)))}"
        )
    return job_type


def names() -> list[str]:
    """The names of the project's job types, sorted, without aliases."""
    return sorted(name for name in _job_types if not name.startswith(BUILT_IN))


def versions() -> dict[str, int]:
    """The newest payload version that this process reads, by job type, with aliases."""
    by_name = {**_aliases, **_job_types}
    return {name: by_name[name].version for name in sorted(by_name)}


def runs_isolated(job_type: JobType[..., Any] | None) -> bool:
    return job_type is not None and (job_type.isolated or job_type.max_rss is not None)


def loop_types() -> list[str]:
    """The job types whose handlers run on the event loop of a worker process, with aliases."""
    found = ((name, find(name)) for name in versions())
    return [name for name, one in found if one and one.is_async and not runs_isolated(one)]


def known_by_chance() -> list[JobType[..., Any]]:
    """The job types that were declared after all apps were ready. No ``jobs.py`` imports their
    module; something else did, such as the URLs during the system checks."""
    return [_job_types[name] for name in sorted(_by_chance)]


def family(name: str) -> list[str]:
    """All names of a job type, the present one first. Of an unknown name, only that name."""
    job_type = find(name)
    return [name] if job_type is None else list(dict.fromkeys((job_type.name, *job_type.aliases)))


def clashes() -> list[tuple[str, str, str]]:
    """(name, path of the first handler, of the second) of each name or alias declared twice."""
    return list(_clashes)


def register_schedule(name: str, fields: dict[str, Any]) -> None:
    """Register a declared schedule. If a name is declared twice with different fields, the first
    declaration is kept, and a system check reports the clash."""
    if not is_same(_schedules.setdefault(name, fields), fields):
        _schedule_clashes.add(name)


def schedules() -> dict[str, dict[str, Any]]:
    """The fields of the declared schedules, by name."""
    return dict(_schedules)


def forget_schedule(name: str) -> None:
    """Remove a declared schedule. For tests that declare one."""
    _schedules.pop(name, None)
    _schedule_clashes.discard(name)


def schedule_clashes() -> list[str]:
    """The names of schedules that were declared twice with different fields."""
    return sorted(_schedule_clashes)


def register_workflow(workflow: Workflow) -> None:
    """Register a workflow under its name and version. If both are taken, the first declaration is
    kept, and a system check reports the second if its graph is another one."""
    versions = _workflows.setdefault(workflow.name, {})
    if versions.setdefault(workflow.version, workflow) is not workflow:
        _workflow_copies.append(workflow)


def workflow(name: str) -> Workflow | None:
    """The highest version of the workflow with this name, or None."""
    versions = _workflows.get(name)
    return versions[max(versions)] if versions else None


def workflows() -> list[Workflow]:
    """All versions of all workflows, by name and version."""
    return [
        versions[version]
        for _, versions in sorted(_workflows.items())
        for version in sorted(versions)
    ]


def workflow_copies() -> list[tuple[Workflow, Workflow]]:
    """(first, second) for each name and version that was declared twice."""
    return [(_workflows[copy.name][copy.version], copy) for copy in _workflow_copies]


def forget_workflow(name: str) -> None:
    """Remove all versions of a workflow and its job type. For tests that declare one."""
    _workflows.pop(name, None)
    _workflow_copies[:] = [copy for copy in _workflow_copies if copy.name != name]
    _clashes[:] = [clash for clash in _clashes if clash[0] != name]
    job_type = find(name)
    if job_type is not None and getattr(job_type.handler, "starts_workflow", None) == name:
        unregister(name)


def autodiscover() -> None:
    autodiscover_modules("jobs")


def importing(module: str) -> CodeType | None:
    """The code of the module, while that is imported."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        code, name = frame.f_code, frame.f_globals.get("__name__")
        if code.co_name == "<module>" and name == module:
            return code
        frame = frame.f_back
    return None


def _drop_aliases(name: str) -> None:
    for alias in [alias for alias, job_type in _aliases.items() if job_type.name == name]:
        del _aliases[alias]


def default_name(module: str, function: str) -> str:
    """``<app_label>.<function>``; outside any app, the last part of the package is the label."""
    config = apps.get_containing_app_config(module) if apps.apps_ready else None
    if config is not None:
        return f"{config.label}.{function}"
    package = module.rpartition(".")[0] or module
    return f"{package.rpartition('.')[2]}.{function}"
