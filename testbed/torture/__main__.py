"""The torture chamber from a command line: python3 -m testbed.torture --help."""

from testbed.torture.torture import main

if __name__ == "__main__":
    main()
