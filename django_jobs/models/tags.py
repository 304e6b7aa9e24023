"""The column of tags, its lookup and its index."""

from __future__ import annotations

from typing import Any

from django.db import models


class TagsField(models.Field):  # type: ignore[type-arg]
    """A list of texts. Django's ``ArrayField`` would need ``django.contrib.postgres`` among the
    installed apps."""

    def db_type(self, connection: Any) -> str:
        return "text[]"


@TagsField.register_lookup
class Contains(models.Lookup):
    """``tags__contains=["vip"]``: rows with all of these tags."""

    lookup_name = "contains"
    prepare_rhs = False

    def as_sql(self, compiler: Any, connection: Any) -> Any:
        column, parameters = self.process_lhs(compiler, connection)
        return f"{column} @> %s::text[]", [*parameters, list(self.rhs)]


class TagsIndex(models.Index):
    """A GIN index: each tag has a list of its rows."""

    suffix = "gin"

    def create_sql(
        self, model: Any, schema_editor: Any, using: str = " USING gin", **kwargs: Any
    ) -> Any:
        return super().create_sql(model, schema_editor, using=using, **kwargs)
