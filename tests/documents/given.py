"""What the pages of docs take for granted: the shop, and what is not theirs to show.

README takes the first of it, the quick start nothing.
"""

from __future__ import annotations

POSTGRESQL_AND_MAIL = """

DATABASES = {"default": {"ENGINE": "django.db.backends.postgresql"}}
if "MAILERS" not in globals():  # since Django 6.1 startproject writes it
    EMAIL_BACKEND = "django.core.mail.backends.console.EmailBackend"
"""
"""What README asks of a project. The quick start begins with an empty directory."""

SETTINGS = f"""{POSTGRESQL_AND_MAIL}
INSTALLED_APPS += ["django_jobs", "shop"]
DJANGO_JOBS = {{"QUEUES": {{"default": {{}}, "emails": {{}}}}}}
"""

MODELS = """
from django.db import models


class Photo(models.Model):
    album = models.PositiveIntegerField(default=1)


class Order(models.Model):
    email = models.EmailField(default="ada@example.com")
    total = models.IntegerField(default=1)


class Booking(models.Model):
    order = models.ForeignKey(Order, models.CASCADE)
    amount = models.IntegerField()


class Subscription(models.Model):
    active = models.BooleanField(default=False)


class Customer(models.Model):
    active = models.BooleanField(default=True)

    def recalculate(self):
        pass


class Invoice(models.Model):
    number = models.IntegerField(unique=True)
    amount = models.IntegerField(default=1)
    sent = models.BooleanField(default=False)
    closed = models.BooleanField(default=False)
    tenant_id = models.BigIntegerField(default=1)

    def book(self):
        Invoice.objects.filter(pk=self.pk).update(sent=True)

    def mark_paid(self, payment):
        assert payment
"""

SYSTEMS = """
import contextlib
from types import SimpleNamespace


class Payments:
    def charge(self, amount, idempotency_key):
        return {"id": idempotency_key}


payments = Payments()
pager = SimpleNamespace(send=print)
archive = SimpleNamespace(write=print)
flags = SimpleNamespace(is_on=lambda job_type: True)


def list_pages():
    return [SimpleNamespace(number=number) for number in (1, 2, 3)]


def make_scratch():
    return SimpleNamespace(remove=lambda: None)


def add_greeting(payload):
    return {**payload, "greeting": "Dear"}


def read_rows(path, start):
    return range(start, 3)


def rows_of(catalogue_id):
    return range(3)


def do_nothing(*arguments, **named):
    pass


index = handle = load = import_row = mail_orders = do_nothing
run_converter = note_that_it_was_slow = do_nothing
"""
"""Other systems, and functions that the text names and does not show."""

JOBS = """
from django.db import transaction

from django_jobs import *
from django_jobs.models import *

from .models import *
from .systems import *

"""
"""The head of ``shop/jobs.py``."""

DEPLOY = "#!/bin/sh\n"

ROWS = """
Order.objects.create()
Photo.objects.bulk_create([Photo(), Photo()])
Subscription.objects.create()
Customer.objects.create()
Invoice.objects.create(number=1)
"""

SESSION = """
from django.db import transaction
from django_jobs import *
from django_jobs.models import *
from shop.jobs import *
from shop.models import *

account = Customer.objects.first()
key = "charge-7"
"""
"""What stands before each block that is typed into a shell."""

MORE_JOBS = {
    "docs/back-pressure.md": """
@job(queue="emails")
def send_receipt(order_id): ...
""",
    "docs/delivery.md": """
@job
def sync_account(account_id): ...


@job
def send_receipt(order_id): ...
""",
    "docs/hooks.md": """
from django.utils import translation


@job
def write_letter():
    return translation.get_language()
""",
    "docs/playbook.md": """
@job
def resize(): ...
""",
    "docs/quarantine.md": """
@job
def resize(): ...
""",
    "docs/reference/commands.md": """
import os


@job
def resize(): ...


@job(max_attempts=1)
def report():
    assert "REPORTS" not in os.environ


schedule("nightly", report, cron="30 2 * * *", timezone="Europe/Paris")
schedule("rates", report, every=900)
""",
    "docs/reference/api.md": """
@job
def send_digest(): ...
""",
    "docs/reference/models.md": """
@job
def send_receipt(order_id): ...
""",
}
"""Job types that a page names and does not show."""

BEFORE = {
    "docs/operations.md": """
Queue.objects.bulk_create(Queue(name=name) for name in ("heavy", "mail", "web"))
""",
    "docs/schedules.md": """
Schedule.objects.create(
    name="monthly report", job_type="shop.report", cron="0 0 1 * *",
    payload={"to": "owner@example.org"},
)
""",
    "docs/retention.md": """
from datetime import timedelta
from django.db import connection

with connection.cursor() as cursor:
    cursor.execute("SELECT date_trunc('day', now(), 'UTC') - interval '40 days'")
    (day,) = cursor.fetchone()
    for parent, name in (("job_history", "job"), ("run", "run")):
        cursor.execute(
            f"CREATE TABLE django_jobs_{name}_{day:%Y%m%d} PARTITION OF django_jobs_{parent}"
            f" (PRIMARY KEY (id)) FOR VALUES FROM ('{day}') TO ('{day + timedelta(days=1)}')"
        )
Job.objects.create(
    id=71, queue="default", job_type="shop.fetch_rates", payload={"currency": "EUR"}, rank=0,
    status="succeeded", available_at=day, finished_at=day, created_at=day,
    idempotency_key="rates-7",
)
Run.objects.create(
    job_id=71, attempt=1, outcome="succeeded", available_at=day, claimed_at=day, finished_at=day
)
connection.close()
""",
    "docs/reference/commands.md": """
import os
from django.core.management import call_command
from django.db import connection

connection.cursor().execute("ALTER SEQUENCE django_jobs_job_id_seq RESTART 71")
report.enqueue_many([{}, {}])
connection.close()
os.environ["REPORTS"] = "fail"
call_command("jobworker", burst=True)
call_command("migrate", verbosity=0)
assert Job.objects.filter(status="dead").count() == 2
""",
}
"""What happened before somebody reads the page."""

AFTER = {
    "docs/workflows.md": """
(run,) = WorkflowRun.objects.filter(
    name="shop.fulfil", payload__order_id=Order.objects.latest("pk").pk + 1
)
states = dict(run.steps.values_list("step", "status"))
assert states == {
    "reserve_stock": "succeeded", "charge_card": "succeeded", "ship_order": "dead",
    "apologise": "succeeded", "close_order": "succeeded", "undo charge_card": "succeeded",
}, states
undo = run.steps.get(step="undo charge_card")
assert undo.payload == {"order_id": run.payload["order_id"]}, undo.payload
assert (run.status, run.reason) == ("failed", "ship_order failed"), run.reason
""",
}
"""What is true when all jobs of a page have run."""

NEEDS = {"docs/celery.md": "celery"}
"""What has to be installed for a page."""

CALLS = {
    "docs/admin/editing.md": "send_invoice.enqueue(7)",
    "docs/reference/models.md": "send_receipt.enqueue(7)",
    "docs/async.md": """
import subprocess
import sys
from django.core.management import call_command

ANSWERING = '''
from http.server import BaseHTTPRequestHandler, HTTPServer

class Answering(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    do_POST = do_GET

server = HTTPServer(("127.0.0.1", 0), Answering)
print(server.server_port, flush=True)
server.serve_forever()
'''
with subprocess.Popen([sys.executable, "-c", ANSWERING], stdout=subprocess.PIPE) as server:
    url = f"http://127.0.0.1:{int(server.stdout.readline())}"
    notify.enqueue(url, 7)
    import_order.enqueue(url)
    try:
        call_command("jobworker", burst=True)
    finally:
        server.kill()
""",
    "docs/back-pressure.md": """
import time
from django.test import RequestFactory
from django_jobs.api.pressure import forget_recent
from shop.imports import request_receipts
from shop.views import request_receipt

Queue.objects.filter(name="emails").update(max_backlog=5)
request = RequestFactory().post("/receipt/")
assert request_receipt(request, 1).status_code == 202
request_receipts([2, 3])
send_receipt.enqueue(4)
send_receipt.enqueue(5)
forget_recent()
answer = request_receipt(request, 6)
assert answer.status_code == 503 and answer.headers["Retry-After"] == "60", answer

def make_room(seconds):
    for job in Job.objects.filter(status="ready")[:2]:
        cancel(job.pk)
    forget_recent()

time.sleep = make_room
request_receipts([6])
assert Job.objects.filter(status="ready").count() == 4

from contextlib import redirect_stdout
from io import StringIO
from django_jobs.maintenance.tasks import watch_pressure
import shop.receivers

send_receipt.enqueue(7)
with redirect_stdout(StringIO()) as paged:
    assert watch_pressure() == 1
assert paged.getvalue() == "emails is full; its 5 jobs take None s\\n", paged.getvalue()
""",
    "docs/changing-jobs.md": """
greet.enqueue("Ada", "Lovelace", "Dear")
enqueue("shop.send_mail", {"order_id": 1})
old = greet.enqueue("", "", "")
Job.objects.filter(pk=old.pk).update(payload={"name": "Ada Lovelace"}, payload_version=1)
""",
    "docs/delivery.md": """
activate.enqueue(1)
charge.enqueue(1)
collect.enqueue(1)
collect.enqueue(1)
book.enqueue(1)
ring_the_bell.enqueue()
handle_pages.enqueue()
""",
    "docs/lifecycle.md": "sync.enqueue(1); update_index.enqueue(1)",
    "docs/fairness.md": """
export.enqueue(7)
update_firmware.enqueue("A7")
rebuild_index.enqueue(7)
refund.enqueue(7)
print_receipt.enqueue(7)
""",
    "docs/databases.md": """
from shop.orders import buy

buy()
order = Order.objects.latest("pk")
assert Job.objects.using("jobs").get().payload == {"order_id": order.pk}
find_orders_without_receipt.enqueue()
""",
    "docs/hooks.md": """
from django.core.management import call_command
from django.utils import translation

from shop.receivers import report_killed

with translation.override("fr"):
    letter = write_letter.enqueue()
assert set(letter.headers) == {"sentry-trace", "baggage", "tenant", "language", "time_zone"}
call_command("jobworker", burst=True)
letter.refresh_from_db()
assert letter.result == "fr", letter.result
report_killed("shop.write_letter", letter.pk, None, "lost")
""",
    "docs/tracing.md": """
import os
import subprocess
import sys

COLLECTOR = '''
from http.server import BaseHTTPRequestHandler, HTTPServer

class Collector(BaseHTTPRequestHandler):
    def do_POST(self):
        spans = self.rfile.read(int(self.headers["Content-Length"]))
        print(*(name for name in NAMES if name in spans), flush=True)
        self.send_response(200)
        self.end_headers()

NAMES = b"send default", b"process default", b"render receipt"
server = HTTPServer(("127.0.0.1", 0), Collector)
print(server.server_port, flush=True)
server.serve_forever()
'''
with subprocess.Popen([sys.executable, "-c", COLLECTOR], stdout=subprocess.PIPE) as collector:
    url = f"http://127.0.0.1:{int(collector.stdout.readline())}"
    environment = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": url}
    enqueue = "from shop.jobs import *; send_receipt.enqueue(7)"
    try:
        for command in (["shell", "-v0", "-c", enqueue], ["jobworker", "--burst"]):
            subprocess.run([sys.executable, "manage.py", *command], env=environment, check=True)
        assert collector.stdout.readline() == b"b'send default'\\n"
        assert collector.stdout.readline() == b"b'process default' b'render receipt'\\n"
    finally:
        collector.kill()
assert set(Job.objects.get().headers) == {"traceparent"}
""",
    "docs/durable.md": """
from shop.views import confirm

job = onboard.enqueue(1)
assert confirm(job.pk, "small")
assert not confirm(job.pk, "large")
# As if it had begun its sleep long ago.
Receipt.objects.create(
    job=job, key="sleep:settle in", attempt=1, answer={"until": "2020-01-01T00:00:00Z"},
    made_at=job.created_at,
)
""",
    "docs/http.md": """
import time
from django_jobs.domain.callbacks import secrets_for, signed
from shop.receiver import is_signed

secret = "whsec_c2VjcmV0LW9mLWF0LWxlYXN0LTI0LWJ5dGVz"
keys = secrets_for("https://hooks.example.com/jobs", {"hooks.example.com": secret})
headers = signed("job-71", int(time.time()), b"{}", keys)
assert is_signed(headers, b"{}", secret)
assert not is_signed(headers, b"[]", secret)
""",
    "docs/how-to.md": """
import hashlib, hmac, json, pathlib, subprocess, sys
from types import SimpleNamespace
from django.conf import settings
from django.core.management import call_command
from django.test import RequestFactory
from shop.exports import export_status, request_export
from shop.views import payment_webhook

assert Job.objects.filter(job_type="shop.send_confirmation").count() == 1
order = Order.objects.get()

def deliver(body, signature):
    request = RequestFactory().post("/", body, content_type="application/json")
    request.META["HTTP_X_SIGNATURE"] = signature
    return payment_webhook(request).status_code

event = json.dumps({"id": "evt_1", "order": order.pk, "amount": 5}).encode()
signature = hmac.new(settings.SECRET_KEY.encode(), event, hashlib.sha256).hexdigest()
assert deliver(event, "forged") == 403
assert [deliver(event, signature) for _ in range(2)] == [202, 202]

path = pathlib.Path("orders.csv").absolute()
path.write_text("id,email\\n" + "".join(f"{n},a{n}@example.com\\n" for n in range(2, 1003)))
whole = import_orders.enqueue(str(path))
request = RequestFactory().post("/export/")
request.user = SimpleNamespace(pk=3)
export = json.loads(request_export(request).content)
assert json.loads(request_export(request).content) == {**export, "requested_already": True}
assert json.loads(export_status(request, export["job"]).content)["status"] == "ready"
clear_sessions.enqueue()

from django.core.files.uploadedfile import SimpleUploadedFile
from shop.uploads import upload_prices

upload = SimpleUploadedFile("prices.csv", b"7,5.00\\n8,6.00\\n")
assert upload_prices(RequestFactory().post("/prices/", {"prices": upload})).status_code == 202

RECEIVER = '''
from http.server import BaseHTTPRequestHandler, HTTPServer

class Receiver(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(202 if "Idempotency-Key" in self.headers else 400)
        self.end_headers()

server = HTTPServer(("127.0.0.1", 0), Receiver)
print(server.server_port, flush=True)
server.handle_request()
'''
with subprocess.Popen([sys.executable, "-c", RECEIVER], stdout=subprocess.PIPE) as receiver:
    hook = send_webhook.enqueue(f"http://127.0.0.1:{int(receiver.stdout.readline())}", {"id": 1})
    try:
        call_command("jobworker", burst=True)
    finally:
        receiver.kill()
hook.refresh_from_db()
assert hook.result == 202, hook.result
assert Job.objects.get(job_type="shop.finish_import").result == 1001
assert Order.objects.count() == 1002
assert Booking.objects.get().amount == 5
assert json.loads(export_status(request, export["job"]).content)["url"].endswith(".csv")
""",
    "docs/limits.md": """
fetch_rates.enqueue()
import_catalogue.enqueue(1)
render_report.enqueue(1)
convert.enqueue(1)
""",
    "docs/long-jobs.md": """
rebuild_index.enqueue()
import_orders.enqueue("orders.csv")
recalculate.enqueue()
book_invoices.enqueue()
book_unsent_invoices.enqueue()
handle_pages.enqueue()
""",
    "docs/playbook.md": "resize.enqueue()",
    "docs/quarantine.md": "resize.enqueue()",
    "docs/retention.md": "fetch_rates.enqueue()",
    "docs/sql.md": """
Order.objects.create()
by_trigger = Job.objects.get(payload={"order_id": Order.objects.latest("pk").pk})
assert by_trigger.status == "ready"
assert Job.objects.get(status="scheduled").headers == {"source": "psql"}
""",
    "docs/testing.md": """
from shop.jobs import charge, send_receipt

send_receipt.enqueue(1)
charge.enqueue(1)
enqueue("shop.checkout", {"order_id": 1})
""",
    "docs/schedules.md": """
from django.core.management import call_command

call_command("migrate", verbosity=0)
send_digest.enqueue()
remind.enqueue()
rebuild.enqueue()
export.enqueue(2026)
call_command("jobschedule", "run", "report")
""",
    "docs/workflows.md": """
from django.core.management import call_command

from django_jobs import registry

assert fulfil.version == 1 and registry.workflow("shop.fulfil") is newer
call_command("migrate", verbosity=0)
enqueue("shop.audit", {"text": "night"})
enqueue("shop.refunds", {"order_id": 7})
enqueue("shop.prices", {"url": "https://example.com/prices"})
enqueue("shop.quote", {"order_id": 7})
enqueue("shop.images", {"image_id": 7})
enqueue("shop.check", {"order_id": 7})
enqueue("shop.sale", {"order_id": 7})
accept.enqueue(7)
thank.enqueue(7)
""",
    "docs/tenants.md": """
close_month.enqueue(1)
export.enqueue(1)
""",
    "docs/reference/api.md": """
enqueue("shop.checkout", {"order_id": 1})
tidy.enqueue()
send_receipt.enqueue(1)
send_digest.enqueue()
""",
    "docs/reference/commands.md": "resize.enqueue()",
    "docs/reference/signals.md": """
import shop.receivers
from django_jobs.signals import job_dead

((_, answer),) = job_dead.send_robust("shop.sync", job_id=1, reason="why")
assert answer is None, answer

from contextlib import redirect_stdout
from io import StringIO
from django.core.serializers import deserialize
from django.utils import timezone
from django_jobs.maintenance.retention import prune_dead_letters
from django_jobs.models import Queue

Queue.objects.filter(name="default").update(retention={"dead": {"number": 1}})
now = timezone.now()
for _ in range(2):
    Job.objects.create(
        queue="default", job_type="shop.sync", status="dead", payload={"account_id": 1}, rank=0,
        available_at=now, finished_at=now, created_at=now,
    )
oldest = Job.objects.earliest("pk")
with redirect_stdout(StringIO()) as exported:
    assert prune_dead_letters(budget=60) == 1
(restored,) = deserialize("json", exported.getvalue())
assert restored.object == oldest and restored.object.payload == {"account_id": 1}
""",
}
"""A call of each handler that the page declares. All have to succeed."""
