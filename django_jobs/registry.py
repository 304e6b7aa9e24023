"""The handlers that this process knows, by name. A row names one of these and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.utils.module_loading import autodiscover_modules

from .domain.hints import did_you_mean
from .exceptions import UnknownJobType

if TYPE_CHECKING:
    from .api.job_type import JobType

_job_types: dict[str, JobType[..., Any]] = {}
_aliases: dict[str, JobType[..., Any]] = {}
_clashes: list[tuple[str, str, str]] = []
_by_chance: set[str] = set()
_schedules: dict[str, dict[str, Any]] = {}
_schedule_clashes: set[str] = set()


def register(job_type: JobType[..., Any]) -> None:
    """Make a job type known, by its name and its aliases. The first one of a name keeps it; a
    system check reports the clash."""
    known = find(job_type.name)
    if known is not None and known.handler_path != job_type.handler_path:
        _clashes.append((job_type.name, known.handler_path, job_type.handler_path))
        return
    _drop_aliases(job_type.name)  # of the same, imported before
    _job_types[job_type.name] = job_type
    if apps.ready:
        _by_chance.add(job_type.name)
    for alias in job_type.aliases:
        known = find(alias)
        if known is not None and known is not job_type:
            _clashes.append((alias, known.handler_path, job_type.handler_path))
        else:
            _aliases[alias] = job_type


def unregister(name: str) -> None:
    """Forget a job type, as a test does that registered one."""
    _drop_aliases(name)
    gone = _job_types.pop(name, None)
    _by_chance.discard(name)
    forgotten = {name, *(gone.aliases if gone is not None else ())}
    _clashes[:] = [clash for clash in _clashes if clash[0] not in forgotten]


def find(name: str) -> JobType[..., Any] | None:
    """The job type that has that name, or had it before; or None."""
    return _job_types.get(name) or _aliases.get(name)


def get(name: str) -> JobType[..., Any]:
    """As :func:`find`. Raises :class:`UnknownJobType`, which lists the known ones and says which
    one may have been meant."""
    known = find(name)
    if known is None:
        # Names of one app begin alike: at the usual 0.6 any two of them would be close.
        hint = did_you_mean(name, names(), cutoff=0.8)
        listed = f"known are: {', '.join(names()) or 'none'}"
        said = " ".join(filter(None, (hint, listed)))
        raise UnknownJobType(f"no job type is named {name!r}; {said}")
    return known


def names() -> list[str]:
    """The names of all known job types, sorted; without aliases."""
    return sorted(_job_types)


def versions() -> dict[str, int]:
    """Every name that a row may bear to be run here, aliases too, and the newest version of its
    payload that is read here."""
    known = {**_aliases, **_job_types}
    return {name: known[name].version for name in sorted(known)}


def known_by_chance() -> list[JobType[..., Any]]:
    """Those that were declared when all apps were ready: no ``jobs.py`` imports their module, but
    something else did, such as the system checks by way of the URLs."""
    return [_job_types[name] for name in sorted(_by_chance)]


def family(name: str) -> list[str]:
    """All names of the job type that has this one, its present name first; of an unknown one this
    name alone."""
    known = find(name)
    return [name] if known is None else list(dict.fromkeys((known.name, *known.aliases)))


def clashes() -> list[tuple[str, str, str]]:
    """(name, place of the first, place of the second) for names that were declared twice, as a
    name or as an alias."""
    return list(_clashes)


def register_schedule(name: str, fields: dict[str, Any]) -> None:
    """Make a schedule known that the code declares. The first one of a name keeps it; a system
    check reports another."""
    if _schedules.setdefault(name, fields) != fields:
        _schedule_clashes.add(name)


def schedules() -> dict[str, dict[str, Any]]:
    """The fields of each declared schedule, by name."""
    return dict(_schedules)


def forget_schedule(name: str) -> None:
    """Forget a declared schedule, as a test does that declared one."""
    _schedules.pop(name, None)
    _schedule_clashes.discard(name)


def schedule_clashes() -> list[str]:
    """The names of schedules that were declared twice, and not alike."""
    return sorted(_schedule_clashes)


def autodiscover() -> None:
    """Import ``jobs.py`` of every installed app."""
    autodiscover_modules("jobs")


def _drop_aliases(name: str) -> None:
    for alias in [alias for alias, job_type in _aliases.items() if job_type.name == name]:
        del _aliases[alias]


def default_name(module: str, function: str) -> str:
    """``<app_label>.<function>``; outside any app the name of the module's package stands in."""
    config = apps.get_containing_app_config(module) if apps.apps_ready else None
    if config is not None:
        return f"{config.label}.{function}"
    package = module.rpartition(".")[0] or module
    return f"{package.rpartition('.')[2]}.{function}"
