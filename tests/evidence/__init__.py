"""The published results, once more, by the Scheduler that runs in production: `make tables`."""
