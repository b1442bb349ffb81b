"""Benchmarks of Orcheck, a module each, and what they share.

    python3 -m orcbench             the list
    python3 -m orcbench stall ...   one of them, with its options

running.py builds and runs programs, stats.py has the statistics, facts.py says where it ran,
reporting.py prints tables and writes results, svg.py draws. disk.py, bursts.py and throttling.py
are shared by those that look at disks. The hosts and disks that one machine stands in for are in
testbed/.
"""
