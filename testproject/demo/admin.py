"""The index, to look at, and the printer, to refill."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest

from .models import Module, Package, Printer


class IndexAdmin(admin.ModelAdmin):
    """What jobs have written is read here and not edited."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


@admin.register(Package)
class PackageAdmin(IndexAdmin):
    """Totals of each package."""

    list_display = ("name", "files", "unreadable", "lines", "functions", "classes", "summarised_at")
    search_fields = ("name",)


@admin.register(Printer)
class PrinterAdmin(admin.ModelAdmin):
    """Refill the paper here, and what has failed for want of it can be replayed."""

    list_display = ("name", "has_paper")
    list_editable = ("has_paper",)


@admin.register(Module)
class ModuleAdmin(IndexAdmin):
    """Each file."""

    list_display = ("name", "lines", "functions", "classes", "error")
    search_fields = ("name", "path")
    list_select_related = ("package",)
