"""Spark: the session, its jars, the job that writes an epoch."""
