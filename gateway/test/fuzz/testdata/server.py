# A backend of TestRandom.
import http.client


def answer(environ, start):
    body = environ["wsgi.input"].read()
    headers = {
        name[5:].replace("_", "-"): value
        for name, value in environ.items()
        if name.startswith("HTTP_") and name not in ("HTTP_HOST", "HTTP_CONNECTION", "HTTP_TRANSFER_ENCODING")
    }
    headers["X-Parsed-Method"] = environ["REQUEST_METHOD"]
    headers["X-Parsed-Target"] = environ["RAW_URI"]
    headers["X-Parsed-Host"] = environ["HTTP_HOST"]
    connection = http.client.HTTPConnection("{recorder}")
    connection.request("POST", "/parsed", body, headers)
    connection.getresponse().read()
    connection.close()
    start("200 OK", [("Content-Length", "0")])
    return []
