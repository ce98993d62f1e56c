"""Find how a job divides its work among ranks, and what each division costs."""
