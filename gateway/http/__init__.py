"""The client side of HTTP: the server, and a name, headers, an answer and a line in the log for every call."""
