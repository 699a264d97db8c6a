"""The way into the admin port: keys, links, the socket of this machine, and how fast a caller may change things."""
