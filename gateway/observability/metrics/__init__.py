"""Metrics in Prometheus' text format, their page and their port."""
