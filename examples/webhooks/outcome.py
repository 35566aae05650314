"""Answers questions about outcomes. docs/asking.md describes them."""
import json

from verify import verify

def outcome(secret: str, headers, body: bytes, charges) -> tuple[int, str]:
    """Returns the status and the body of the answer; its content type is application/json."""
    try:
        verify(secret, headers, body)
        asked = json.loads(body)
    except (KeyError, ValueError):
        return 401, ""
    if asked.get("question") != "outcome":
        return 400, ""
    answer = {"key": asked["key"]}
    try:
        charge = charges.find(idempotency_key=asked["key"])  # on the primary: a replica may lag
    except OSError:
        return 200, json.dumps(answer | {"answer": "unknown"})
    if charge is None:
        answer["answer"] = "not_found"
    elif charge["state"] == "captured":
        answer |= {"answer": "done", "result": charge["result"]}
    elif charge["state"] == "declined":
        answer |= {"answer": "rejected", "result": charge["result"]}
    else:
        answer["answer"] = "pending"
    return 200, json.dumps(answer)
