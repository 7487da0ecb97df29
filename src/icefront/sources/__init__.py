"""Where changes come from: one module per kind of source."""
