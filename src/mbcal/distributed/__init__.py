"""Workers that share one fit, and the engines that run jobs."""
