"""Real servers as plain local processes. One of each kind per test run, shared; none outlives the run, however it ends."""
