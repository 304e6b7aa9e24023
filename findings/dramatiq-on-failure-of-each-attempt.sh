#!/usr/bin/env bash
# dramatiq: on_failure is sent after each attempt that raises, also of a message that succeeds later.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q dramatiq==2.2.1
cat >"$folder/try.py" <<'PYTHON'
import dramatiq
from dramatiq.brokers.stub import StubBroker

broker = StubBroker()
dramatiq.set_broker(broker)
attempts, told = [], []


@dramatiq.actor
def failed(message, error):
    told.append(error["type"])


@dramatiq.actor(max_retries=3, min_backoff=1, max_backoff=5)
def flaky():
    attempts.append(1)
    if len(attempts) < 3:
        raise RuntimeError("not yet")


flaky.send_with_options(on_failure=failed)
worker = dramatiq.Worker(broker, worker_timeout=50)
worker.start()
for queue in (flaky.queue_name, failed.queue_name):
    broker.join(queue)
    worker.join()
worker.stop()

print("dramatiq", dramatiq.__version__)
print(f"{len(attempts)} attempts, the last one succeeded; on_failure was called {len(told)} times")
assert (len(attempts), told) == (3, ["RuntimeError", "RuntimeError"])
PYTHON
"$folder/venv/bin/python" "$folder/try.py"
