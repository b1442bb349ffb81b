"""Stands in for machines that a developer does not have: clusters, disks, a torture chamber."""
