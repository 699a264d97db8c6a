"""The schedulers on the event loop: made from configuration, one for each pool, and leases that calls hold."""
