"""`fairlead simulate tables`: the published results, once more, by the Scheduler that runs in production."""
