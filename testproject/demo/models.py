"""What the demo's jobs write: an index of sources, and the stock of a shop; and what one of them
needs: a printer with paper."""

from __future__ import annotations

from django.db import models


class Package(models.Model):
    """A top-level package or module of the indexed sources, with the totals of its files."""

    name = models.CharField(max_length=200, unique=True)
    files = models.PositiveIntegerField(default=0)
    unreadable = models.PositiveIntegerField(default=0)
    lines = models.PositiveIntegerField(default=0)
    functions = models.PositiveIntegerField(default=0)
    classes = models.PositiveIntegerField(default=0)
    summarised_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name


class Module(models.Model):
    """One source file. ``error`` says why it could not be parsed, if so."""

    package = models.ForeignKey(Package, on_delete=models.CASCADE, related_name="modules")
    name = models.CharField(max_length=400)
    path = models.CharField(max_length=400, unique=True)
    lines = models.PositiveIntegerField()
    functions = models.PositiveIntegerField()
    classes = models.PositiveIntegerField()
    error = models.TextField(blank=True, default="")

    class Meta:
        ordering = ("path",)

    def __str__(self) -> str:
        return self.name


class Printer(models.Model):
    """A printer of labels. Without paper each label fails, until somebody refills it."""

    name = models.CharField(max_length=100, unique=True)
    has_paper = models.BooleanField(default=False)

    def __str__(self) -> str:
        return self.name


class StockMovement(models.Model):
    """Pieces that an order took from the shelf, below zero, or put back."""

    order = models.PositiveIntegerField()
    pieces = models.IntegerField()

    class Meta:
        ordering = ("id",)

    def __str__(self) -> str:
        return f"order {self.order}: {self.pieces:+}"
