"""What is told about calls: one line each in the access log and in the trace log."""
