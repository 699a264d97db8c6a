"""The client side of HTTP: the server, and the request id, headers, response and log line of every call."""
