"""`fairlead bench`: measures what a gateway adds to calls of a server, and how it shares that server among tenants."""
