"""`fairlead bench`: what a gateway costs in front of one's own server, and how it shares that server among tenants."""
