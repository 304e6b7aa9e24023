#!/usr/bin/env bash
# Django: send_mail() with two recipients, of whom the mail server refuses one, raises nothing without
# fail_silently and returns 1, as if both got it. smtplib returns whom the server refused, and Django's backend
# drops that. It raises only if the server refuses all of them.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q django==5.2.19
cat >"$folder/try.py" <<'PYTHON'
import smtplib
import socketserver
import threading

import django
from django.conf import settings
from django.core.mail import send_mail

accepted = []


class Server(socketserver.StreamRequestHandler):
    def answer(self, text):
        self.wfile.write(f"{text}\r\n".encode())

    def handle(self):
        self.answer("220 ready")
        in_mail = False
        for line in self.rfile:
            line = line.decode().strip()
            if in_mail:
                in_mail = line != "."
                if not in_mail:
                    self.answer("250 taken")
            elif line.upper().startswith("RCPT") and "gone@" in line:
                self.answer("550 no such user")
            elif line.upper().startswith("RCPT"):
                accepted.append(line)
                self.answer("250 ok")
            elif line.upper() == "DATA":
                in_mail = True
                self.answer("354 go on")
            elif line.upper() == "QUIT":
                self.answer("221 bye")
                return
            else:
                self.answer("250 ok")


server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
host, port = server.server_address
settings.configure(EMAIL_HOST=host, EMAIL_PORT=port)

with smtplib.SMTP(host, port) as client:
    refused = client.sendmail("us@example.com", ["ada@example.com", "gone@example.com"], "Subject: x\r\n\r\nx")
accepted.clear()
sent = send_mail("x", "x", "us@example.com", ["ada@example.com", "gone@example.com"])
try:
    send_mail("x", "x", "us@example.com", ["gone@example.com"])
    alone = None
except smtplib.SMTPRecipientsRefused as error:
    alone = error

print("django", django.__version__)
print("smtplib returns whom the server refused:", refused)
print("send_mail returns", sent, "and the server took", accepted)
print("of the refused one alone:", repr(alone))
assert list(refused) == ["gone@example.com"]
assert sent == 1 and len(accepted) == 1, (sent, accepted)
assert alone is not None
PYTHON
cd "$folder"
"$folder/venv/bin/python" "$folder/try.py"
