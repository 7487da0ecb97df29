"""Where changes go: one module per kind of target."""
