#!/usr/bin/env python3
"""What a link carries without anything of ours: bytes through one TCP connection, until the other side has them all.

    tcp.py take ADDRESS              takes bytes and answers, one connection after the other; says when it listens
    tcp.py send ADDRESS... BYTES     sends so many to each at once; prints the seconds until the last has said that it has them
"""
import socket
import struct
import sys
import threading
import time

PORT = 9000  # of a node of its own: nothing else is there
PIECE = 4 << 20


def take(address):
    with socket.create_server((address, PORT)) as door:
        print("ready", flush=True)
        buffer = bytearray(PIECE)
        while True:
            conn, _ = door.accept()
            with conn:
                left = struct.unpack("<Q", conn.recv(8, socket.MSG_WAITALL))[0]
                while left > 0:
                    got = conn.recv_into(buffer, min(PIECE, left))
                    if got == 0:
                        break
                    left -= got
                conn.sendall(b"k")


def send(conn, size):
    piece = memoryview(bytes(PIECE))
    conn.sendall(struct.pack("<Q", size))
    while size > 0:
        conn.sendall(piece[:min(PIECE, size)])
        size -= min(PIECE, size)
    if conn.recv(1) != b"k":
        sys.exit("the other side went away")


def main():
    if sys.argv[1] == "take":
        take(sys.argv[2])
    conns = [socket.create_connection((address, PORT)) for address in sys.argv[2:-1]]
    threads = [threading.Thread(target=send, args=(conn, int(sys.argv[-1]))) for conn in conns]
    begun = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(time.monotonic() - begun)


if __name__ == "__main__":
    main()
