"""Serves moto, one request after another: it does not lock its tables."""

import sys

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple

home, port = sys.argv[1], int(sys.argv[2])
moto = DomainDispatcherApplication(create_backend_app)


def serve(environ, start_response):
    if environ["PATH_INFO"] == "/identity":
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [home.encode()]
    return moto(environ, start_response)


run_simple("127.0.0.1", port, serve, threaded=False)
