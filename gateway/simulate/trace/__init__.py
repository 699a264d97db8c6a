"""Traces: the calls of a trace file, with its formats, tenants and groups, and the arrivals made from them."""
