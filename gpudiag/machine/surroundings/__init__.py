"""Read what stands in the way of a job, each reading with a time limit and without privileges."""
