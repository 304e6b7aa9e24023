"""The chaos test's own app."""

from __future__ import annotations

import os

from django.apps import AppConfig


class ChaosConfig(AppConfig):
    """Handlers and their table; and the switches of the negative control."""

    name = "tests.chaos"
    label = "chaos"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from django_jobs.maintenance import bulk_operations

        from .operation_plan import CHUNK

        bulk_operations.CHUNK = bulk_operations.REPLAYED = CHUNK
        self.shorten_alerts()
        self.break_what_is_asked()

    def shorten_alerts(self) -> None:
        """A look a second in place of one a minute, and minutes of four seconds."""
        from django_jobs.doctor import alerts
        from django_jobs.domain.callbacks import HOLD_SECONDS

        from .timing import ALERT_AGAIN

        HOLD_SECONDS["open_breaker"] = 0.0
        alerts.LOOK_SECONDS, alerts.LONGEST_SECONDS = 1.0, ALERT_AGAIN - 2.0
        alerts.look.__defaults__ = (0.7,)
        minute = "interval '1 min'"
        assert minute in alerts.TAKE
        alerts.TAKE = alerts.TAKE.replace(minute, f"interval '{ALERT_AGAIN / 2} s'")

    def break_what_is_asked(self) -> None:
        """With the status in place of the fence a late worker writes over a newer attempt, and the
        accounts must show it: a test that cannot fail proves nothing. Likewise an admission that
        counts no slots and spends no tokens, a settle that commits before it opens steps, and a
        chunk that commits before it is counted."""
        if os.environ.get("CHAOS_WITHOUT_FENCE"):
            from django_jobs.lifecycle import settling
            from django_jobs.lifecycle.settling_statements import ITS_OWN

            few = ("SETTLE_ONE", "SETTLE_FEW", "SETTLE_FEW_AND_HAND_OVER")
            for name in ("SETTLE", "SETTLE_AND_HAND_OVER", *few):
                statement = getattr(settling, name)
                assert ITS_OWN in statement
                unfenced = "WHERE job.id = s.id AND job.status = 'running'"
                setattr(settling, name, statement.replace(ITS_OWN, unfenced))
        if os.environ.get("CHAOS_WITHOUT_LIMITS"):
            from django_jobs.lifecycle import known_types
            from django_jobs.lifecycle.gates import arrivals, supply

            from .deploy import NEWCOMER

            taken, spent = "status IN ('ready', 'running')", "- input.starts"
            came = arrivals.ADMIT_ARRIVALS
            for statement in (*supply.TAKEN.values(), supply.RESOURCES, *came.values()):
                assert taken in statement
            assert spent in supply.SPEND
            assert spent in supply.SPEND_OF_TENANTS
            none = "status = 'succeeded'"
            for kind, statement in supply.TAKEN.items():
                supply.TAKEN[kind] = statement.replace(taken, none)
            supply.RESOURCES = supply.RESOURCES.replace(taken, none)
            for gate, statement in came.items():
                came[gate] = statement.replace(taken, none)
            supply.SPEND = supply.SPEND.replace(spent, "")
            supply.SPEND_OF_TENANTS = supply.SPEND_OF_TENANTS.replace(spent, "")
            as_json = known_types._as_json
            known_types._as_json = lambda versions: as_json((*versions, (NEWCOMER, 1)))
        if os.environ.get("CHAOS_WITHOUT_ATOMICITY"):
            from .opening_later import break_chunks, break_settling

            break_settling()
            break_chunks()
