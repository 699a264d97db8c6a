"""Access to the admin port: keys, links, the local socket, and the limit on a caller's changes."""
