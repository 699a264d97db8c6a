"""`fairlead simulate`: runs policies on a trace of traffic, with the production Scheduler under a virtual clock."""
