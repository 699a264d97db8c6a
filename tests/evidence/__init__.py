"""Published results, reproduced with the Scheduler that runs in production: `make tables`."""
