"""The schedulers on the event loop: one for each pool, made from configuration; calls hold leases on them."""
