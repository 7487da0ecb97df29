"""Every port in memory, with failure switches, and the simulator; ships with the package."""
