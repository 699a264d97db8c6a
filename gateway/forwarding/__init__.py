"""The backend side of a call: send it, retry it, relay its answer, and charge its usage."""
