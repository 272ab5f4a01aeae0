"""A rank that hangs, with a page, a list of groups and a record socket all written by hand.

`records_without_torch.py FOLDER REPLY`: as docs/heartbeat-page.md says it, without our client.
"""

import os
import socket
import struct
import sys
import threading
import time

folder = sys.argv[1]
with open(sys.argv[2], "rb") as file:
    reply = file.read()
path = os.path.join(folder, "records")
listener = socket.socket(socket.AF_UNIX)
listener.bind(path)
listener.listen(8)


def serve():
    while True:
        connection, _ = listener.accept()
        asked = connection.recv(4096)
        status, body = (b"200 OK", reply) if b"/fr_trace_json" in asked else (b"404 Not Found", b"")
        head = b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n" % (status, len(body))
        connection.sendall(head + body)
        connection.close()


threading.Thread(target=serve, daemon=True).start()

text = b"0\tdefault_pg\t0-3\n1\ttensor\t0-1\n"
groups = os.memfd_create("watchtower-groups")
os.pwrite(groups, struct.pack("=8s2q", b"WTGROUP\0", 1, len(text)).ljust(64, b"\0") + text, 0)

with open("/proc/self/stat") as file:
    start_time = int(file.read().rpartition(")")[2].split()[19])
page = bytearray(4096)
struct.pack_into("=8s2q", page, 0, b"WTHBEAT\0", 1, 4096)
words = {136: os.getpid(), 144: start_time, 152: 0, 160: 1, 168: 0, 184: 0, 224: -1, 232: groups}
words |= {64: 7, 72: time.monotonic_ns(), 80: 7, 192: -1, 200: -1}
for offset, value in words.items():
    struct.pack_into("=q", page, offset, value)
page[1536 : 1536 + len(path)] = path.encode()
struct.pack_into("=6q", page, 1792, 3 + 1, 1, 5, 4, 2, 2)
struct.pack_into("=6q", page, 1792 + 48, -1, 0, 0, 0, 1, 0)
struct.pack_into("=q", page, 3328, 2)
os.write(os.memfd_create("watchtower-heartbeat"), page)

print("ready", flush=True)
time.sleep(600)
