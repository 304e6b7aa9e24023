"""The tables of the demo."""

from __future__ import annotations

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = ()

    operations = (
        migrations.CreateModel(
            name="Package",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("name", models.CharField(max_length=200, unique=True)),
                ("files", models.PositiveIntegerField(default=0)),
                ("unreadable", models.PositiveIntegerField(default=0)),
                ("lines", models.PositiveIntegerField(default=0)),
                ("functions", models.PositiveIntegerField(default=0)),
                ("classes", models.PositiveIntegerField(default=0)),
                ("summarised_at", models.DateTimeField(null=True)),
            ],
            options={"ordering": ("name",)},
        ),
        migrations.CreateModel(
            name="Module",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("name", models.CharField(max_length=400)),
                ("path", models.CharField(max_length=400, unique=True)),
                ("lines", models.PositiveIntegerField()),
                ("functions", models.PositiveIntegerField()),
                ("classes", models.PositiveIntegerField()),
                ("error", models.TextField(blank=True, default="")),
                (
                    "package",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="modules",
                        to="demo.package",
                    ),
                ),
            ],
            options={"ordering": ("path",)},
        ),
        migrations.CreateModel(
            name="StockMovement",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("order", models.PositiveIntegerField()),
                ("pieces", models.IntegerField()),
            ],
            options={"ordering": ("id",)},
        ),
    )
