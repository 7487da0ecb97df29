"""Exactly-once change data capture into and out of Apache Iceberg, on Spark."""

__version__ = "0.1.0"
