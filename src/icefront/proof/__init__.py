"""Failpoints, verify, the demo: how a user sees that nothing is lost or doubled."""
