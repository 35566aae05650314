"""Receives webhooks. docs/webhooks.md describes the request."""
import base64, hashlib, hmac, time

def verify(secret: str, headers, body: bytes, tolerance: int = 300) -> str:
    """Returns the webhook-id: handle it once."""
    id, at = headers["webhook-id"], headers["webhook-timestamp"]
    if "." in id or abs(time.time() - int(at)) > tolerance:
        raise ValueError("the webhook has a bad ID or time")
    key = base64.b64decode(secret.removeprefix("whsec_"))
    mac = hmac.new(key, f"{id}.{at}.".encode() + body, hashlib.sha256).digest()
    want = "v1," + base64.b64encode(mac).decode()
    if not any(hmac.compare_digest(want, got) for got in headers["webhook-signature"].split()):
        raise ValueError("the webhook has no right signature")
    return id
