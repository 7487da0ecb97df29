"""Bytes in, Arrow changes out: one module per wire format."""
