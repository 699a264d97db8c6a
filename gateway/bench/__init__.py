"""`fairlead bench`: measures the delay that a gateway adds to calls, and how it shares a server among tenants."""
