"""Hosts in namespaces, links with a rate, model disks, and file systems on them."""
