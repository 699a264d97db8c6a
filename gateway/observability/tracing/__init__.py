"""Tracing: OpenTelemetry spans of sampled calls, and their way to a collector."""
