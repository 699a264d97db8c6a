"""The calls of a trace file: its formats, its tenants and groups, and the arrivals that are made of them."""
