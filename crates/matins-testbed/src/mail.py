"""Takes mail over TLS from whoever logs in, and writes each decoded into a file."""

import email
import email.policy
import os
import ssl
import sys

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult

port, security, cert, key, folder, user, password = sys.argv[1:]


class Box:
    count = 0

    async def handle_DATA(self, server, session, envelope):
        mail = email.message_from_bytes(envelope.content, policy=email.policy.default)
        head = "".join(f"{name}: {mail[name]}\n" for name in ["From", "To", "Subject"])
        self.count += 1
        name = os.path.join(folder, f"{self.count:06}")
        with open(name, "w", encoding="utf-8") as file:
            file.write(head + "\n" + mail.get_content())
        os.rename(name, name + ".mail")
        return "250 taken"


def login(server, session, envelope, mechanism, data):
    known = (data.login, data.password) == (user.encode(), password.encode())
    # What is not handled here the server refuses in its own words.
    return AuthResult(success=known, handled=known)


context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
context.load_cert_chain(cert, key)
options = {"authenticator": login, "auth_required": True, "auth_require_tls": False}
if security == "starttls":
    options |= {"tls_context": context, "require_starttls": True}
else:
    options |= {"ssl_context": context}
Controller(Box(), hostname="127.0.0.1", port=int(port), **options).start()
print("ready", flush=True)
sys.stdin.read()
