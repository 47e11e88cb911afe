"""infctl_daemon: the long-running processes (node daemon, gateway) and the simulated engine."""
